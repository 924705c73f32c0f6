"""The launch queue: against the reference, on real exports, and on small ones of known answers."""

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.reference.launch_queue import Answer, Process, answers, read
from tests.support.builders import How, TraceBuilder, global_tid
from tests.support.claims import only_finding, results_of
from tests.support.databases import change
from tests.support.kept_claims import Kept
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES
from traceprof.analyses import launch_queue
from traceprof.analysis import Options, analyze
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.opening import Window

# Those whose queue is full, and a few of the others; all with `make verify`.
_OFTEN = ("launch-", "healthy", "host-sync", "training")
NCCL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
CAP = 1022
KERNEL_NS, GAP_NS, LAUNCH_NS = 100_000, 1_000, 5_000


results = partial(results_of, launch_queue.run)


def series(path: Path, window: Window | None) -> list[list[tuple[int, int]]]:
    return [
        list(zip(times.tolist(), depth.tolist(), strict=True))
        for times, depth in results_of(launch_queue.depth_over_time, path, window)
    ]


def judged(path: Path) -> list[Finding | NotApplicable]:
    return [finding for result in results(path) for finding in launch_queue.findings(result)]


def answered(
    result: launch_queue.LaunchQueueResult, shown: list[tuple[int, int]], pid: int, device: int
) -> Answer:
    stalls = result.stalls
    columns = (stalls.start_ns.tolist(), stalls.end_ns.tolist(), stalls.thread.tolist())
    return Answer(
        pid,
        device,
        stalls.source,
        list(zip(*columns, strict=True)),
        stalls.cap,
        stalls.cap_scope,
        stalls.usual_ns,
        shown,
        result.metrics.max_queue_depth,
        result.metrics.blocked_ns,
        result.costly.measure_ns,
        [(late.start_ns, late.late_ns) for late in result.late],
        {holder.name: holder.held_ns for holder in result.holders},
        result.metrics.coverage,
    )


def assert_agreement(path: Path, time_range: tuple[int, int] | None = None) -> list[Answer]:
    return assert_agrees(path, read(path), time_range)


def assert_agrees(
    path: Path, processes: list[Process], time_range: tuple[int, int] | None = None
) -> list[Answer]:
    expected = [answer for process in processes for answer in answers(process, time_range)]
    window = None if time_range is None else Window(*time_range)
    found = zip(results(path, window), series(path, window), strict=True)
    for answer, (result, shown) in zip(expected, found, strict=True):
        assert result.metrics.num_late_launches == len(answer.late)
        assert result.metrics.late_launch_ns == sum(late for _, late in answer.late)
        answer.late = answer.late[:5]
        got = answered(result, shown, answer.pid, answer.device)
        # The two spell a few functions differently; what each held is compared as it stands.
        assert sorted(got.holders.values()) == sorted(answer.holders.values())
        got.holders = answer.holders
        assert got == answer
        assert result.costly.measure_ns <= result.window.length_ns
    return expected


def test_every_real_export_agrees_with_the_reference(real_trace: Path) -> None:
    processes = read(real_trace)  # once: that takes far longer than to look at a window
    for answer in assert_agrees(real_trace, processes):
        if answer.series:
            low, high = answer.series[0][0], answer.series[-1][0]
            middle = (low + (high - low) // 3, low + 2 * (high - low) // 3)
            assert_agrees(real_trace, processes, middle)


STALLED = {
    "h100x2_command_buffer_full",
    "gpt2_result_2_7B_3.16.1",
    "inference_no_mangled_names",
    "warm_up_and_upload",
}


def test_these_real_exports_stall_and_no_others(real_trace: Path) -> None:
    measured = results(real_trace)
    findings = [finding for result in measured for finding in launch_queue.findings(result)]
    is_stalled = real_trace.stem in STALLED
    assert any(isinstance(finding, Finding) for finding in findings) == is_stalled
    assert any(len(result.stalls) for result in measured) == is_stalled


@pytest.mark.long
@pytest.mark.parametrize("has_records", long_after(1, [False, True]))
def test_two_h100_by_either_way(traces: Path, tmp_path: Path, has_records: bool) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes((traces / "h100x2_command_buffer_full.sqlite").read_bytes())
    if not has_records:
        change(path, "DROP TABLE CUPTI_ACTIVITY_KIND_OVERHEAD")
    assert_agreement(path)
    for finding in judged(path):
        assert isinstance(finding, Finding)
        assert finding.severity is Severity.INFO
        metrics: dict[str, Any] = dict(finding.metrics)
        assert 454_000_000 <= metrics["stall_ns"] <= 456_500_000
        assert metrics["max_queue_depth"] == 1141
        assert (metrics["queue_cap"], metrics["queue_cap_scope"]) == (CAP, "stream")
        assert metrics["source"] == ("overhead-records" if has_records else "inferred")
        assert metrics["holder"] == "Host-to-Device copy"


@pytest.mark.parametrize(
    ("name", "stall_ns", "cap"),
    [
        ("gpt2_result_2_7B_3.16.1.sqlite", 2_136_000_000, CAP),
        # 531 launches took over 50 µs with exactly 1021 operations before them; never were more.
        ("pairs/warm_up_and_upload.sqlite", 169_900_000, CAP - 1),
    ],
)
def test_stalls_whose_records_were_not_exported(
    traces: Path, name: str, stall_ns: int, cap: int
) -> None:
    finding = only_finding(judged(traces / name))
    assert finding.severity is Severity.INFO
    assert finding.metrics["stall_ns"] == pytest.approx(stall_ns, rel=0.001)
    assert finding.metrics["queue_cap"] == finding.metrics["max_queue_depth"] == cap
    assert any("2026.1" in line for line in finding.advice)


def test_each_stream_has_a_queue_of_its_own(traces: Path) -> None:
    # Two models in turn on two streams: 1550 pending in all, and each stream full at 1022.
    (result,) = results(traces / "inference_no_mangled_names.sqlite")
    assert (result.stalls.cap, result.metrics.max_queue_depth) == (CAP, 1550)
    assert only_finding(launch_queue.findings(result)).severity is Severity.INFO


@pytest.mark.all_samples
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(
            path, id=path.stem, marks=[] if path.stem.startswith(_OFTEN) else [pytest.mark.long]
        )
        for path in GPU_SAMPLES
    ],
)
def test_samples_agree_with_the_reference_and_cost_what_the_model_says(sample: Path) -> None:
    truth = json.loads(sample.with_suffix(".truth.json").read_text())
    assert_agreement(sample)
    found = {claim.rank: claim for claim in judged(sample) if isinstance(claim, Finding)}
    for expected in truth.get("findings", ()):
        # Where other causes stand beside it, the model cannot say what this one alone costs.
        late_ns = expected["metrics"].get("model_late_start_ns")
        if expected["id"] == "launch-queue-stall" and late_ns is not None:
            assert found[expected["rank"]].impact_ns == pytest.approx(late_ns, rel=0.001)
            assert (found[expected["rank"]].severity > Severity.INFO) == (late_ns > 0)


def planted(
    builder: TraceBuilder, num_kernels: int, cap: int = CAP, *, pid: int = 1000, device: int = 0,
    start: int = 0, stream: int = 7,
) -> list[int]:  # fmt: skip
    """Launch kernels into one stream as fast as the queue lets them; return the stalls.

    A launch takes 5 µs; where `cap` are pending when it is called, it returns 4 µs after the next
    end, and what it took beyond 5 µs is its stall.
    """
    ends: list[int] = []
    stalls = []
    called = start
    for index in range(num_kernels):
        returned = called + LAUNCH_NS
        if index >= cap and ends[index - cap] > called:
            returned = ends[index - cap] + 4_000
        if returned - called > 50_000:
            stalls.append(returned - called - LAUNCH_NS)
        begin = max(returned + 2_000, ends[-1] + GAP_NS if ends else 0)
        builder.kernel(
            begin, begin + KERNEL_NS, launch=(called, returned), pid=pid, device=device,
            stream=stream,
        )  # fmt: skip
        ends.append(begin + KERNEL_NS)
        called = returned + 1_000
    return [*stalls, called]


@pytest.mark.parametrize("cap", long_after(1, [300, 700, CAP]))
def test_the_cap_is_learned(tmp_path: Path, cap: int) -> None:
    builder = TraceBuilder()
    *stalls, _ = planted(builder, cap + 200, cap)
    path = builder.shuffled(1).write(tmp_path)
    assert_agreement(path)
    finding = only_finding(judged(path))
    assert finding.metrics["queue_cap"] == finding.metrics["max_queue_depth"] == cap
    assert finding.metrics["stall_ns"] == sum(stalls)
    assert finding.metrics["num_stalls"] == len(stalls)
    assert finding.metrics["usual_launch_ns"] == LAUNCH_NS
    assert (finding.severity, finding.impact_ns) == (Severity.INFO, 0)
    assert (finding.metrics["source"], finding.metrics["coverage"]) == ("inferred", 1.0)
    assert "no other work waited" in finding.title
    assert finding.advice[: len(launch_queue._HEALTHY_ADVICE)] == launch_queue._HEALTHY_ADVICE
    lengths = [seen.end_ns - seen.start_ns for seen in finding.evidence]
    assert lengths == sorted(lengths, reverse=True)


def test_long_calls_that_are_no_stalls(tmp_path: Path) -> None:
    # Run-ahead of 400, and at its greatest depth: copies that wait for themselves or come from
    # pageable memory, and launches that return at no operation's end or while many end.
    builder = TraceBuilder()
    for index in range(400):
        start = 10_000_000 + index * 300_000
        builder.kernel(start, start + 299_000, launch=(index * 6_000, index * 6_000 + 5_000))
    called = 2_400_000
    for index in range(8):
        builder.memcpy(
            200_000_000 + index, 200_000_001 + index, pageable=True,
            launch=(called, called + 9_000_000 + index),
        )  # fmt: skip
        builder.kernel(
            210_000_000 + index, 210_000_001 + index, stream=9, tid=1 + index,
            launch=(called, 10_000_000 + index * 300_000 + 150_000),
        )  # fmt: skip
        builder.kernel(
            220_000_000 + index, 220_000_001 + index, stream=9, tid=20 + index,
            launch=(called, 50_000_000 + index * 300_000 - 500),
        )  # fmt: skip
        builder.memcpy(
            9_000_000 + index, 9_100_000 + index, "DtoH", stream=8, tid=10 + index,
            launch=(called, 9_110_000),
        )  # fmt: skip
    path = builder.write(tmp_path)
    assert_agreement(path)
    assert judged(path) == []
    assert results(path)[0].metrics.max_queue_depth > 400


def test_what_was_queued_when_the_capture_began(tmp_path: Path) -> None:
    complete = TraceBuilder()
    *stalls, _ = planted(complete, CAP + 400)
    path = complete.write(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        cut = "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId <= ?"
        database.execute(cut, [CAP])
    assert_agreement(path)
    finding = only_finding(judged(path))
    assert finding.metrics["queue_cap"] == CAP
    assert (finding.metrics["stall_ns"], finding.metrics["num_stalls"]) == (
        sum(stalls),
        len(stalls),
    )
    assert finding.metrics["coverage"] == 400 / (CAP + 400)


def test_pages_alone_were_never_queued(tmp_path: Path) -> None:
    """No call moves pages of unified memory: nothing was pending at any time."""
    builder = TraceBuilder().api("cudaDeviceSynchronize_v3020", 0, 900)
    builder.memcpy(100, 600, "unified HtoD", launch=False, correlation=0)
    path = builder.write(tmp_path)
    assert series(path, None) == [[]]
    (result,) = results(path)
    assert result.metrics.max_queue_depth == 0


def test_what_the_end_of_the_capture_cut_off(tmp_path: Path) -> None:
    complete = TraceBuilder()
    *stalls, _ = planted(complete, CAP + 400)
    path = complete.write(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        cut = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId > ?"
        database.execute(cut, [CAP + 200])
    assert_agreement(path)
    (result,) = results(path)
    assert result.metrics.max_queue_depth == CAP
    # Those beyond the last recorded end returned as nothing that was recorded ended.
    assert 200 < len(result.stalls) <= len(stalls)


def test_without_api_calls(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 9, launch=False).write(tmp_path)
    with closing(analyze(path, options=Options(only=[launch_queue.ID]))) as analysis:
        assert analysis.of(launch_queue) == ()
        assert analysis.findings == ()
        (missing,) = analysis.not_applicable
    assert "no CUDA API calls" in missing.reason
    assert "--trace=cuda" in missing.how_to_collect


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(1, (1, 0, *range(2, 25))))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for pid in (1000, 2000)[: chance.randint(1, 2)]:
        for device in range(chance.randint(1, 2)):
            cap = chance.randint(250, 400)
            start, stream = chance.randrange(10**7), chance.choice([7, 8])
            planted(builder, cap + chance.randint(0, 60), cap, pid=pid, device=device, start=start,
                    stream=stream)  # fmt: skip
        for _ in range(chance.randint(0, 60)):
            start = chance.randrange(60_000_000)
            called = start - chance.choice([-3_000, 0, 5_000, 9_000, 400_000, 20_000_000])
            lasts = chance.choice([0, 5_000, 5_000, 60_000, 3_000_000])
            how: Any = {
                "pid": pid, "device": chance.randint(0, 1), "stream": chance.choice([7, 8, 9]),
                "launch": chance.choice([False, (called - lasts, called)]),
                "tid": chance.choice([None, 5]),
            }  # fmt: skip
            if chance.random() < 0.1:
                how["correlation"] = chance.choice([0, 3, 100])
            until = start + chance.choice([0, 1_000, 100_000])
            if chance.random() < 0.5:
                builder.kernel(start, until, chance.choice(["gemm", NCCL]), **how)
            elif chance.random() < 0.5:
                kind = chance.choice(["HtoD", "DtoH", "DtoD", "PtoP"])
                builder.memcpy(start, until, kind, pageable=chance.random() < 0.3, **how)
            else:
                chance.choice([builder.memset, builder.graph])(start, until, **how)
        for _ in range(chance.randint(0, 3)):
            start = chance.randrange(60_000_000)
            name = chance.choice(["cudaDeviceSynchronize_v3020", "cudaMalloc_v3020"])
            builder.api(name, start, start + chance.choice([9, 4_000_000]), pid=pid)
    path = builder.shuffled(seed).write(tmp_path)
    low = min(answer.series[0][0] for answer in assert_agreement(path) if answer.series)
    assert_agreement(path, (low + 5_000_000, low + 30_000_000))


def behind(name: str, *kernels: str, start_ns: int = 9_000) -> TraceBuilder:
    """An operation is launched late, then kernels, which show what the program is."""
    builder = TraceBuilder()
    *_, called = planted(builder, CAP + 300)
    start, end = called + start_ns, called + start_ns + 41_000
    how: How = {"launch": (called, called + 5_000), "stream": 20}
    if name == "copy":
        builder.memcpy(start, end, **how)
    else:
        builder.kernel(start, end, name, **how)
    for kernel in kernels:
        launch = called + 55_000, called + 58_000
        builder.kernel(called + 60_000, called + 70_000, kernel, launch=launch)
    return builder


def with_records() -> TraceBuilder:
    """They count before what is inferred, in any order: 10 ms, all of gemm but for 99 pauses."""
    builder = TraceBuilder()
    planted(builder, CAP + 100)
    builder.memcpy(6_000_000, 8_000_000, "DtoD", stream=9, tid=5, launch=(0, 5_000))
    for start, end in ((9_000_000, 15_000_000), (5_000_000, 9_000_000)):
        builder.raw(
            "CUPTI_ACTIVITY_KIND_OVERHEAD", globalTid=global_tid(), correlationId=900, nameId=1,
            start=start, end=end, overheadType=8, eventClass=103,
        )  # fmt: skip
    return builder


def deep(*, may_have_records: bool = False) -> TraceBuilder:
    """A queue of 900 operations, and no long launch."""
    builder = TraceBuilder()
    planted(builder, 900, cap=2000)
    if may_have_records:
        builder.raw("StringIds", id=99_999, value="Command Buffer Full")
    return builder


PROGRAMS: dict[str, Callable[[], TraceBuilder]] = {
    "late behind kernels of PyTorch": lambda: behind(NCCL, "at::native::add"),
    "late behind other kernels": lambda: behind(NCCL, "jacobi_kernel"),
    "late behind kernels of directives": lambda: behind(NCCL, "advance_x_257_gpu"),
    # The device computes but for the 1 µs between kernels; only another GPU can have waited.
    "late copy": lambda: behind("copy"),
    "late compute": lambda: behind("gemm"),
    "what waits for an event is not late by its launch": lambda: behind(NCCL, start_ns=60_000),
    "with records": with_records,
    "deep": deep,
    "deep, with records that were not exported": lambda: deep(may_have_records=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    path = PROGRAMS[name]().write(tmp_path)
    assert_agreement(path)
    kept(judged(path))
