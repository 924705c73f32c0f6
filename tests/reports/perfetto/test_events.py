"""Events that overlap are told apart, whenever they begin and end; memory stays bounded."""

import io
from collections.abc import Iterator
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import Buffer

from tests.support.perfetto import read
from traceprof.reports.perfetto.events import Event, write_events
from traceprof.reports.perfetto.packets import PacketWriter

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12)


@given(SPANS)
@example([])
@example([(0, 10), (0, 10), (0, 0), (10, 0), (10, 5), (12, 8)])
@example([(0, 10), (5, 10), (10, 2), (15, 0)])
def test_every_event_comes_back(spans: list[tuple[int, int]]) -> None:
    ordered = sorted((start, -(start + length)) for start, length in spans)
    expected = [(start, -end) for start, end in ordered]
    file = io.BytesIO()
    writer = PacketWriter(file, 0)
    process = writer.process(1, "rank 0", 0)
    events = (Event(start, end, f"{start} {end}", "compute") for start, end in expected)
    write_events(writer, lambda: writer.track(process, "stream 7"), events)
    writer.flush()
    trace = read(file.getvalue())
    shown = trace.events(process, "stream 7")
    assert sorted((event.start_ns, event.end_ns) for event in shown) == sorted(expected)
    assert all(event.name == f"{event.start_ns} {event.end_ns}" for event in shown)


def test_times_before_the_first_session_are_shifted() -> None:
    file = io.BytesIO()
    writer = PacketWriter(file, 1000)
    process = writer.process(1, "rank 0", 0)
    writer.utc(10**18)
    write_events(writer, lambda: writer.track(process, "t"), [Event(-1000, -5, "a", "compute")])
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
    taken = 0

    def events(number: int) -> Iterator[Event]:
        nonlocal taken
        for taken in range(number):
            yield Event(2 * taken, 2 * taken + 1, f"kernel {taken % 50}", "compute")

    file = _Pieces()
    writer = PacketWriter(file, 0)
    write_events(writer, partial(writer.track, 0, "t"), events(30_000))
    writer.flush()
    assert len(file.sizes) > 10
    assert max(file.sizes) < 2 * sum(file.sizes) / len(file.sizes)
    assert taken == 29_999
