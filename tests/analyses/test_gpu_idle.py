"""Why the GPU was idle, in small exports and in the simulated scenarios."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import TraceBuilder
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses import gpu_idle
from traceprof.analyses.gpu_idle import CAUSES, GpuIdleResult
from traceprof.findings import Finding, Severity
from traceprof.run.opening import Rank, Window, open_run
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

US = 1000


def opened(path: Path) -> Rank:
    (rank,) = open_run([open_trace(path)]).ranks
    return rank


def judged(
    tmp_path: Path, builder: TraceBuilder, window: Window | None = None
) -> tuple[GpuIdleResult, dict[str, int]]:
    """Return the result, and the causes that have a part in the idle time."""
    rank = opened(builder.write(tmp_path / "t.sqlite"))
    result = gpu_idle.run(rank, window or rank.window)
    parts = dict(zip(CAUSES, result.parts_ns or (), strict=True))
    assert sum(parts.values()) == result.idle_ns
    return result, {cause: part for cause, part in parts.items() if part}


def one(result: GpuIdleResult) -> Finding:
    (finding,) = gpu_idle.findings(result)
    assert isinstance(finding, Finding)
    return finding


def test_a_late_launch(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).kernel(180, 300, launch=(120, 170))
    result, parts = judged(tmp_path, builder)
    assert parts == {"launch-bound": 80}
    finding = one(result)
    assert (finding.severity, finding.impact_ns, finding.metrics["coverage"]) == (
        Severity.HIGH, 80, 1.0,
    )  # fmt: skip
    assert "because the host had not launched" in finding.title
    assert finding.evidence[0].label == "launch-bound: cudaLaunchKernel, after gemm before gemm"
    assert "CUDA graphs" in finding.advice[0]
    assert "No range names data loading" in finding.advice[-1]


@pytest.mark.parametrize(("returned", "part"), [(100, "other"), (101, "launch-bound")])
def test_what_was_launched_when_the_gap_began_waited_on_the_gpu(
    tmp_path: Path, returned: int, part: str
) -> None:
    builder = TraceBuilder().kernel(0, 100).kernel(180, 300, launch=(50, returned))
    assert judged(tmp_path, builder)[1] == {part: 80}


def test_what_starts_long_after_its_launch_waited_for_something_else(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).kernel(50_000, 60_000, launch=(200, 29_999))
    assert judged(tmp_path, builder)[1] == {"launch-bound": 29_899, "other": 20_001}


def test_a_synchronization_that_cost_the_lead(tmp_path: Path) -> None:
    # GPU   |=====|                 |==|      0-100, 190-200
    # host  [sync 20-110] python [launch]     150-160
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(190, 200, launch=(150, 160))
    builder.api("cudaStreamSynchronize_v3020", 20, 110)
    result, parts = judged(tmp_path, builder)
    assert parts == {"sync": 90}
    assert result.sync_api == "cudaStreamSynchronize"
    assert "(cudaStreamSynchronize)" in one(result).title
    label = one(result).evidence[0].label
    assert label == "sync: cudaStreamSynchronize, after gemm before gemm"


def test_no_more_is_laid_to_a_synchronization_than_it_lasted(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(900, 950, launch=(870, 880))
    builder.api("cudaStreamSynchronize_v3020", 60, 110)
    assert judged(tmp_path, builder)[1] == {"sync": 50, "launch-bound": 750}


def test_a_synchronization_entered_while_the_gpu_idles_counts_itself(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    builder.api("cudaMalloc_v3020", 150, 200)
    result, parts = judged(tmp_path, builder)
    assert parts == {"sync": 50, "launch-bound": 150}
    assert result.sync_api == "cudaMalloc"


@pytest.mark.parametrize(
    "name", ["cudaEventQuery_v3020", "cudaMallocAsync_v11020", "cudaMemcpyAsync_v3020",
             "cudaHostRegister_v4000", "cuMemcpyHtoDAsync_v2", "cudaMemcpyPeer_v4000"]
)  # fmt: skip
def test_calls_that_do_not_wait(tmp_path: Path, name: str) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    assert judged(tmp_path, builder.api(name, 50, 200))[1] == {"launch-bound": 200}


def test_the_read_of_a_loss(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(300, 350, launch=(280, 290))
    builder.memcpy(100, 110, "DtoH", bytes=4, pageable=True, launch=(10, 120))
    builder.api("cudaStreamSynchronize_v3020", 121, 122)
    result, parts = judged(tmp_path, builder)
    assert parts == {"sync": 110, "launch-bound": 80}
    assert result.sync_api == "cudaMemcpyAsync"


def test_a_read_into_pinned_memory_does_not_wait(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(300, 350, launch=(280, 290))
    builder.memcpy(100, 110, "DtoH", bytes=4, launch=(10, 120))
    assert judged(tmp_path, builder)[1] == {"launch-bound": 190}


def test_another_threads_synchronization_is_no_cause(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    builder.api("cudaEventSynchronize_v3020", 20, 110, tid=77)
    assert judged(tmp_path, builder)[1] == {"launch-bound": 200}


@pytest.mark.parametrize(("returned", "cause"), [(110, "sync"), (281, "launch-bound")])
def test_the_autograd_thread_goes_on_after_a_synchronization(
    tmp_path: Path, returned: int, cause: str
) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10))
    builder.kernel(180, 350, launch=(280 - 110, 290 - 110), tid=77)
    builder.api("cudaStreamSynchronize_v3020", 11, returned)
    assert judged(tmp_path, builder)[1] == {cause: 80}


def test_data_loading_goes_before_synchronizing(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    builder.api("cudaStreamSynchronize_v3020", 20, 220)
    builder.nvtx("dataloader next", 120, 200)
    result, parts = judged(tmp_path, builder)
    assert parts == {"data loading": 80, "sync": 120}
    assert result.names_data_loading


def test_data_loading_on_another_thread_is_no_cause(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    builder.nvtx("dataloader next", 120, 200, tid=77)
    assert judged(tmp_path, builder)[1] == {"launch-bound": 200}


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("dataloader next", True), ("data_loading", True), ("Load Batch", True),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("next(train_loader)", True), ("data", True), ("get_batch", True),
        ("batch-generator", True), ("aten::context(", False), ("data copy in 3", False),
        ("metadata", False), ("batch_norm", False), ("[DALI][CPU op] data_input", False),
    ],
)  # fmt: skip
def test_names_of_data_loading(tmp_path: Path, name: str, loads: bool) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(300, 350, launch=(280, 290))
    parts = judged(tmp_path, builder.nvtx(name, 0, 400))[1]
    assert parts == {"data loading" if loads else "launch-bound": 200}


def test_an_operation_without_a_launch_tells_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).kernel(160, 300, launch=False).kernel(340, 400)
    result, parts = judged(tmp_path, builder)
    assert parts == {"other": 60, "launch-bound": 40}
    assert result.coverage == pytest.approx(0.4)
    assert one(result).evidence[0].label.startswith("other: launch not in the capture")


def test_a_window_cuts_gaps_but_not_their_causes(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 10)).kernel(900, 950, launch=(870, 880))
    builder.api("cudaStreamSynchronize_v3020", 60, 110)
    assert judged(tmp_path, builder, Window(120, 200))[1] == {"sync": 30, "launch-bound": 50}
    (tmp_path / "t.sqlite").unlink()
    assert judged(tmp_path, builder, Window(940, 1000))[1] == {"other": 50}
    (tmp_path / "t.sqlite").unlink()
    assert judged(tmp_path, builder, Window(50, 50))[1] == {}


def test_without_api_calls_the_causes_are_not_known(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).kernel(160, 300)
    builder.without("CUPTI_ACTIVITY_KIND_RUNTIME")
    rank = opened(builder.write(tmp_path / "t.sqlite"))
    result = gpu_idle.run(rank, rank.window)
    finding = one(result)
    causes = ("launch_bound_ns", "sync_ns", "data_loading_ns", "other_ns")
    assert [finding.metrics[cause] for cause in causes] == [None] * 4
    assert (finding.metrics["idle_ns"], finding.metrics["coverage"]) == (60, 0.0)
    assert "--trace=cuda" in finding.advice[0]


def test_clocks_that_disagree_tell_no_causes(tmp_path: Path) -> None:
    # The read returns 2 ms before the GPU is said to have finished it.
    builder = TraceBuilder().kernel(0, 100).kernel(5000 * US, 9000 * US, launch=(10, 20))
    builder.memcpy(3000 * US, 3001 * US, "DtoH", bytes=4, pageable=True, launch=(30, 1000 * US))
    rank = opened(builder.write(tmp_path / "t.sqlite"))
    result = gpu_idle.run(rank, rank.window)
    assert result.parts_ns is None
    assert "clocks of host and GPU disagree" in one(result).advice[0]


def test_a_busy_gpu_is_silent(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 9901).kernel(9999, 20_000)
    assert gpu_idle.findings(judged(tmp_path, builder)[0]) == []
    (tmp_path / "t.sqlite").unlink()
    assert gpu_idle.findings(judged(tmp_path, TraceBuilder().kernel(5, 5))[0]) == []


def test_the_median_step(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step, idle in enumerate((10, 40, 20)):
        builder.nvtx(f"step {step}", 1000 * step, 1000 * step + 999)
        builder.kernel(1000 * step, 1000 * step + 1000 - idle)
    builder.nvtx("step 3", 3000, 3999).kernel(3000, 4000)
    assert judged(tmp_path, builder)[0].per_step_ns == 15


@pytest.mark.parametrize("scenario", ["data-loading", "host-sync", "launch-bound"])
def test_scenarios(scenario: str) -> None:
    """The model lays each gap to one cause; of a gap, the analysis splits the rest off."""
    truth = json.loads((SAMPLE_FOLDER / f"{scenario}.truth.json").read_text())
    expected = {
        each["rank"]: each["metrics"] for each in truth["findings"] if each["id"] == "gpu-idle"
    }
    assert expected
    for rank in open_run([open_trace(SAMPLE_FOLDER / f"{scenario}.sqlite")]).ranks:
        finding = one(gpu_idle.run(rank, rank.window))
        want = expected[rank.rank]
        assert finding.metrics["idle_ns"] == want["idle_ns"]
        for cause in ("launch_bound_ns", "sync_ns", "data_loading_ns", "other_ns"):
            assert finding.metrics[cause] == pytest.approx(want[cause], abs=want["idle_ns"] / 100)


def test_known_answers_on_real_traces(traces: Path) -> None:
    rank = opened(traces / "a100x4_ddp_baseline_rank0.sqlite")
    result = gpu_idle.run(rank, rank.window)
    assert (result.idle_ns, result.coverage) == (59_777_522, 1.0)
    rank = opened(traces / "a100x4_ddp_bucketcap100mb_2021.sqlite")
    unknown = gpu_idle.run(rank, rank.window).unknown
    assert unknown is not None and "clocks" in unknown.reason  # noqa: PT018
