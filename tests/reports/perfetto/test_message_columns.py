"""Columns of messages are what Perfetto's own classes read."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from traceprof.reports.perfetto.packets import (
    fixed_numbers,
    merged,
    messages,
    numbers,
    tag_of,
    texts,
    written,
)

PACKET = tag_of(Trace(packet=[TracePacket()]))
TIME = tag_of(TracePacket(timestamp=1))
EVENT = tag_of(TracePacket(track_event=TrackEvent()))
VALUE = tag_of(TrackEvent(counter_value=1))
FLOW = tag_of(TrackEvent(flow_ids=[1]), num_bytes=8)

# As many bits as a number may have, so that each number of bytes occurs.
BITS = st.integers(0, 63).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
ROWS = st.tuples(BITS, st.tuples(BITS, st.sampled_from([1, -1])), BITS, st.booleans())
EDGES = [
    (value, (value, sign), value, sign > 0)
    for bits in range(7, 63, 7)
    for value in (0, (1 << bits) - 1, 1 << bits, (1 << 63) - 1)
    for sign in (1, -1)
]


@given(st.lists(ROWS, max_size=6))
@example(EDGES)
@example(EDGES[:8])
@example([])
def test_messages_are_those_of_the_classes(
    rows: list[tuple[int, tuple[int, int], int, bool]],
) -> None:
    trace = Trace()
    for time_ns, (value, sign), flow, has_flow in rows:
        packet = trace.packet.add(timestamp=time_ns)
        packet.track_event.counter_value = sign * value
        packet.track_event.flow_ids.extend([flow] * has_flow)
    times = np.array([row[0] for row in rows], np.int64)
    values = np.array([sign * value for _, (value, sign), _, _ in rows], np.int64)
    flows = np.array([row[2] for row in rows], np.int64)
    has_flows = np.array([row[3] for row in rows], np.bool_)
    event = numbers(VALUE, values) + fixed_numbers(FLOW, flows).where(has_flows)
    packets = messages(PACKET, numbers(TIME, times) + messages(EVENT, event))
    content, length = written(packets, len(rows))
    ends = np.cumsum(length).tolist()
    of_each = [content[slice(*span)].tobytes() for span in pairwise([0, *ends])]
    assert [Trace.FromString(one) for one in of_each] == [
        Trace(packet=[one]) for one in trace.packet
    ]
    assert ends[-1:] in ([], [len(content)])


@given(st.text(max_size=20), st.lists(st.tuples(st.integers(-9, 300), st.integers(0, 2))))
@example("eight_ns", [(1, 0), (2, 1), (3, 0), (4, 2)])
@example("", [(0, 2), (200, 1)])
def test_parts_are_merged_in_their_order(name: str, rows: list[tuple[int, int]]) -> None:
    trace = Trace()
    for value, kind in rows:
        event = trace.packet.add().track_event
        note = event.debug_annotations.add()
        note.int_value = value
        if kind:
            note.name = name
    values = np.array([value for value, _ in rows], np.int64)
    kinds = np.array([kind for _, kind in rows], np.int8)
    parts = []
    for kind in range(3):
        field = numbers(tag_of(DebugAnnotation(int_value=1)), values[kinds == kind])
        if kind:
            field += texts(tag_of(DebugAnnotation(name="")), name)
        annotation = messages(tag_of(TrackEvent(debug_annotations=[DebugAnnotation()])), field)
        packet = messages(PACKET, messages(EVENT, annotation))
        parts.append(written(packet, int((kinds == kind).sum())))
    assert Trace.FromString(merged(kinds, parts).tobytes()) == trace


def test_a_message_of_over_127_bytes_has_a_longer_length() -> None:
    event = numbers(VALUE, np.array([-1, 1]))
    for _ in range(14):
        event = event + fixed_numbers(FLOW, np.array([5, 6]))
    content, _ = written(messages(PACKET, messages(EVENT, event)), 2)
    trace = Trace()
    for value, flow in ((-1, 5), (1, 6)):
        packet = trace.packet.add()
        packet.track_event.counter_value = value
        packet.track_event.flow_ids.extend([flow] * 14)
    assert Trace.FromString(content.tobytes()) == trace
