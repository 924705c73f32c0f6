"""What is told while a report is read is what the analysis says when all of it was."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.changes import on_one_clock
from tests.support.traces import SAMPLE, SAMPLES, analysis_of
from tests.support.workers import RowCount
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analysis import Analysis, analyze
from traceprof.errors import TraceFormatError, UsageError
from traceprof.execution.open_reports import previews
from traceprof.execution.options import Options
from traceprof.execution.sections import SectionReader
from traceprof.run.opening import assemble_run
from traceprof.run.rank import WindowKind
from traceprof.trace.open import open_trace


def without_steps(results: Sequence[BreakdownResult]) -> list[BreakdownResult]:
    """Return the same without steps and training, by the ranks' numbers."""
    whole = [
        BreakdownResult(result.rank, result.whole, (), result.whole, WindowKind.WHOLE, None)
        for result in results
    ]
    return sorted(whole, key=lambda result: result.rank)


def assert_agrees(path: Path, options: Options) -> None:
    is_usual = options == Options()
    with analysis_of(path) if is_usual else closing(analyze(path, options=options)) as analysis:
        expected = without_steps(analysis.result.breakdown)
        ranks = [(rank.rank, rank.process, rank.device) for rank in analysis.run.ranks]
    with closing(open_trace(path)) as trace, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trace), "api_calls", None)  # these come last
        run = assemble_run([trace], [options.opened_ranks_of(trace)])
        previewed = list(previews(run.ranks, options))
        assert [len(found) for found in previewed] == [*range(1, len(expected) + 1)]
        assert without_steps(previewed[-1] if previewed else ()) == expected
        assert [(rank.rank, rank.process, rank.device) for rank in run.ranks] == ranks


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_it_agrees_with_the_analysis(path: Path) -> None:
    assert_agrees(path, Options())


@pytest.mark.cpu_export
def test_it_agrees_with_the_analysis_of_real_exports(real_trace: Path, tmp_path: Path) -> None:
    """But for clocks, which it does not compare: that takes API calls."""
    assert_agrees(on_one_clock(real_trace, tmp_path / "t.sqlite"), Options())


def test_of_a_time_range() -> None:
    with closing(analyze(SAMPLE)) as analysis:
        start, end = analysis.run.ranks[0].operations.span_ns
    middle = (start + end) // 2
    assert_agrees(SAMPLE, Options(time_range=(middle, None)))


def test_of_some_steps_nothing_is_known_yet() -> None:
    options = Options(steps=(1, 3))
    with closing(open_trace(SAMPLE)) as trace:
        assert list(previews(options.ranks_of(trace), options)) == []


# -- while a report is read -----------------------------------------------------------------------


class Listener(RowCount):
    def __init__(self) -> None:
        super().__init__()
        self.partials: list[Analysis] = []

    def partial(self, result: Analysis) -> None:
        self.partials.append(result)


def still_read(monkeypatch: pytest.MonkeyPatch, *, is_so: bool = True) -> None:
    monkeypatch.setattr(SectionReader, "are_coming", is_so)


def test_it_is_told_rank_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    still_read(monkeypatch)
    listener = Listener()
    with closing(analyze(SAMPLE, listener=listener)) as analysis:
        expected = without_steps(analysis.result.breakdown)
        for number, partial in enumerate(listener.partials, start=1):
            assert [*partial.result.breakdown] == expected[:number]
            others = (partial.findings, partial.not_applicable, partial.notes)
            assert [*others, partial.result.failed] == [()] * 4
            assert [rank.rank for rank in partial.run.ranks] == [
                rank.rank for rank in analysis.run.ranks
            ]
    assert len(listener.partials) == len(expected) == 2
    assert listener.expected == listener.read > 0


def test_only_as_long_as_the_report_is_being_read() -> None:
    listener = Listener()
    analyze(SAMPLE, listener=listener).close()
    # The other rank comes with all the rest.
    assert [len(partial.result.breakdown) for partial in listener.partials] == [1]


@pytest.mark.parametrize("second", ["healthy", "missing"])
def test_only_of_a_single_report(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    still_read(monkeypatch)
    listener = Listener()
    analyze(SAMPLE, SAMPLE.with_stem(second), listener=listener).close()
    assert listener.partials == []


def test_errors_are_those_of_the_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still_read(monkeypatch)
    listener = Listener()
    with pytest.raises(UsageError, match="time range"):
        analyze(SAMPLE, options=Options(time_range=(5, 4)), listener=listener)
    path = TraceBuilder().kernel(0, 10).without("CUPTI_ACTIVITY_KIND_KERNEL", "start")
    with pytest.raises(TraceFormatError, match="start"):
        analyze(path.write(tmp_path), listener=listener)
    assert listener.partials == []
