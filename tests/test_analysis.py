"""What happens to the reports when an analysis does not come to its end."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.traces import SAMPLE
from traceprof.analysis import analyze
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
