"""Advice is chosen by what ran: each remedy is shown by a recording that has its evidence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reference.already import contradictions, no_remedies, rows_of
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.profiler_events import annotation, call, event, kernel, write
from tests.support.selection import known
from tests.support.traces import closed_analysis
from traceprof.analyses.gpu_idle.advice import BY_LOADER
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.findings import Finding

US, MS = 1_000, 1_000_000
MAIN = 4242, 1
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"


def finding(path: Path, id_: str) -> Finding:
    analysis = closed_analysis(path)
    return next(one for one in analysis.result.findings if one.id == id_)


def with_verdict(path: Path, id_: str) -> list[Finding | str]:
    result = closed_analysis(path).result
    first = next(one for one in result.findings if one.id == id_)
    return [first, *known(three_lines(result)).lines]


def idle_in(*names: str, runs: str = TORCH) -> list[Any]:
    """Return events of a program of PyTorch whose host is in ranges between kernels."""
    events = []
    for number in range(8):
        begin = 1000 + 10_000 * number
        events += [
            annotation(f"ProfilerStep#{number}", begin - 10, begin + 9_900),
            annotation(names[number % len(names)], begin + 1_000, begin + 9_000),
            call(begin, begin + 5, number=number + 1),
            kernel(begin + 10, begin + 500, name=runs, number=number + 1),
        ]
    return events


FUSED = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>()"


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        *((["save checkpoint"], TORCH), (["evaluate"], TORCH), (["garbage collection"], TORCH)),
        *((["evaluate, all ranks"], TORCH), (["save (shard 1, of 4)"], TORCH)),  # named in full
        ([f"load layer {number}" for number in range(4)], TORCH),  # one place
        (["Optimizer.step#Adam.step"], FUSED),  # no fused one is advised where one runs
        *(([f"enumerate(DataLoader)#{loader}.__next__"], TORCH) for loader in BY_LOADER),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_places_of_the_host(names: list[str], runs: str, tmp_path: Path, kept: Kept) -> None:
    path = write(tmp_path / "trace.json", idle_in(*names, runs=runs))
    kept(with_verdict(path, "gpu-idle"))


def test_compilation_in_steps_is_called_that(tmp_path: Path, kept: Kept) -> None:
    events, begin = [], 1000
    for number in range(9):
        length = 60_000 if number in {3, 5} else 1_000
        name = "compile_fx (dynamo_timed)" if number in {3, 5} else "log"
        events += [
            annotation(f"ProfilerStep#{number}", begin - 10, begin + length - 20),
            annotation(name, begin + 600, begin + length - 30),
            call(begin, begin + 5, number=number + 1),
            kernel(begin + 10, begin + 900, name=TORCH, number=number + 1),
        ]
        begin += length
    kept(with_verdict(write(tmp_path / "trace.json", events), "gpu-idle"))


def offloading(trace: TraceBuilder, at: int) -> None:
    trace.nvtx(f"FSDP::pre_forward (layers.{at % 7})", at, at + 20 * US)
    trace.memcpy(at + 10 * US, at + 510 * US, launch=(at, at + 5 * US))


def batches(trace: TraceBuilder, at: int) -> None:
    trace.memcpy(at + 10 * US, at + 510 * US, launch=(at, at + 5 * US))


@pytest.mark.parametrize("copy", [offloading, batches])
def test_parameters_that_are_streamed_are_no_batches(
    copy: Callable[[TraceBuilder, int], None], tmp_path: Path, kept: Kept
) -> None:
    trace = TraceBuilder()
    for number in range(20):
        at = MS + 2 * MS * number
        copy(trace, at)
        trace.kernel(at + 520 * US, at + 1500 * US, TORCH, launch=(at + 6 * US, at + 9 * US))
    kept([finding(trace.write(tmp_path / "t.sqlite"), "exposed-copy")])


UNSCALE = "void at::native::_amp_non_finite_check_and_unscale_cuda_<float>(int)"


@pytest.mark.parametrize("is_scaler", [True, False])
def test_a_gradient_scaler_reads_by_itself(is_scaler: bool, tmp_path: Path, kept: Kept) -> None:
    trace = TraceBuilder()
    for number in range(20):
        at = MS + 2 * MS * number
        trace.nvtx(f"step {number}", at, at + 1900 * US)
        trace.kernel(at + 10 * US, at + 900 * US, TORCH, launch=(at, at + 5 * US))
        name = UNSCALE if is_scaler else TORCH
        trace.kernel(at + 900 * US, at + 950 * US, name, launch=(at + 6 * US, at + 9 * US))
        trace.memcpy(
            at + 960 * US, at + 962 * US, "DtoH", bytes=4, pageable=True,
            launch=(at + 10 * US, at + 965 * US),
        )  # fmt: skip
        for place in range(8):
            late = at + 1300 * US + 60 * US * place
            trace.kernel(late + 8 * US, late + 30 * US, TORCH, launch=(late, late + 7 * US))
    kept([finding(trace.write(tmp_path / "t.sqlite"), "host-sync")])


def test_changes_of_layout_come_before_fusion(tmp_path: Path, kept: Kept) -> None:
    layout = "void cudnn::ops::nchwToNhwcKernel<float>(cudnn::ops::nchw2nhwc_params_t<float>)"
    trace = TraceBuilder()
    for number in range(40):
        at = MS + 200 * US * number
        for place, name in enumerate([layout, TORCH, TORCH, "ampere_sgemm_128x64_tn"]):
            begin = at + 50 * US * place
            trace.kernel(begin, begin + 49 * US, name, launch=(0, 10))
    kept(with_verdict(trace.write(tmp_path / "t.sqlite"), "unfused-kernels"))


@pytest.mark.parametrize("num_gaps", [1, 4])
def test_one_long_silence_is_named_with_its_place(
    num_gaps: int, tmp_path: Path, kept: Kept
) -> None:
    """Nothing is known of it but where and how long: once it is no usual wait."""
    events = [call(0, 5, number=1), kernel(10, 5_000, name=TORCH, number=1)]
    for number in range(num_gaps):
        begin = 20_000 * (number + 1)
        events += [call(begin, begin + 5, number=number + 2)]
        events += [kernel(begin + 10, begin + 500, name=f"late_{number}", number=number + 2)]
    kept([finding(write(tmp_path / "trace.json", events), "gpu-idle")])


def test_an_operator_is_named_where_no_range_is(tmp_path: Path, kept: Kept) -> None:
    events = [
        kernel(100, 200, name=TORCH), call(80, 85),
        event("cpu_op", "aten::item", 300, 3000, MAIN),
        kernel(4200, 4300, name=TORCH, number=2), call(4190, 4195, number=2),
    ]  # fmt: skip
    kept([finding(write(tmp_path / "t.json", events), "gpu-idle")])


def copies(trace: TraceBuilder, at: int) -> None:
    trace.memcpy(at, at + 900 * US, pageable=True, launch=(at - 5 * US, at + 900 * US))


def results(trace: TraceBuilder, at: int) -> None:
    trace.memcpy(at, at + 900 * US, "DtoH", launch=(at - 5 * US, at - 2 * US))


def chains(trace: TraceBuilder, at: int) -> None:
    for place in range(9):
        begin = at + 100 * US * place
        trace.kernel(begin, begin + 99 * US, TORCH, launch=(at - 5 * US, at - 4 * US))


def matrices(trace: TraceBuilder, at: int) -> None:
    name = "ampere_sgemm_128x64_tn"
    trace.kernel(at, at + 900 * US, name, launch=(at - 5 * US, at - 4 * US))


def waits(trace: TraceBuilder, at: int) -> None:
    trace.api("cudaDeviceSynchronize_v3020", at - 5 * US, at + 200 * US)
    for place in range(6):
        begin = at + 300 * US + 100 * US * place
        trace.kernel(begin + 10 * US, begin + 20 * US, "late", launch=(begin, begin + 9 * US))


def allocations(trace: TraceBuilder, at: int) -> None:
    trace.api("cudaMalloc_v3020", at, at + 890 * US)


def slow_copies(trace: TraceBuilder, at: int) -> None:
    trace.memcpy(at, at + 900 * US, bytes=5_000_000, launch=(at - 5 * US, at - 2 * US))


def staged(trace: TraceBuilder, at: int) -> None:
    """Two legs of a copy to device 1, which begin with one call."""
    for offset, kind, device in ((0, 2, 0), (400, 1, 1)):
        begin = at + offset * US
        trace.raw(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=begin, end=begin + 400 * US, deviceId=device,
            contextId=1, streamId=7, correlationId=at, globalPid=1 << 48 | 1000 << 24,
            bytes=MS, copyKind=kind, srcKind=2, dstKind=2,
        )  # fmt: skip


def in_steps(happens: Callable[[TraceBuilder, int], None], steps: range, path: Path) -> Path:
    """Write a program of ten steps of PyTorch; something happens in some of them."""
    trace = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", num_sms=108)
    for number in range(10):
        at = MS + 2 * MS * number
        trace.nvtx(f"step {number}", at, at + 2 * MS - US).nvtx("aten::mm", at, at + US)
        end = at + (2 if happens is allocations and number not in steps else 1) * MS - 10 * US
        trace.kernel(at + 10 * US, end, "gemm_f16f16", grid=(432, 1, 1), launch=(at, at + US))
        if number in steps:
            happens(trace, at + 1010 * US)
    return trace.write(path)


@pytest.mark.parametrize(
    ("happens", "id_", "kind"),
    [
        (copies, "pageable-copy", "HtoD"),
        (results, "exposed-copy", "DtoH"),
        (chains, "unfused-kernels", None),
        (matrices, "full-precision-matmul", None),
        (waits, "host-sync", "Synchronize"),
        (allocations, "gpu-idle", "Malloc"),
        (slow_copies, "link-underused", None),
        (staged, "peer-copy-through-host", None),
    ],
)
def test_nothing_is_advised_that_happened_once(
    happens: Callable[[TraceBuilder, int], None], id_: str, kind: str | None, tmp_path: Path
) -> None:
    """The same happens in each step, then in one only, then in one of the two that there are."""
    often = finding(in_steps(happens, range(10), tmp_path / "often.sqlite"), id_)
    assert not any(line.startswith("Look at step") for line in often.advice)
    path = in_steps(happens, range(4, 5), tmp_path / "once.sqlite")
    once = finding(path, id_)
    looks = [line for line in once.advice if line.startswith("Look at step 4, the only one of 10")]
    assert looks
    assert id_ == "gpu-idle" or [*once.advice] == looks  # the GPU also idles for other reasons
    assert not [line for line in once.advice if line.startswith("Allocate before the loop")]
    facts = {kind and f"{kind} in one step only"} - {None}
    assert {why for why, _ in contradictions([rows_of(path)], often.advice)} >= facts
    assert not facts & no_remedies(rows_of(tmp_path / "often.sqlite")).keys()
    assert not contradictions([rows_of(path)], once.advice)
    two = closed_analysis(path, steps=(4, 6)).result
    [unknown] = [one for one in two.findings if one.id == id_]
    assert not any(line.startswith("Look at step") for line in unknown.advice)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("id_", ["unfused-kernels", "gpu-idle"])
def test_programs_that_are_compiled(id_: str, compiled: bool, tmp_path: Path, kept: Kept) -> None:
    """Chains of kernels that run long, or of short ones whose launches take long."""
    trace, name = TraceBuilder(), "triton_poi_fused_add_0" if compiled else "gemm_f16f16"
    for number in range(20):
        at = 2 * MS * number
        trace.kernel(at + 20 * US, at + 60 * US, name, launch=(at, at + 19 * US))
        if id_ == "unfused-kernels":
            chains(trace, at + 70 * US)
        trace.api("cudaEventQuery_v3020", at + 1_000 * US, at + 2_000 * US - US)
    kept([finding(trace.nvtx("aten::mm", 0, 1).write(tmp_path), id_)])


@pytest.mark.parametrize(
    ("kernel", "num"),
    [("nvkernel_solve_F1L204_2", 10), ("nvkernel_solve_F1L204_2", 2), ("solve", 10)],
)
@pytest.mark.parametrize(("id_", "is_pageable"), [("pageable-copy", True), ("exposed-copy", False)])
def test_copies_for_each_kernel_of_directives(
    id_: str, is_pageable: bool, kernel: str, num: int, tmp_path: Path, kept: Kept
) -> None:
    """Ten kernels of 200 µs; before some of them, what they need is copied for 600 µs."""
    trace = TraceBuilder()
    for number in range(10):
        at = MS * number
        if number < num:
            copy = at, at + 600 * US
            trace.memcpy(*copy, bytes=MS, pageable=is_pageable, launch=(at - 5 * US, copy[1]))
        trace.kernel(at + 610 * US, at + 810 * US, kernel, launch=(at + 601 * US, at + 605 * US))
    kept([finding(trace.write(tmp_path), id_)])


def test_the_first_allocations_of_host_memory_need_no_action(tmp_path: Path, kept: Kept) -> None:
    trace = TraceBuilder().nvtx("aten::mm", 0, US).kernel(10 * US, 20 * US, TORCH, launch=(0, US))
    trace.api("cudaHostAlloc_v3020", 30 * US, 2 * MS)
    trace.kernel(2 * MS + 20 * US, 2 * MS + 30 * US, TORCH, launch=(2 * MS, 2 * MS + 10 * US))
    kept(with_verdict(trace.write(tmp_path / "t.sqlite"), "gpu-idle"))
