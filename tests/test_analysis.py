"""Reports of an analysis that does not come to its end, and those that change under it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sample_traces.simulator import simulate_ddp
from tests.support.selection import known
from tests.support.traces import SAMPLE
from traceprof import analysis
from traceprof.analyses.verdict.judging import judge
from traceprof.analyses.verdict.run_result import Verdict
from traceprof.analysis import analyze, analyze_reports
from traceprof.execution import open_reports
from traceprof.progress import Progress
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.open import open_trace


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NsightTrace]]:
    """Return the reports that were closed so far."""
    opened: list[NsightTrace] = []
    asked: list[NsightTrace] = []
    close = NsightTrace.close

    def open_kept(path: Path, progress: Progress | None) -> NsightTrace:
        trace = open_trace(path, progress)
        assert isinstance(trace, NsightTrace)
        opened.append(trace)
        return trace

    def note(trace: NsightTrace) -> None:
        asked.append(trace)

    monkeypatch.setattr(open_reports, "open_trace", open_kept)
    monkeypatch.setattr(NsightTrace, "close", note)
    yield asked
    for each in opened:
        close(each)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("traceprof.analysis.judge", fail)


def test_an_error_closes_the_reports(
    closed: list[NsightTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(ValueError("planted"), monkeypatch)
    with pytest.raises(ValueError, match="planted"):
        analyze(SAMPLE)
    assert len(closed) == 1


def test_an_interrupt_leaves_them_to_threads_that_may_still_read(
    closed: list[NsightTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        analyze(SAMPLE)
    assert closed == []


def test_a_report_that_changes_after_it_was_measured_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of many ranks are opened again for the replay: another export may have the name."""
    reports = [tmp_path / f"{number}.sqlite" for number in range(3)]
    for number, path in enumerate(reports):
        simulate_ddp(path, gpus=1, steps=20, kernels_per_step=60 + 30 * number, seed=number)

    def judged(*args: Any, **options: Any) -> Verdict:
        reports[2].replace(reports[0])
        return judge(*args, **options)

    monkeypatch.setattr(analysis, "judge", judged)
    replay = known(known(analyze_reports(reports[:2], jobs=1).headline).savings.replay)
    assert "0.sqlite: it has changed since it was measured" in known(replay.refused)
