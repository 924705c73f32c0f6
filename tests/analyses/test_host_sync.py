"""Synchronizing calls in steps: how many, how long, and what they cost."""

from functools import partial
from pathlib import Path

import pytest

from tests.reference.idle_causes import idle_causes
from tests.support.builders import TraceBuilder
from tests.support.claims import only_finding, only_gap, results_of
from traceprof.analyses import host_sync
from traceprof.findings import Finding, Severity
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


def test_reads_in_steps(tmp_path: Path) -> None:
    (result,) = judged(two_reads().write(tmp_path))
    expected = (2, "cudaMemcpyAsync", 254 * US)
    assert (result.metrics.num_syncs, result.metrics.api, result.metrics.api_blocked_ns) == expected
    assert result.metrics.blocked_ns == (102 + 2 + 152 + 2) * US
    assert result.metrics.blocked_per_step_ns == (104 + 154) * US // 2
    assert result.idle_ns == 50 * US
    finding = only_finding(host_sync.findings(result))
    assert (finding.severity, finding.impact_ns) == (Severity.LOW, 50 * US)
    assert finding.title.startswith("The host synchronized 2 times in training steps, mostly in")
    # The evidence is the call that waited, not the gap that it left.
    (evidence,) = finding.evidence
    assert (evidence.start_ns, evidence.end_ns) == (10 * US, 112 * US)
    assert evidence.label == "cudaMemcpyAsync: the GPU then idles for 50 µs"
    assert {
        "num_syncs", "blocked_ns", "api", "coverage", "blocked_per_step_ns",
    } <= finding.metrics.keys()  # fmt: skip


def two_kernels(begin: int = 150) -> TraceBuilder:
    return TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(begin, begin + 5))


@pytest.mark.parametrize(
    ("builder", "num_syncs"),
    [
        # Outside steps.
        (
            two_kernels()
            .nvtx("step 0", 0, 10)
            .nvtx("step 1", 140, 500)
            .api("cudaDeviceSynchronize_v3020", 20, 105),
            0,
        ),
        # On a thread that launches nothing.
        (two_kernels().api("cudaEventSynchronize_v3020", 20, 105, tid=77), 0),
        # Between a copy and the next wait something is launched.
        (
            two_kernels(begin=120)
            .memcpy(100, 110, "DtoH", pageable=True, launch=(10, 112))
            .api("cudaStreamSynchronize_v3020", 126, 290),
            2,
        ),
        # Two waits in a row are no read.
        (
            two_kernels()
            .api("cudaStreamSynchronize_v3020", 20, 105)
            .api("cudaStreamSynchronize_v3020", 106, 107),
            2,
        ),
    ],
)
def test_waits_that_count(tmp_path: Path, builder: TraceBuilder, num_syncs: int) -> None:
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_syncs, result.metrics.api is None) == (num_syncs, num_syncs == 0)
    assert bool(host_sync.findings(result)) == (result.idle_ns > 0)


def one_wait(name: str = "cudaDeviceSynchronize_v3020") -> TraceBuilder:
    """Wait once; after it the GPU idles for 100 us, of which the wait makes all."""
    builder = TraceBuilder().kernel(0, 100 * US, launch=(0, 5 * US))
    builder.kernel(200 * US, 300 * US, launch=(150 * US, 195 * US))
    return builder.api(name, 20 * US, 140 * US)


def test_idle_time_is_of_the_last_wait_until_its_cost_is_used_up(tmp_path: Path) -> None:
    """The first wait is longer than all idle time, but only 30 us of what follows others is its."""
    builder = TraceBuilder().kernel(0, 1000 * US, launch=(0, 5 * US))
    builder.api("cudaDeviceSynchronize_v3020", 10 * US, 1005 * US)
    for start in (1100 * US, 1600 * US, 2100 * US):  # each 100 us after the one before it
        builder.kernel(start, start + 400 * US, launch=(start - 50 * US, start - 5 * US))
    builder.api("cudaDeviceSynchronize_v3020", 1200 * US, 1505 * US)
    builder.api("cudaDeviceSynchronize_v3020", 1920 * US, 2005 * US)  # 70 us more than its own time
    (result,) = judged(builder.write(tmp_path))
    assert result.idle_ns == 300 * US
    labels = [(place.start_ns // US, place.label) for place in result.evidence]
    assert labels == [
        (10, "cudaDeviceSynchronize: the GPU then idles for 130 µs"),
        (1200, "cudaDeviceSynchronize: the GPU then idles for 100 µs"),
        (1920, "cudaDeviceSynchronize: the GPU then idles for 70 µs"),
    ]


def test_the_call_that_the_gpu_idles_for_is_named_where_it_is_another_one(tmp_path: Path) -> None:
    """Most time passes in an event's wait, behind which the queue is full."""
    builder = one_wait().kernel(300 * US, 900 * US, launch=(196 * US, 198 * US))
    builder.kernel(900 * US, 950 * US, launch=(199 * US, 200 * US))
    builder.api("cudaEventSynchronize_v3020", 210 * US, 900 * US)
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.api, result.costliest_api) == (
        "cudaEventSynchronize", "cudaDeviceSynchronize",
    )  # fmt: skip
    finding = only_finding(host_sync.findings(result))
    assert finding.title == (
        "The host synchronized 2 times, mostly in cudaEventSynchronize: the GPU was idle for"
        " 100 µs because of it, mostly after cudaDeviceSynchronize"
    )


def test_without_steps_all_in_the_window_count(tmp_path: Path) -> None:
    builder = one_wait().api("cudaDeviceSynchronize_v3020", 300 * US, 305 * US)  # after the window
    (result,) = judged(builder.write(tmp_path))
    finding = only_finding(host_sync.findings(result))
    assert (finding.metrics["num_syncs"], finding.metrics["in_steps"]) == (1, 0)
    assert "synchronized once, in" in finding.title
    assert finding.metrics["blocked_per_step_ns"] is None


def test_a_call_and_the_drivers_call_in_it_count_once(tmp_path: Path) -> None:
    (once,) = judged(one_wait().write(tmp_path / "once.sqlite"))
    builder = one_wait().api("cuCtxSynchronize", 21 * US, 139 * US)
    (twice,) = judged(builder.write(tmp_path / "twice.sqlite"))
    assert (once.metrics.num_syncs, once.metrics.blocked_ns, once.idle_ns) == (
        1,
        120 * US,
        100 * US,
    )
    assert twice == once
    (evidence,) = twice.evidence
    assert (evidence.start_ns, evidence.end_ns) == (20 * US, 140 * US)
    assert evidence.label.startswith("cudaDeviceSynchronize: the GPU then idles for 100 µs")


def test_a_read_with_the_drivers_calls_counts_once(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5))
    builder.memcpy(100, 110, "DtoH", pageable=True, launch=(10, 112))
    builder.api("cuMemcpyDtoHAsync_v2", 11, 111)
    builder.api("cudaStreamSynchronize_v3020", 113, 120).api("cuStreamSynchronize", 114, 119)
    builder.kernel(160, 300, launch=(130, 135))
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_syncs, result.metrics.blocked_ns) == (1, 102 + 7)


def test_what_a_wait_before_the_window_costs_inside_counts(tmp_path: Path) -> None:
    (result,) = judged(one_wait().write(tmp_path), Window(120 * US, 300 * US))
    assert (result.metrics.num_syncs, result.idle_ns) == (0, 80 * US)
    assert only_finding(host_sync.findings(result)).title == (
        "The host had waited in cudaDeviceSynchronize: the GPU was idle for 80 µs because of it"
    )


def test_waiting_for_a_busy_gpu_is_silent(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 1000, launch=(0, 5)).kernel(1000, 9000, launch=(6, 9))
    builder.api("cudaStreamSynchronize_v3020", 10, 8000)
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_syncs, result.metrics.blocked_ns, result.idle_ns) == (1, 7990, 0)
    assert host_sync.findings(result) == []


def test_allocating_is_another_cause(tmp_path: Path) -> None:
    (result,) = judged(one_wait("cudaFree_v3020").write(tmp_path))
    assert (result.metrics.num_syncs, result.idle_ns) == (0, 0)


@pytest.mark.parametrize(
    ("kernel", "call", "reads", "first", "unsaid"),
    [
        ("at::native::add", "cudaStreamSynchronize_v3020", 0, "set_sync_debug_mode", "OpenACC"),
        ("jacobi_kernel", "cudaDeviceSynchronize_v3020", 1, "cudaStreamWaitEvent", "torch"),
        ("jacobi_kernel", "cudaDeviceSynchronize_v3020", 0, "cudaStreamWaitEvent", "OpenACC"),
        ("jacobi_kernel", "cudaStreamSynchronize_v3020", 1, "cudaEventSynchronize", "torch"),
        ("jacobi_kernel", "cudaStreamSynchronize_v3020", 0, "cudaStreamWaitEvent", "torch"),
        ("advance_x_257_gpu", "cuStreamSynchronize", 1, "OpenACC: async(queue)", "torch"),
    ],
)
def test_advice_fits_the_program(
    tmp_path: Path, kernel: str, call: str, reads: int, first: str, unsaid: str
) -> None:
    builder = one_wait(call).kernel(300 * US, 310 * US, kernel, launch=(196 * US, 197 * US))
    for number in range(reads):
        at = (320 + 10 * number) * US
        builder.memcpy(at, at + US, "DtoH", launch=(198 * US, 199 * US))
    finding = only_finding(host_sync.findings(judged(builder.write(tmp_path))[0]))
    assert first in finding.advice[0]
    assert unsaid not in " ".join(finding.advice)


@pytest.mark.parametrize("pageable", [True, False])
def test_no_pinning_where_copies_are_pinned(tmp_path: Path, *, pageable: bool) -> None:
    builder = one_wait("cudaStreamSynchronize_v3020")
    builder.kernel(300 * US, 310 * US, "at::native::add", launch=(196 * US, 197 * US))
    builder.memcpy(310 * US, 311 * US, pageable=pageable, launch=(198 * US, 199 * US))
    finding = only_finding(host_sync.findings(judged(builder.write(tmp_path))[0]))
    assert ("pin_memory" in " ".join(finding.advice)) == pageable


@pytest.mark.parametrize("edge", ["no calls", "disagreeing clocks"])
def test_what_cannot_be_judged_is_said(tmp_path: Path, edge: str) -> None:
    if edge == "no calls":
        builder = TraceBuilder().kernel(0, 9).without("CUPTI_ACTIVITY_KIND_RUNTIME")
    else:
        builder = TraceBuilder().kernel(0, 9, launch=(9_000_000, 9_000_010))
    (result,) = judged(builder.write(tmp_path))
    missing = only_gap(host_sync.findings(result))
    assert missing.id == "host-sync"
    assert result.metrics == host_sync.HostSyncMetrics(0, 0, None, 0, None, 0, 0.0)


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
