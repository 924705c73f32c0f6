"""Programs without a GPU, recorded with the real nsys: what the report says is what they did."""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.recording import profile
from traceprof.analysis import Analysis, analyze

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "benchmarks" / "gloo_pairs.py"
COUNT = 1024
NUM_THREADS = 7
"""Each rank's Gloo has two threads and a loop for each of its two groups, beside the main one."""


def record(folder: Path, nvtx: Path | None, *program: str) -> Analysis:
    """Record a Python program with a folder's nvtx, or the installed one; analyse it."""
    report = folder / "report.nsys-rep"
    paths = [str(ROOT)] if nvtx is None else [str(nvtx), str(ROOT)]
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    profile("nsys", options, report, [sys.executable, *program], environment)
    return analyze(report)


@pytest.fixture(scope="module")
def two_pairs(
    tmp_path_factory: pytest.TempPathFactory, nsys: str, nvtx_0_2_11: Path
) -> tuple[Analysis, list[dict[str, Any]]]:
    """Record two pairs of ranks, and return what the report and what the program say.

    On a busy machine nsys may miss the names of threads: then it records once more.
    """
    for _ in range(2):
        folder = tmp_path_factory.mktemp("pairs")
        clocks = folder / "clocks.json"
        analysis = record(folder, nvtx_0_2_11, str(PAIRS), "2", str(clocks))
        analysis.close()
        if min(num_threads(analysis)) >= NUM_THREADS:
            break
    return analysis, json.loads(clocks.read_text())


def num_threads(analysis: Analysis) -> list[int]:
    """Return how many threads of each rank have names, 0 where that is not known."""
    return [result.num_threads or 0 for result in analysis.result.measured.shown_process_groups]


@pytest.mark.long
def test_the_cost_of_an_operation_is_what_the_programs_clock_says(
    two_pairs: tuple[Analysis, list[dict[str, Any]]],
) -> None:
    analysis, told = two_pairs
    assert [(rank.rank, rank.device) for rank in analysis.run.ranks] == [
        (rank, None) for rank in range(4)
    ]
    for result, clock in zip(analysis.result.collectives, told, strict=True):
        (use,) = result.uses
        assert (result.rank, use.operation) == (clock["rank"], "AllReduce")
        assert use.communicator == f"group {clock['group']}"
        assert (use.count, use.bytes) == (COUNT, 400 * COUNT)
        # The clock is read before and after the label, and inside of it.
        inside, outside = clock["inside_ns"], clock["outside_ns"]
        assert sum(inside) <= use.total_ns <= sum(outside)
        assert statistics.median(inside) <= use.median_ns <= statistics.median(outside) + 1


@pytest.mark.long
def test_where_the_time_of_the_pairs_went(two_pairs: tuple[Analysis, list[dict[str, Any]]]) -> None:
    analysis, _ = two_pairs
    for result, used in zip(analysis.result.breakdown, analysis.result.collectives, strict=True):
        assert result.whole.communication_ns == used.uses[0].total_ns  # calls follow each other
        assert (result.whole.compute_ns, result.whole.num_communication) == (0, COUNT)


@pytest.mark.long
def test_how_many_threads_share_how_many_cores(
    two_pairs: tuple[Analysis, list[dict[str, Any]]],
) -> None:
    analysis, _ = two_pairs
    (trace,) = analysis.run.traces
    assert trace.session.num_cores == os.cpu_count()
    assert trace.session.host
    assert min(num_threads(analysis)) >= NUM_THREADS


ONE_RANGE = """
import nvtx
nvtx.push_range("forward", domain="traceprof")
number = nvtx.start_range("all_reduce bytes=4 group=0 rank=5 size=8 seq=0", domain="traceprof")
nvtx.end_range(number)
nvtx.pop_range(domain="traceprof")
nvtx.start_range("broadcast bytes=4 group=0 rank=5 size=8 seq=1", domain="traceprof")
"""


@pytest.mark.long
def test_started_ranges_and_one_that_is_never_ended(
    tmp_path: Path, nsys: str, nvtx_0_2_11: Path
) -> None:
    analysis = record(tmp_path, nvtx_0_2_11, "-c", ONE_RANGE)
    analysis.close()
    (rank,) = analysis.run.ranks
    assert (rank.rank, rank.device) == (5, None)
    (result,) = analysis.result.breakdown
    assert result.whole.num_communication == 2
    assert 0 < result.whole.overlapped_communication_ns < result.whole.compute_ns
    # Nsight lets the open one last until the capture's end, long after the program's.
    assert result.whole.window_ns < 1_000_000_000
    assert any("open when the capture ended (1)" in note for _, note in analysis.notes)


def test_ranges_that_nvtx_did_not_write_are_missed_aloud(tmp_path: Path, nsys: str) -> None:
    # With Nsight Systems 2023.4 and an nvtx from 0.2.12 on there is a domain, and nothing else.
    analysis = record(tmp_path, None, "-c", ONE_RANGE)
    analysis.close()
    warned = any("nothing was recorded of the NVTX domain" in note for _, note in analysis.notes)
    assert warned != bool(analysis.run.ranks)
