"""What is told while a report is read is what the analysis says when all of it was."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import TraceBuilder
from tests.support.opened import analysis_of
from tests.support.traces import SAMPLE, SAMPLES
from traceprof.analysis import analyze
from traceprof.errors import TraceFormatError, UsageError
from traceprof.execution import child_process as processes
from traceprof.execution.measuring import Options
from traceprof.execution.preview import previews
from traceprof.run.opening import assemble_run
from traceprof.trace.nsight import export as nsight
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analysis import Analysis


def without_steps(results: Sequence[BreakdownResult]) -> list[BreakdownResult]:
    """Return the same without steps, by the ranks' numbers."""
    return sorted((replace(result, steps=()) for result in results), key=lambda each: each.rank)


def assert_agrees(path: Path, options: Options) -> None:
    """Look at a report in both ways."""
    is_usual = options == Options()
    with analysis_of(path) if is_usual else closing(analyze(path, options=options)) as analysis:
        expected = without_steps(analysis.result.breakdown)
        ranks = [(rank.rank, rank.process, rank.device) for rank in analysis.run.ranks]
    with closing(open_trace(path)) as trace, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(trace), "api_calls", None)  # these come last
        run = assemble_run([trace], [options.ranks_of(trace)])
        looks = list(previews(run.ranks, options))
        assert [len(found) for found in looks] == [*range(1, len(expected) + 1)]
        assert [*(looks[-1] if looks else ())] == expected
        assert [(rank.rank, rank.process, rank.device) for rank in run.ranks] == ranks


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_it_agrees_with_the_analysis(path: Path) -> None:
    assert_agrees(path, Options())


def test_it_agrees_with_the_analysis_of_real_exports(real_trace: Path) -> None:
    assert_agrees(real_trace, Options())


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


@pytest.fixture
def _reading_in_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("no copies elsewhere")
    monkeypatch.setattr(processes, "can_fork", lambda: True)  # other tests leave threads behind
    monkeypatch.setattr(processes, "has_company", lambda: True)
    monkeypatch.setattr(nsight, "_WORTH_SHARING", 0)


@pytest.mark.usefixtures("_reading_in_copies")
def test_it_is_told_rank_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.Copy, "is_over", False)  # as if the calls were many
    told: list[Analysis] = []
    with closing(analyze(SAMPLE, early=told.append)) as analysis:
        expected = without_steps(analysis.result.breakdown)
        for number, each in enumerate(told, start=1):
            assert [*each.result.breakdown] == expected[:number]
            assert [*each.findings, *each.not_applicable, *each.notes, *each.result.failed] == []
            assert [rank.rank for rank in each.run.ranks] == [
                rank.rank for rank in analysis.run.ranks
            ]
    assert len(told) == len(expected) == 2


@pytest.mark.usefixtures("_reading_in_copies")
def test_only_as_long_as_the_report_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Analysis] = []

    def tell(analysis: Analysis) -> None:
        told.append(analysis)
        monkeypatch.setattr(processes.Copy, "is_over", True)

    monkeypatch.setattr(processes.Copy, "is_over", False)
    analyze(SAMPLE, early=tell).close()
    assert [len(each.result.breakdown) for each in told] == [
        1
    ]  # the other rank comes with all the rest


@pytest.mark.usefixtures("_reading_in_copies")
@pytest.mark.parametrize("second", ["healthy", "missing"])
def test_only_of_a_single_report(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.Copy, "is_over", False)
    told: list[Analysis] = []
    analyze(SAMPLE, SAMPLE.with_stem(second), early=told.append).close()
    assert told == []


def test_of_the_first_rank_where_nothing_is_left_to_read() -> None:
    told: list[Analysis] = []
    analyze(SAMPLE, early=told.append).close()
    assert [len(each.result.breakdown) for each in told] == [1]


@pytest.mark.usefixtures("_reading_in_copies")
def test_errors_are_those_of_the_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.Copy, "is_over", False)
    told: list[Analysis] = []
    with pytest.raises(UsageError, match="time range"):
        analyze(SAMPLE, options=Options(time_range=(5, 4)), early=told.append)
    path = TraceBuilder().kernel(0, 10).without("CUPTI_ACTIVITY_KIND_KERNEL", "start")
    with pytest.raises(TraceFormatError, match="start"):
        analyze(path.write(tmp_path / "t.sqlite"), early=told.append)
    assert told == []
