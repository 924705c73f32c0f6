"""Synchronizing calls in steps: how many, how long, and what they cost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.reference.idle_causes import idle_causes
from tests.support.builders import TraceBuilder
from tests.support.claims import results_of
from tests.support.kept_claims import Kept
from traceprof.analyses import host_sync
from traceprof.findings import Finding
from traceprof.run.opening import Window

judged = partial(results_of, host_sync.run)


US = 1000


def two_reads() -> TraceBuilder:
    """Two steps with a read each; after the first the GPU idles for 50 us, after the second not.

    GPU   |=== kernel ===|D|     gap     |==== kernel ====|D||= kernel queued =|
    """
    builder = TraceBuilder().nvtx("step 0", 0, 120 * US).nvtx("step 1", 120 * US, 500 * US)
    builder.kernel(0, 100 * US, launch=(0, 5 * US))
    read = (10 * US, 112 * US)
    builder.memcpy(100 * US, 110 * US, "DtoH", bytes=4, pageable=True, launch=read)
    builder.api("cudaStreamSynchronize_v3020", 113 * US, 115 * US)
    builder.kernel(160 * US, 300 * US, launch=(150 * US, 155 * US))
    read = (160 * US, 312 * US)
    builder.memcpy(300 * US, 310 * US, "DtoH", bytes=4, pageable=True, stream=8, launch=read)
    builder.api("cudaStreamSynchronize_v3020", 313 * US, 315 * US)
    return builder.kernel(310 * US, 600 * US, launch=(156 * US, 158 * US))


def two_kernels(begin: int = 150) -> TraceBuilder:
    return TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(begin, begin + 5))


def one_wait(name: str = "cudaDeviceSynchronize_v3020") -> TraceBuilder:
    """Wait once; after it the GPU idles for 100 us, of which the wait makes all."""
    builder = TraceBuilder().kernel(0, 100 * US, launch=(0, 5 * US))
    builder.kernel(200 * US, 300 * US, launch=(150 * US, 195 * US))
    return builder.api(name, 20 * US, 140 * US)


@pytest.mark.parametrize(
    ("kernel", "call", "reads"),
    [
        ("at::native::add", "cudaStreamSynchronize_v3020", 0),
        ("jacobi_kernel", "cudaDeviceSynchronize_v3020", 1),
        ("jacobi_kernel", "cudaDeviceSynchronize_v3020", 0),
        ("jacobi_kernel", "cudaStreamSynchronize_v3020", 1),
        ("jacobi_kernel", "cudaStreamSynchronize_v3020", 0),
        ("advance_x_257_gpu", "cuStreamSynchronize", 1),
    ],
)
def test_advice_fits_the_program(
    tmp_path: Path, kernel: str, call: str, reads: int, kept: Kept
) -> None:
    builder = one_wait(call).kernel(300 * US, 310 * US, kernel, launch=(196 * US, 197 * US))
    for number in range(reads):
        at = (320 + 10 * number) * US
        builder.memcpy(at, at + US, "DtoH", launch=(198 * US, 199 * US))
    kept(host_sync.findings(judged(builder.write(tmp_path))[0]))


@pytest.mark.parametrize("pageable", [True, False])
def test_no_pinning_where_copies_are_pinned(tmp_path: Path, *, pageable: bool, kept: Kept) -> None:
    builder = one_wait("cudaStreamSynchronize_v3020")
    builder.kernel(300 * US, 310 * US, "at::native::add", launch=(196 * US, 197 * US))
    builder.memcpy(310 * US, 311 * US, pageable=pageable, launch=(198 * US, 199 * US))
    kept(host_sync.findings(judged(builder.write(tmp_path))[0]))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "h100x2_torchrun_nccl_on_compute_stream",
        "pairs/h100x2_per_layer_sync",
        "pairs/v100_mpas_0_noasync",
    ],
)
def test_without_steps_the_impact_is_what_gpu_idle_lays_to_waits(traces: Path, name: str) -> None:
    expected = [found.causes["sync_ns"] for found in idle_causes(traces / f"{name}.sqlite")]
    results = judged(traces / f"{name}.sqlite")
    assert [result.idle_ns for result in results] == expected
    for result in results:
        assert not result.metrics.in_steps
        for finding in host_sync.findings(result):
            assert isinstance(finding, Finding)
            costs = [evidence.label.rpartition(" ")[2] for evidence in finding.evidence]
            assert len(costs) == 5


def several_waits() -> TraceBuilder:
    """The first wait is longer than all idle time, but only 30 us of what follows others is its."""
    builder = TraceBuilder().kernel(0, 1000 * US, launch=(0, 5 * US))
    builder.api("cudaDeviceSynchronize_v3020", 10 * US, 1005 * US)
    for start in (1100 * US, 1600 * US, 2100 * US):  # each 100 us after the one before it
        builder.kernel(start, start + 400 * US, launch=(start - 50 * US, start - 5 * US))
    builder.api("cudaDeviceSynchronize_v3020", 1200 * US, 1505 * US)
    # 70 us more than its own time
    return builder.api("cudaDeviceSynchronize_v3020", 1920 * US, 2005 * US)


def another_call_costs_more() -> TraceBuilder:
    """Most time passes in an event's wait, behind which the queue is full."""
    builder = one_wait().kernel(300 * US, 900 * US, launch=(196 * US, 198 * US))
    builder.kernel(900 * US, 950 * US, launch=(199 * US, 200 * US))
    return builder.api("cudaEventSynchronize_v3020", 210 * US, 900 * US)


def after_the_last_operation() -> TraceBuilder:
    return one_wait().api("cudaDeviceSynchronize_v3020", 300 * US, 305 * US)


def outside_steps() -> TraceBuilder:
    builder = two_kernels().nvtx("step 0", 0, 10).nvtx("step 1", 140, 500)
    return builder.api("cudaDeviceSynchronize_v3020", 20, 105)


def on_a_thread_that_launches_nothing() -> TraceBuilder:
    return two_kernels().api("cudaEventSynchronize_v3020", 20, 105, tid=77)


def a_copy_then_a_launch_then_a_wait() -> TraceBuilder:
    builder = two_kernels(begin=120)
    builder.memcpy(100, 110, "DtoH", pageable=True, launch=(10, 112))
    return builder.api("cudaStreamSynchronize_v3020", 126, 290)


def two_waits_are_no_read() -> TraceBuilder:
    builder = two_kernels().api("cudaStreamSynchronize_v3020", 20, 105)
    return builder.api("cudaStreamSynchronize_v3020", 106, 107)


def a_wait_with_the_drivers_call() -> TraceBuilder:
    """It counts once, as `one_wait`."""
    return one_wait().api("cuCtxSynchronize", 21 * US, 139 * US)


def a_read_with_the_drivers_calls() -> TraceBuilder:
    """It counts once, for 102 + 7 ns."""
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5))
    builder.memcpy(100, 110, "DtoH", pageable=True, launch=(10, 112))
    builder.api("cuMemcpyDtoHAsync_v2", 11, 111)
    builder.api("cudaStreamSynchronize_v3020", 113, 120).api("cuStreamSynchronize", 114, 119)
    return builder.kernel(160, 300, launch=(130, 135))


def while_the_gpu_is_busy() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 1000, launch=(0, 5)).kernel(1000, 9000, launch=(6, 9))
    return builder.api("cudaStreamSynchronize_v3020", 10, 8000)


def a_free() -> TraceBuilder:
    """Allocating is another cause."""
    return one_wait("cudaFree_v3020")


def without_calls() -> TraceBuilder:
    return TraceBuilder().kernel(0, 9).without("CUPTI_ACTIVITY_KIND_RUNTIME")


def disagreeing_clocks() -> TraceBuilder:
    return TraceBuilder().kernel(0, 9, launch=(9_000_000, 9_000_010))


PROGRAMS = (
    *(one_wait, two_reads, several_waits, another_call_costs_more, after_the_last_operation),
    *(outside_steps, on_a_thread_that_launches_nothing, a_copy_then_a_launch_then_a_wait),
    *(two_waits_are_no_read, a_wait_with_the_drivers_call, a_read_with_the_drivers_calls),
    *(while_the_gpu_is_busy, a_free, without_calls, disagreeing_clocks),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[[], TraceBuilder], tmp_path: Path, kept: Kept) -> None:
    (result,) = judged(program().write(tmp_path))
    kept([result.metrics, *host_sync.findings(result)])


def test_what_a_wait_before_the_window_costs_inside_counts(tmp_path: Path, kept: Kept) -> None:
    (result,) = judged(one_wait().write(tmp_path), Window(120 * US, 300 * US))
    kept(host_sync.findings(result))
