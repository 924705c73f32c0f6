"""Copies that nothing hides, and what ran beside what: against the references, and what is said."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.reference import beside
from tests.reference.exposed_copy import ExposedCopy, prepare
from tests.reference.spans import Span
from tests.support.builders import ALL_REDUCE, How, TraceBuilder
from tests.support.claims import answer, results_of
from tests.support.kept_claims import Kept
from tests.support.selection import few_and_many, for_examples
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import breakdown, exposed_copy, pageable_copy
from traceprof.analyses.breakdown import surroundings
from traceprof.analyses.exposed_copy import ExposedCopyResult
from traceprof.analyses.links import link_usage
from traceprof.analyses.verdict.three_lines import short_action
from traceprof.analysis import Options, RunResult, analyze_reports
from traceprof.findings import Finding, Severity
from traceprof.reports import json as json_report
from traceprof.run.opening import Rank, Window

CUTS = ((0.31, 0.77), (-0.1, 0.5), (0.6, 1.2))


def assert_same_beside(result: ExposedCopyResult, expected: beside.Beside) -> None:
    together = {
        (row.kind, other): getattr(row, f"{other}_ns")
        for row in result.beside
        for other in beside.ALL
    }
    for (kind, other), length in expected.together.items():
        assert together[kind, other] == together[other, kind] == length, (kind, other)
    assert {row.kind: row.alone_ns for row in result.beside} == expected.alone


def windows(rank: Rank) -> list[Window]:
    start, length = rank.window.start_ns, rank.window.length_ns
    cuts = [Window(start + int(length * low), start + int(length * high)) for low, high in CUTS]
    empty = Window(start + length // 2, start + length // 2)
    return [rank.window, *cuts, empty]


def assert_agreement(path: Path) -> list[ExposedCopy]:
    """Hold every rank, in its window and in parts of it, to the references.

    Returns what they say of the whole windows.
    """
    prepared = prepare(path)
    with ranks_of(path) as ranks:
        answers = []
        for rank in ranks:
            expected = prepared[rank.process, rank.key.device]
            for window in windows(rank):
                span: Span = (window.start_ns, window.end_ns)
                result = exposed_copy.run(rank, window)
                answers.append(answer(result))
                assert answers[-1] == expected.measured(span)
                assert_same_beside(result, beside.measured(expected.rank, span))
                whole = breakdown.run(rank, window).whole
                metrics = result.metrics
                parts = (metrics.exposed_ns, result.copy_ns)
                assert parts == (whole.exposed_copy_ns, whole.copy_ns)
                assert 0 <= metrics.hideable_ns <= metrics.exposed_ns
        return answers[:: len(CUTS) + 2]


def test_agreement_on_real_traces(real_trace: Path) -> None:
    assert_agreement(real_trace)


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=[path.stem for path in GPU_SAMPLES])
def test_agreement_on_samples(sample: Path) -> None:
    assert assert_agreement(sample)


@st.composite
def exports(draw: st.DrawFn) -> TraceBuilder:
    """Generate operations of all kinds that overlap, touch, and begin together."""
    chooser = random.Random(draw(st.integers(0, 1 << 30)))
    builder, some = TraceBuilder(), chooser.randrange
    for _ in range(some(1, 25)):
        start = some(60)
        end = start + chooser.choice((0, 3, 10, some(30)))
        how: How = {"stream": chooser.choice((7, 8, 9)), "device": some(4) // 3}
        kind = some(9)
        if kind < 3:
            builder.kernel(start, end, chooser.choice((ALL_REDUCE, "gemm", "gemm")), **how)
        elif kind == 3:
            builder.graph(start, end, **how)
        elif kind == 4:
            builder.memset(start, end, bytes=some(99), **how)
        else:
            builder.memcpy(
                start, end, chooser.choice(("HtoD", "DtoH", "DtoD", "HtoH", "PtoP")),
                bytes=some(999), pageable=some(2) > 0, **how,
            )  # fmt: skip
    return builder.shuffled(some(9))


ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdam>(int)"
GEMM = "void at::native::gemm(int)"
SIZES = (256, 1024, 20, 4096, 77)


def add_step(builder: TraceBuilder, number: int, chooser: random.Random) -> None:
    """Add a step: compute, AllReduce, a row of gradient copies, optimizer; sometimes not quite."""
    base, calls = 1000 * number, iter(range(1000 * number + 20, 1000 * number + 900, 3))
    some = chooser.randrange
    builder.nvtx(f"step {number}", base, base + 900)

    def how(stream: int = 7) -> How:
        call = next(calls)
        return {"stream": stream, "launch": False if some(200) == 0 else (call, call + 2)}

    builder.kernel(base + 10, base + 110, GEMM, **how())
    for _ in range(some(1, 3)):
        builder.kernel(base + 100, base + 190, ALL_REDUCE, **how(20))
    sizes = list(SIZES[: some(3, 6)] if some(12) == 0 else SIZES)
    if some(3) == 0:
        chooser.shuffle(sizes)
    time = base + 200
    for size in sizes:
        odd = some(100)
        if odd == 0:
            builder.kernel(time, time, GEMM, **how())
        elif odd == 1:
            builder.memset(time, time + 1, **how(chooser.choice((7, 8))))
        kind = "HtoD" if odd == 2 else "PtoP" if odd == 3 else "DtoD"
        builder.memcpy(time, time + 8, kind, bytes=size, **how(8 if odd == 4 else 7))
        time += 10
    if some(12) == 0:
        builder.kernel(time, time + 5, ALL_REDUCE, **how(20))
    ending = some(16)
    if ending == 0:
        call = next(calls)
        builder.nvtx("optimizer step", call, call + 5)
        builder.kernel(time + 20, time + 60, GEMM, launch=(call + 1, call + 2))
        next(calls)
    elif ending > 1:
        builder.kernel(time + 20, time + 60, ADAM, **how(chooser.choice((7, 7, 8))))
    builder.memcpy(time + 60, time + 70, "DtoD", **how())


@st.composite
def trainings(draw: st.DrawFn) -> TraceBuilder:
    """Generate steps that mostly copy gradients out of buckets, and sometimes something else."""
    chooser = random.Random(draw(st.integers(0, 1 << 30)))
    builder = TraceBuilder()
    for number in range(chooser.randrange(1, 5)):
        add_step(builder, number, chooser)
    return builder.shuffled(chooser.randrange(9))


@pytest.mark.slow
@few_and_many(4, 100)
@pytest.mark.parametrize("programs", [exports, trainings])
def test_agreement_on_generated_exports(
    num_examples: int,
    programs: Callable[[], st.SearchStrategy[TraceBuilder]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def check(builder: TraceBuilder) -> None:
        assert_agreement(builder.write(tmp_path_factory.mktemp("generated") / "t.sqlite"))

    for_examples(num_examples, check, programs())


@pytest.mark.long
def test_most_generated_steps_have_gradients_or_none(tmp_path: Path) -> None:
    """What the generated steps are compared on is there in some, and not in others."""
    have = []
    for seed in range(40):
        chooser, builder = random.Random(seed), TraceBuilder()
        for number in range(3):
            add_step(builder, number, chooser)
        (found,) = prepare(builder.write(tmp_path / f"{seed}.sqlite")).values()
        have.append(bool(found.gradients))
    assert 8 < sum(have) < 32, sum(have)


def findings_of(path: Path, window: tuple[int, int] | None = None) -> list[Finding]:
    results = results_of(exposed_copy.run, path, Window(*window) if window else None)
    judged = [finding for result in results for finding in exposed_copy.findings(result)]
    return [finding for finding in judged if isinstance(finding, Finding)]


def test_copies_of_unknown_size_count_no_bytes(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB").kernel(0, 200, GEMM)
    here: dict[str, int] = {"deviceId": 0, "streamId": 7, "globalPid": 1 << 48 | 1000 << 24}
    builder.raw("CUPTI_ACTIVITY_KIND_MEMCPY", start=200, end=300, copyKind=1, srcKind=0, dstKind=2,
                bytes=None, **here)  # fmt: skip
    builder.raw("CUPTI_ACTIVITY_KIND_MEMSET", start=300, end=310, bytes=None, **here)
    builder.memcpy(310, 320, bytes=70).kernel(320, 600, GEMM)
    (finding,) = findings_of(builder.write(tmp_path))
    assert (finding.metrics["bytes"], finding.metrics["num_copies"]) == (70, 3)
    assert finding.evidence[0].label == "Host-to-Device copy, pageable"
    with ranks_of(tmp_path / "t.sqlite") as (rank,):
        before = surroundings(rank, 0, 600)
        used = link_usage.run(rank, rank.window)
        pageable = pageable_copy.run(rank, rank.window)
    assert before is not None
    assert before.bytes_to_gpu == 70
    assert [use.bytes for use in used.uses] == [70]
    assert pageable.metrics.num_copies == 0


def test_the_cost_that_pageable_copy_counts_too_is_told(tmp_path: Path) -> None:
    # GPU   |= kernel =|    |== copy ==|             0-100, 150-250
    #                           |= kernel =======|   200-400
    # host       [ copy call 120-240 ]
    builder = TraceBuilder().kernel(0, 100, GEMM)
    builder.memcpy(150, 250, pageable=True, launch=(120, 240))
    builder.kernel(200, 400, GEMM, stream=8, launch=(0, 1))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        (pageable,) = pageable_copy.findings(pageable_copy.run(rank, rank.window))
        copies = exposed_copy.run(rank, rank.window)
    assert isinstance(pageable, Finding)
    assert pageable.impact_ns == 80
    assert pageable.metrics["exposed_copy_ns"] == copies.metrics.pageable_ns == 50
    assert pageable.title.endswith("80 ns, 50 ns of it in exposed-copy, too")


def analyzed(path: Path) -> RunResult:
    return analyze_reports([path], Options(savings=False), jobs=1)


def test_the_upload_of_a_model_is_no_finding(traces: Path) -> None:
    result = analyzed(traces / "pairs/warm_up_and_upload.sqlite")
    costly = [finding.id for finding in result.findings if finding.severity > Severity.INFO]
    assert costly
    assert not {"pageable-copy", "exposed-copy"} & set(costly)


def test_json_says_what_ran_beside_what(tmp_path: Path) -> None:
    # GPU  |= kernel 0-100 =|      |= communication 120-200 =|
    #           |= copy 50-150 =|             |= memset 180-230 =|
    builder = TraceBuilder().kernel(0, 100, GEMM).kernel(120, 200, ALL_REDUCE, stream=8)
    builder.memcpy(50, 150, "DtoH", stream=9).memset(180, 230, stream=10)
    document = json.loads(json_report.render(analyzed(builder.write(tmp_path))))
    zero = {f"{kind}_ns": 0 for kind in beside.ALL}
    expected = {
        "compute": {"compute_ns": 100, "copy_ns": 50, "d2h_ns": 50, "alone_ns": 50},
        "communication": {
            "communication_ns": 80, "copy_ns": 50, "d2h_ns": 30, "memset_ns": 20, "alone_ns": 30,
        },
        "copy": {
            "compute_ns": 50, "communication_ns": 50, "copy_ns": 150, "d2h_ns": 100,
            "memset_ns": 50, "alone_ns": 50,
        },
        "d2h": {
            "compute_ns": 50, "communication_ns": 30, "copy_ns": 100, "d2h_ns": 100, "alone_ns": 20,
        },
        "memset": {"communication_ns": 20, "copy_ns": 50, "memset_ns": 50, "alone_ns": 30},
    }  # fmt: skip
    assert document["beside"] == [
        {"rank": 0, "kind": kind, "total_ns": row[f"{kind}_ns"], **zero, **row}
        for kind, row in expected.items()
    ]


def between(kernel: str = GEMM, **copy: Any) -> TraceBuilder:
    """GPU  |= kernel =||== copy ==||= kernel =|      0-200, 200-300, 300-600"""
    builder = TraceBuilder().kernel(0, 200, kernel).memcpy(200, 300, **copy)
    return builder.kernel(300, 600, kernel)


def of_directives() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 200, "advance_x_257_gpu").memcpy(200, 300)
    for start in (300, 500, 600):
        builder.kernel(start, start + 100, "advance_x_257_gpu")
    return builder


def setting(**how: int) -> TraceBuilder:
    here = {"deviceId": 0, "streamId": 7, "globalPid": 1 << 48 | 1000 << 24}
    builder = TraceBuilder().kernel(100, 200, GEMM)
    return builder.raw("CUPTI_ACTIVITY_KIND_MEMSET", start=0, end=100, bytes=400_000, **here, **how)


PROGRAMS = {
    "pinned": between(bytes=3_000_000),
    "not PyTorch": between("jacobi"),
    "directives": of_directives(),
    "from pageable memory": between(pageable=True),
    "to pageable memory": between(kind="DtoH", pageable=True),
    "to pinned memory": between(kind="DtoH"),
    "to pinned memory on another stream": between(kind="DtoH", stream=9),
    "from pinned memory on another stream": between(stream=9),
    "within the GPU": between(kind="DtoD"),
    "within the GPU on another stream": between(kind="DtoD", stream=9),
    "unknown memory": between()
    .without("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind")
    .without("CUPTI_ACTIVITY_KIND_MEMCPY", "dstKind"),
    "nothing to hide it": TraceBuilder()
    .kernel(0, 20, GEMM)
    .memcpy(20, 1000)
    .kernel(1000, 1020, GEMM),
    # What is advised on them copies less itself, and says how.
    "parameters kept in host memory": TraceBuilder()
    .nvtx("FSDP::pre_forward (layers.0)", 0, 1000)
    .kernel(0, 20, GEMM)
    .memcpy(20, 1000)
    .kernel(1000, 1020, GEMM),
    "a batch before the first kernel": TraceBuilder()
    .memcpy(0, 10)
    .memcpy(10, 20)
    .kernel(20, 200, GEMM),
    "setting memory": setting(memKind=2),
    "setting unified memory": setting(memKind=4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    found = findings_of(PROGRAMS[name].write(tmp_path))
    kept([*found, *(f"Do: {short_action(finding)}" for finding in found)])


def test_gradient_copies_are_named_on_four_a100(traces: Path) -> None:
    (finding,) = findings_of(traces / "a100x4_ddp_baseline_rank0.sqlite")
    assert (finding.metrics["exposed_ns"], finding.metrics["d2d_ns"]) == (85_711_833, 44_657_773)
    assert finding.metrics["gradient_ns"] == 38_010_005
    assert "gradient_as_bucket_view=True" in finding.advice[0]
    assert "38.0 ms of gradients" in finding.title
    (after,) = findings_of(traces / "a100x4_ddp_nobroadcast_rank0.sqlite")
    assert after.metrics["gradient_ns"] == 0
    assert "gradient_as_bucket_view" not in " ".join(after.advice)


def test_a_pinned_copy_as_long_as_the_window_on_two_h100(traces: Path) -> None:
    found = findings_of(traces / "h100x2_command_buffer_full.sqlite")
    assert len(found) == 2
    for finding in found:
        assert finding.severity is Severity.HIGH
        assert finding.impact_fraction == pytest.approx(0.97, abs=0.005)
        assert "at 27.7 GB/s" in finding.title
        assert "none of it beside compute" in finding.title
        assert "CPUOffloadPolicy" in finding.advice[0]
        assert "22.4 ms" in finding.advice[1]


def test_programs_without_pytorch_get_no_advice_for_it(traces: Path) -> None:
    found = [
        finding
        for name in ("jacobi_mpi/rank_0", "cloverleaf_3.13.2", "icon_3.17.1")
        for finding in findings_of(traces / f"{name}.sqlite")
    ]
    assert len(found) == 3
    assert "torch" not in " ".join(line for finding in found for line in finding.advice).lower()
