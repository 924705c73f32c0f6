"""Synchronizing calls in steps: how many, how long, and what they cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import TraceBuilder
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses import host_sync
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.opening import Window, open_run
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from traceprof.analyses.host_sync import HostSyncResult


def judged(path: Path, window: Window | None = None) -> list[HostSyncResult]:
    ranks = open_run([open_trace(path)]).ranks
    return [host_sync.run(rank, window or rank.window) for rank in ranks]


def two_reads() -> TraceBuilder:
    """Two steps with a read each; after the first the GPU idles for 50 ns, after the second not.

    GPU   |=== kernel ===|D|     gap     |==== kernel ====|D||= kernel queued =|
    """
    builder = TraceBuilder().nvtx("step 0", 0, 120).nvtx("step 1", 120, 500)
    builder.kernel(0, 100, launch=(0, 5))
    builder.memcpy(100, 110, "DtoH", bytes=4, pageable=True, launch=(10, 112))
    builder.api("cudaStreamSynchronize_v3020", 113, 115)
    builder.kernel(160, 300, launch=(150, 155))
    builder.memcpy(300, 310, "DtoH", bytes=4, pageable=True, stream=8, launch=(160, 312))
    builder.api("cudaStreamSynchronize_v3020", 313, 315)
    return builder.kernel(310, 600, launch=(156, 158))


def test_reads_in_steps(tmp_path: Path) -> None:
    (result,) = judged(two_reads().write(tmp_path / "t.sqlite"))
    assert (result.num_syncs, result.api, result.api_blocked_ns) == (2, "cudaMemcpyAsync", 254)
    assert result.blocked_ns == 102 + 2 + 152 + 2
    assert result.per_step_ns == (104 + 154) // 2
    assert result.idle_ns == 50
    (finding,) = host_sync.findings(result)
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.impact_ns) == (Severity.LOW, 50)
    assert finding.title.startswith("The host synchronized 2 times in training steps, mostly in")
    (evidence,) = finding.evidence
    assert (evidence.start_ns, evidence.end_ns) == (110, 160)
    assert evidence.label == "cudaMemcpyAsync, before gemm"
    assert {
        "num_syncs",
        "blocked_ns",
        "api",
        "coverage",
        "blocked_per_step_ns",
    } <= finding.metrics.keys()


def test_synchronizing_outside_steps_does_not_count(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("step 0", 0, 10).nvtx("step 1", 140, 500)
    builder.kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(150, 160))
    builder.api("cudaDeviceSynchronize_v3020", 20, 105)
    (result,) = judged(builder.write(tmp_path / "t.sqlite"))
    assert (result.num_syncs, result.idle_ns, result.api) == (0, 0, None)
    assert host_sync.findings(result) == []


def test_without_steps_all_in_the_window_count(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(150, 160))
    builder.api("cudaDeviceSynchronize_v3020", 20, 105)
    builder.api("cudaDeviceSynchronize_v3020", 300, 305)  # after the window
    (result,) = judged(builder.write(tmp_path / "t.sqlite"))
    (finding,) = host_sync.findings(result)
    assert isinstance(finding, Finding)
    assert (finding.metrics["num_syncs"], finding.metrics["in_steps"]) == (1, 0)
    assert "synchronized once (no training step is marked)" in finding.title
    assert finding.metrics["blocked_per_step_ns"] is None


def test_threads_that_launch_nothing_do_not_count(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(150, 160))
    builder.api("cudaEventSynchronize_v3020", 20, 105, tid=77)
    assert judged(builder.write(tmp_path / "t.sqlite"))[0].num_syncs == 0


def test_waiting_for_a_busy_gpu_is_silent(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 1000, launch=(0, 5)).kernel(1000, 9000, launch=(6, 9))
    builder.api("cudaStreamSynchronize_v3020", 10, 8000)
    (result,) = judged(builder.write(tmp_path / "t.sqlite"))
    assert (result.num_syncs, result.blocked_ns, result.idle_ns) == (1, 7990, 0)
    assert host_sync.findings(result) == []


def test_allocating_gets_advice_of_its_own(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5)).kernel(200, 300, launch=(150, 160))
    builder.api("cudaFree_v3020", 20, 140)
    (finding,) = host_sync.findings(judged(builder.write(tmp_path / "t.sqlite"))[0])
    assert isinstance(finding, Finding)
    assert "expandable_segments" in finding.advice[0]


def test_a_copy_and_a_later_synchronization_are_two(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100, launch=(0, 5))
    builder.memcpy(100, 110, "DtoH", pageable=True, launch=(10, 112))
    builder.kernel(160, 300, launch=(120, 125))
    builder.api("cudaStreamSynchronize_v3020", 126, 290)
    assert judged(builder.write(tmp_path / "t.sqlite"))[0].num_syncs == 2


@pytest.mark.parametrize("edge", ["no calls", "disagreeing clocks"])
def test_what_cannot_be_judged_is_said(tmp_path: Path, edge: str) -> None:
    if edge == "no calls":
        builder = TraceBuilder().kernel(0, 9).without("CUPTI_ACTIVITY_KIND_RUNTIME")
    else:
        builder = TraceBuilder().kernel(0, 9, launch=(9_000_000, 9_000_010))
    (result,) = judged(builder.write(tmp_path / "t.sqlite"))
    (missing,) = host_sync.findings(result)
    assert isinstance(missing, NotApplicable)
    assert missing.id == "host-sync"


def test_scenario() -> None:
    truth = json.loads((SAMPLE_FOLDER / "host-sync.truth.json").read_text())
    expected = [each["metrics"] for each in truth["findings"] if each["id"] == "host-sync"]
    assert expected
    for result, want in zip(judged(SAMPLE_FOLDER / "host-sync.sqlite"), expected, strict=True):
        (finding,) = host_sync.findings(result)
        assert isinstance(finding, Finding)
        assert finding.severity == Severity.MEDIUM
        assert {key: finding.metrics[key] for key in want} == want


@pytest.mark.parametrize("scenario", ["healthy", "data-loading", "launch-bound", "pageable-copy"])
def test_silent_scenarios(scenario: str) -> None:
    for result in judged(SAMPLE_FOLDER / f"{scenario}.sqlite"):
        assert host_sync.findings(result) == []


def test_known_answers_on_a_real_trace(traces: Path) -> None:
    """Each of 31 steps reads the loss and waits for two pinned copies; the GPU stays busy."""
    (result,) = judged(traces / "a100_single_4workers_dataloader.sqlite")
    assert (result.num_syncs, result.api) == (93, "cudaMemcpyAsync")
    assert host_sync.findings(result) == []
