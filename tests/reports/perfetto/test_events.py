"""Events that cross get lanes of their own, whenever they begin and end; memory stays bounded."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.perfetto import read
from traceprof.reports.perfetto.events import NO_FLOWS, TrackEvents, noted
from traceprof.reports.perfetto.packets import PacketWriter, lanes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from traceprof.reports.perfetto.events import Span

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12)


def sorted_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return start and end, by start, longer ones first."""
    ordered = sorted((start, -(start + length)) for start, length in spans)
    return [(start, -end) for start, end in ordered]


@given(SPANS)
@example([])
@example([(0, 10), (0, 10), (0, 0), (10, 0), (10, 5), (12, 8)])
@example([(0, 10), (5, 10), (10, 2), (15, 0)])
def test_every_event_comes_back(spans: list[tuple[int, int]]) -> None:
    expected = sorted_spans(spans)
    file = io.BytesIO()
    writer = PacketWriter(file, 0)
    process = writer.process(1, "rank 0", 0)
    events: list[Span] = [
        (start, end, f"{start} {end}", "compute", {"start": start} if start % 3 == 0 else {})
        for start, end in expected
    ]
    writer.slices(lambda: writer.track(process, "stream 7"), noted(events))
    writer.flush()
    shown = read(file.getvalue()).events(process, "stream 7")
    assert sorted((event.start_ns, event.end_ns) for event in shown) == sorted(expected)
    for event in shown:
        assert event.name == f"{event.start_ns} {event.end_ns}"
        assert event.notes == ({"start": event.start_ns} if event.start_ns % 3 == 0 else {})


def first_fitting(spans: list[tuple[int, int]]) -> list[int]:
    """Return the lane of each span, one after the other."""
    on_lanes: list[list[tuple[int, int]]] = []
    chosen = []
    for start, end in spans:
        fitting = [
            number
            for number, lane in enumerate(on_lanes)
            if all(other_end <= start or end <= other_end for _, other_end in lane)
        ]
        if not fitting:
            fitting = [len(on_lanes)]
            on_lanes.append([])
        on_lanes[fitting[0]].append((start, end))
        chosen.append(fitting[0])
    return chosen


@given(SPANS)
@example([(0, 10), (5, 10), (7, 1), (20, 1)])
@example([(0, 4), (2, 6), (3, 1), (8, 8), (10, 2), (11, 7)])
def test_lanes_are_the_first_that_fit(spans: list[tuple[int, int]]) -> None:
    expected = sorted_spans(spans)
    start, end = np.array(expected, np.int64).reshape(-1, 2).T
    assert lanes(start, end).tolist() == first_fitting(expected)


def test_times_before_the_first_session_are_shifted() -> None:
    file = io.BytesIO()
    writer = PacketWriter(file, 1000)
    process = writer.process(1, "rank 0", 0)
    writer.utc(10**18)
    events = noted([(-1000, -5, "a", "compute", {})])
    writer.slices(lambda: writer.track(process, "t"), events)
    writer.flush()
    trace = read(file.getvalue())
    assert [(event.start_ns, event.end_ns) for event in trace.events(process, "t")] == [(0, 995)]
    assert trace.utc_ns == (10**18, 1000)


class _Pieces(io.BytesIO):
    """Remembers only how much was written at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, content: Buffer) -> int:
        self.sizes.append(memoryview(content).nbytes)
        return self.sizes[-1]


def test_what_is_held_does_not_grow_with_the_events() -> None:
    num = 500_000
    start = 2 * np.arange(num)
    names = [f"kernel {number}" for number in range(50)]
    zeros = np.zeros(num, np.int64)
    file = _Pieces()
    writer = PacketWriter(file, 0)
    events = TrackEvents(start, start + 1, start % 50, names, zeros, ["compute"], NO_FLOWS, {}, {})
    writer.slices(partial(writer.track, 0, "t"), events)
    writer.flush()
    assert len(file.sizes) > 10
    assert max(file.sizes) < 2 * sum(file.sizes) / len(file.sizes)
