"""Questions about a run: what other processes answer, and reports that stay open."""

import threading
from typing import Any

import pytest

from dashboards import questions
from dashboards.questions import WhatIfQuestion, questions_about, recording
from dashboards.server import serving
from dashboards.timeline import store
from dashboards.timeline.events import gpu_events
from dashboards.timeline.store import Timelines
from tests.support.selection import known
from tests.support.traces import SAMPLE, analysis_of
from tests.support.workers import MAX_WAIT_S, until
from traceprof.analysis import Analysis, analyze
from traceprof.comparison.sides import loaded
from traceprof.documents.analysis.records import document
from traceprof.errors import UsageError


class HeldUp:
    """A function that waits, when it is called, until the analysis was closed."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.has_begun, self._is_closed = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.has_begun.set()
        assert self._is_closed.wait(MAX_WAIT_S)
        return self._function(*arguments)

    def close(self, analysis: Analysis) -> None:
        """Close an analysis as soon as the function has been called."""
        assert self.has_begun.wait(MAX_WAIT_S)
        analysis.close()
        self._is_closed.set()


@pytest.fixture
def analysis() -> Analysis:
    return analyze(SAMPLE)


def is_closed(analysis: Analysis) -> bool:
    try:
        with analysis.run.in_use():
            return False
    except UsageError:
        return True


def read_ranges(analysis: Analysis) -> str:
    """Read something that no analysis keeps."""
    rank = analysis.run.ranks[0]
    return str(rank.trace.range_table(rank.process))


def test_a_question_is_answered(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = HeldUp(lambda *_: read_ranges(analysis))
    monkeypatch.setattr(questions, "answered", held_up)
    asked = questions_about(analysis).about(WhatIfQuestion(()))
    held_up.close(analysis)
    until(lambda: asked.is_over)
    assert asked.error is None
    assert asked.answer.startswith("RangeTable(")
    until(lambda: is_closed(analysis))


def test_what_is_asked_afterwards_is_refused(analysis: Analysis) -> None:
    analysis.close()
    asked = questions_about(analysis).about(WhatIfQuestion(()))
    until(lambda: asked.is_over)
    assert asked.error == f"cannot read {SAMPLE}: it has been closed"


def test_events_are_read(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = HeldUp(gpu_events)
    monkeypatch.setattr(store, "gpu_events", held_up)
    timelines = Timelines.of(analysis)
    assert not timelines._event_reader.finish([0], 0)
    held_up.close(analysis)
    assert timelines._event_reader.finish([0], MAX_WAIT_S)
    until(lambda: is_closed(analysis))


def test_a_request_is_answered(analysis: Analysis) -> None:
    held_up = HeldUp(lambda *_: [read_ranges(analysis).encode()])
    application = serving._reading(analysis, held_up)
    replies: list[bytes] = []
    request = threading.Thread(target=lambda: replies.extend(application({}, None)))
    request.start()
    held_up.close(analysis)
    request.join()
    assert replies[0].startswith(b"RangeTable(")
    assert is_closed(analysis)


UNEVEN = SAMPLE.with_stem("uneven-clock")


def test_without_training_and_steps_all_of_the_capture_is_drawn() -> None:
    with analysis_of(UNEVEN) as analysis:
        capture = document(analysis.result)
    capture.training, capture.steps = [], []
    side = known(recording(loaded([capture])))
    spans = {row.rank: (row.window_start_ns, row.window_ns) for row in capture.breakdown}
    assert {rank.rank: rank.judged for rank in side.ranks} == {
        rank: (start, start + length) for rank, (start, length) in spans.items()
    }
    longest = max(spans, key=lambda rank: (spans[rank][1], -rank))
    assert (side.rank, side.step) == (longest, None)
