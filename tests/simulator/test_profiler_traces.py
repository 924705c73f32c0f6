"""The same simulated run as an export of Nsight Systems and as traces of torch.profiler."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import RUN_SCENARIOS, simulate_run, simulate_scenario
from sample_traces.simulator.kineto_writer import write_traces
from tests.support.selection import long_after
from traceprof.analyses import links
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Options, analyze_reports
from traceprof.frames.open_run import open_run
from traceprof.trace.model.parts import Part
from traceprof.trace.open import open_trace

# Of what torch.profiler records as well as Nsight Systems: not of sleep, counters, MPI.
NAMES = (
    "host-sync", "healthy", "pageable-copy", "exposed-late-launch",
    "launch-queue-stall",
    "launch-queue-stall-unexported", "launch-queue-full-healthy", "exposed-copy", "peer-copies",
    "peer-copy-through-host", "launch-bound", "data-loading", "allocation-in-steps",
    "lost-run-ahead", "warm-up", "turnaround", "exposed-waiting", "full-precision-matmul",
    "pipeline-sends", "pipeline-copies", "overlap-slowdown",
)  # fmt: skip
REASONS = (
    "waiting_ns", "late_launch_ns", "queued_ns", "same_stream_ns", "needed_at_once_ns",
    "late_input_ns", "transfer_ns", "unknown_ns",
)  # fmt: skip


def analyzed(paths: Sequence[Path]) -> RunResult:
    return analyze_reports(paths, Options(savings=False))


def findings(result: RunResult, without: Sequence[str] = ()) -> list[Any]:
    rows = []
    for finding in result.findings:
        metrics = {key: value for key, value in finding.metrics.items() if key not in without}
        if finding.id == "gpu-idle":
            # Only the traces have operators, which show that the host ran.
            metrics["unknown_ns"] = number(metrics["unknown_ns"]) + number(
                metrics.pop("host_code_ns")
            )
            del metrics["host_in"]  # which may be such an operator
        rows.append((finding.id, finding.rank, finding.severity.name, repr(metrics)))
    return sorted(rows)


def number(value: Any) -> int:
    return 0 if value is None else int(value)


def assert_same(first: RunResult, second: RunResult, *, without: Sequence[str] = ()) -> None:
    breakdowns = [
        [(part.rank, part.whole, part.steps, part.judged) for part in result.breakdown]
        for result in (first, second)
    ]
    assert breakdowns[0]
    assert breakdowns[0] == breakdowns[1]
    assert findings(first, without) == findings(second, without)
    copies = [
        [(of_rank.rank, use.direction, use.peer, use.bytes, use.busy_ns)
         for of_rank in result.of(links) for use in of_rank.copies.uses]
        for result in (first, second)
    ]  # fmt: skip
    assert copies[0] == copies[1]
    missing = [
        {(reason.id, reason.rank) for reason in result.not_applicable} for result in (first, second)
    ]
    assert missing[0] == missing[1]


@pytest.mark.parametrize("name", long_after(1, NAMES))
def test_a_scenario_has_the_same_results(name: str, tmp_path: Path) -> None:
    export = tmp_path / "run.sqlite"
    simulate_scenario(name, export)
    traces = write_traces(export, tmp_path, "run", ".json.gz")
    assert_same(analyzed([export]), analyzed(traces))


def test_marks_are_the_same_in_both_formats(tmp_path: Path) -> None:
    export = tmp_path / "run.sqlite"
    truth = json.loads(simulate_scenario("marks", export).read_text())["marks"]
    assert len(truth) == 30
    for reports in ([export], write_traces(export, tmp_path, "run")):
        with open_run(*reports) as run:
            marks = run.marks()[["rank", "time_ns", "name"]]
        assert marks.to_dict("records") == truth


@pytest.mark.parametrize(
    "name",
    long_after(
        1,
        ["exposed-queued", "exposed-needed-at-once", "exposed-late-input", "nccl-serialization",
         "compute-stream-collective"],
    ),
)  # fmt: skip
def test_only_waiting_needs_one_clock(name: str, tmp_path: Path) -> None:
    # An export of all ranks has one clock. Traces of ranks have one each, and few operations to
    # compare them by: who waited is not known then, and what it waited is among the other reasons.
    export = tmp_path / "run.sqlite"
    simulate_scenario(name, export)
    results = [analyzed([export]), analyzed(write_traces(export, tmp_path, "run", ".json.gz"))]
    reasons = [
        {
            finding.rank: {key: number(finding.metrics[key]) for key in REASONS}
            for finding in result.findings
            if finding.id == "exposed-communication"
        }
        for result in results
    ]
    assert_same(results[0], results[1], without=REASONS)
    assert reasons[0].keys() == reasons[1].keys() != set()
    for rank, of_rank in reasons[0].items():
        others = reasons[1][rank]
        assert sum(of_rank.values()) == sum(others.values())
        moved_ns = of_rank["waiting_ns"] - others["waiting_ns"]
        assert all(abs(of_rank[key] - others[key]) <= abs(moved_ns) for key in REASONS)


@pytest.mark.long
@pytest.mark.parametrize("name", RUN_SCENARIOS)
def test_ranks_of_several_machines_have_the_same_results(name: str, tmp_path: Path) -> None:
    simulate_run(name, tmp_path / "run", per_rank=True)
    exports = sorted((tmp_path / "run").glob("*.sqlite"))
    assert len(exports) > 2
    traces = [trace for path in exports for trace in write_traces(path, tmp_path, path.stem)]
    first, second = analyzed(exports), analyzed(traces)
    assert_same(first, second)
    is_straggler = any(finding.id == "straggler" for finding in first.findings)
    assert is_straggler is ("straggler" in name)
    assert len(first.ranks.waits) == len(second.ranks.waits) > 0


def test_without_waits_the_option_that_is_missing_is_named(tmp_path: Path) -> None:
    export = tmp_path / "run.sqlite"
    simulate_scenario("exposed-queued", export)
    paths = (
        write_traces(export, tmp_path, "with"),
        write_traces(export, tmp_path, "without", with_waits=False),
    )
    traces = [open_trace(of_rank[0]) for of_rank in paths]
    for part in (Part.SYNCHRONIZATIONS, Part.EVENT_RECORDS):
        assert [trace.holds(part) for trace in traces] == [True, False]
        assert "enable_cuda_sync_events=True" in traces[1].how_to_collect(part)
    breakdowns = [[part.whole for part in analyzed(these).breakdown] for these in paths]
    assert breakdowns[0] == breakdowns[1]
    assert len(breakdowns[0]) == 2
