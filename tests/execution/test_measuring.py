"""Reports measured one by one: the same result, small parts, and losses that are said."""

import gc
import json
import pickle
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sample_traces.simulator import simulate_ddp
from tests.support.builders import TraceBuilder
from tests.support.claims import validator
from tests.support.commands import alter, in_process, printed
from tests.support.selection import known, rows_long_after
from tests.support.traces import SAMPLE, closed_analysis
from tests.support.workers import alone, reports_of_run, written
from traceprof.analyses.measurements import MeasuredReport
from traceprof.analyses.registry import ANALYSES
from traceprof.analysis import Options, analyze, analyze_reports
from traceprof.cli.main import EXIT_FINDINGS
from traceprof.errors import TraceFileError, TraceFormatError, UsageError, WorkerError
from traceprof.execution import measuring, workers
from traceprof.execution.measuring import Task, measure_file
from traceprof.run.rank import Rank
from traceprof.run.summary import FailedReport
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import Trace
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.open import open_trace


@pytest.fixture
def damaged(tmp_path: Path, reports: list[Path]) -> list[Path]:
    content = reports[0].read_bytes()
    cut, other = tmp_path / "cut.sqlite", tmp_path / "other.sqlite"
    cut.write_bytes(content[: len(content) // 2])
    other.write_text("no report at all, but some text")
    return [cut, tmp_path / "missing.sqlite", other]


def measured(path: Path, options: Options | None = None) -> MeasuredReport:
    result = measure_file(Task(path, path, options or Options()))
    assert isinstance(result, MeasuredReport)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_labelled", "num_reports"), rows_long_after(1, [(True, 2), (True, 4), (False, 4)])
)
def test_open_and_closed_reports_tell_the_same(
    tmp_path: Path, simulated: list[Path], is_labelled: bool, num_reports: int
) -> None:
    paths = simulated if is_labelled else reports_of_run(tmp_path, is_labelled=False)
    paths = paths[:num_reports]
    with closing(analyze(*paths)) as analysis:
        assert written(analysis.result) == alone(paths)
        assert [rank.trace for rank in analysis.run.ranks[::2]] == list(analysis.run.traces)


def test_ranks_without_a_gpu_are_told_of_when_their_report_is_closed(tmp_path: Path) -> None:
    paths = []
    for pid in (7, 8):
        builder = TraceBuilder().label("forward", 0, 50, pid=pid).label("step 0", 0, 90, pid=pid)
        builder.label("all_reduce bytes=8 dtype=float32 group=0 size=2 seq=1", 60, 90, pid=pid)
        builder.label("to d2h bytes=8 pinned=1 non_blocking=0", 50, 60, pid=pid)
        paths.append(builder.write(tmp_path / f"{pid}.sqlite"))
    analysis = closed_analysis(*paths, savings=True)
    assert any("copies to or from a GPU" in note for _, note in analysis.notes)
    assert written(analysis.result) == alone(paths)


@pytest.mark.slow
def test_what_is_kept_of_a_report_grows_with_its_communication_not_with_its_events(
    tmp_path: Path,
) -> None:
    sizes = {}
    for num_kernels in (60, 960):
        path = tmp_path / f"{num_kernels}.sqlite"
        simulate_ddp(path, gpus=1, steps=30, kernels_per_step=num_kernels)
        result = measured(path)
        (rank,) = result.ranks
        assert rank.measurements is not None
        arrived = rank.measurements.taken["arrivals"].unpacked
        sizes[num_kernels] = len(pickle.dumps(result)), len(arrived)
    assert sizes[960][0] < 20_000 + 400 * sizes[960][1]  # some 40 columns of its communication
    (few, num_few), (many, num_many) = sizes.values()
    assert many / few < 1.1 * num_many / num_few


def test_an_error_is_the_same_when_it_comes_from_another_process() -> None:
    for kind in (TraceFileError, TraceFormatError, UsageError, WorkerError):
        error = kind("cannot\nread", "it is\x00bad", "do else")
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own)
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_another_version_is_refused(reports: list[Path]) -> None:
    task = replace(Task(reports[0], reports[0], Options()), version="0.0.1")
    with pytest.raises(WorkerError, match=r"and 0\.0\.1 is needed"):
        measure_file(task)


def test_a_report_is_named_as_it_was_given(reports: list[Path]) -> None:
    result = measure_file(Task(Path("given.sqlite"), reports[0], Options()))
    assert isinstance(result, MeasuredReport)
    assert result.facts.path == Path("given.sqlite")


@pytest.mark.long
def test_damaged_reports_are_left_out_and_said_to_be(
    reports: list[Path], damaged: list[Path]
) -> None:
    mixed = [damaged[0], reports[0], damaged[1], *reports[1:], damaged[2]]
    outcome = in_process("analyze", "--format", "json", *mixed)
    found, whole = outcome.document, json.loads(alone(reports)[0])
    validator().validate(found)
    lost = found.pop("lost_reports")
    assert whole.pop("lost_reports") == []
    assert found["headline"]["verdict"].pop("trust") == "3 reports left out"
    assert whole["headline"]["verdict"].pop("trust") is None
    long, short = (one["headline"]["verdict"].pop("action") for one in (whole, found))
    assert long.startswith(short)  # a doubt leaves it fewer words
    assert found == whole
    assert [report["path"] for report in lost] == [str(path) for path in damaged]
    reasons = [f"traceprof: left out: {report['reason']}" for report in lost]
    assert outcome.err.splitlines() == reasons
    assert all(report["path"] in report["reason"] for report in lost)
    assert " ".join(printed("analyze", *mixed).split()).count("left out: ") == 3
    assert in_process("analyze", "--fail-on", "low", *mixed).code == EXIT_FINDINGS


def test_open_reports_are_analysed_without_the_damaged_ones(
    reports: list[Path], damaged: list[Path]
) -> None:
    with closing(analyze(damaged[0], *reports[:2], damaged[1])) as analysis:
        assert [report.path for report in analysis.result.failed] == damaged[:2]
        assert [trace.path for trace in analysis.run.traces] == reports[:2]
        assert {rank.report for rank in analysis.run.ranks} == {0, 1}
        assert analysis.run.ranks[-1].trace is analysis.run.traces[-1]


def test_a_report_whose_ranks_cannot_be_told_is_closed(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    ranks_of, close = Options.opened_ranks_of, NsightTrace.close

    def fail(options: Options, trace: Trace) -> list[Rank]:
        if trace.path == reports[1]:
            raise ZeroDivisionError("by accident")
        return ranks_of(options, trace)

    def noted(trace: NsightTrace) -> None:
        closed.append(trace.path)
        close(trace)

    monkeypatch.setattr(Options, "opened_ranks_of", fail)
    monkeypatch.setattr(NsightTrace, "close", noted)
    with closing(analyze(*reports[:2])) as analysis:
        assert [report.path for report in analysis.result.failed] == closed == [reports[1]]


def test_nothing_but_damaged_reports_is_an_error(damaged: list[Path]) -> None:
    outcome = in_process("analyze", *damaged)
    begin = "traceprof: none of the 3 reports can be analysed, the first because: "
    assert outcome.line.startswith(begin)
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)
    alone = in_process("analyze", damaged[1])
    assert alone.line.startswith(f"traceprof: cannot read {damaged[1]}: ")
    with pytest.raises(TraceFileError):
        analyze(damaged[1])


def test_info_leaves_damaged_reports_out(reports: list[Path], damaged: list[Path]) -> None:
    mixed = (damaged[0], reports[0], damaged[1], reports[1], damaged[2])
    outcome = in_process("info", *mixed)
    assert outcome.out == printed("info", *reports[:2])
    assert outcome.err == in_process("analyze", reports[0], *damaged).err  # worded alike
    assert outcome.err.count("traceprof: left out: cannot read ") == 3


def test_info_of_a_report_that_is_damaged_where_it_is_read_last(
    reports: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.sqlite"
    wrong.write_bytes(reports[1].read_bytes())
    alter(wrong, f"UPDATE {schema.NVTX.name} SET start = 'late'")
    outcome = in_process("info", wrong, reports[0])
    assert outcome.out.count("exported by") == 1
    assert f"left out: cannot read {wrong}" in outcome.err


def test_a_mistake_of_ours_costs_one_report(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = open_trace

    def fail(path: Path) -> Trace:
        if path == reports[1]:
            raise ZeroDivisionError("by accident")
        return original(path)

    monkeypatch.setattr(measuring, "open_trace", fail)
    (lost,) = analyze_reports(reports[:2]).failed
    assert "internal error: ZeroDivisionError: by accident" in str(lost.error)
    monkeypatch.setenv("TRACEPROF_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        analyze_reports(reports[:2])


def test_steps_are_asked_of_the_whole_run(tmp_path: Path) -> None:
    paths = []
    for first in (0, 10):
        builder = TraceBuilder()
        for step in range(first, first + 2):
            at = 1000 * step
            builder.nvtx(f"step {step}", at, at + 900)
            builder.kernel(at + 30, at + 500)
        paths.append(builder.write(tmp_path / f"{first}.sqlite"))
    found = analyze_reports(paths, Options(steps=(10, 12)))
    assert [row.rank for row in found.breakdown] == [1]
    with pytest.raises(UsageError, match="the steps found are 0 to 11"):
        analyze_reports(paths, Options(steps=(5, 7)))
    assert isinstance(measure_file(Task(Path("x"), tmp_path / "x", Options())), FailedReport)


@pytest.mark.usefixtures("can_fork")
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_measured_report_is_let_go_of_at_once(
    num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the help of the garbage collector: the next report needs the memory."""
    opened = []

    def open_and_watch(*arguments: Any) -> Trace:
        trace = open_trace(*arguments)
        opened.append(weakref.ref(trace))
        return trace

    monkeypatch.setattr(measuring, "open_trace", open_and_watch)
    monkeypatch.setattr(workers, "MIN_OPERATIONS_OF_A_PROCESS", 1)
    gc.disable()
    try:
        measure_file(Task(SAMPLE, SAMPLE, Options()), num_processes)
        assert [trace() for trace in opened] == [None]
    finally:
        gc.enable()


def test_what_needs_api_calls_says_that_there_are_none(tmp_path: Path) -> None:
    needs = [analysis for analysis in ANALYSES if Part.API_CALLS in analysis.requires]
    ids = {id_ for analysis in needs for id_ in analysis.findings}
    assert {"host-sync", "launch-queue-stall"} <= ids
    for launch in (False, (0, 5)):
        builder = TraceBuilder().kernel(10, 19, launch=launch)
        result = closed_analysis(builder.write(tmp_path / f"{launch}.sqlite"))
        why = "the report has no CUDA API calls: what the host did is not known"
        missing = [gap for gap in result.not_applicable if gap.reason == why]
        assert {gap.id for gap in missing} & ids == (set() if launch else ids)
        assert all("--trace=cuda" in known(gap.how_to_collect) for gap in missing)
        assert launch or not ids & {finding.id for finding in result.findings}
