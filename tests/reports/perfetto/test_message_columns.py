"""Columns of messages are what Perfetto's own classes read."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from traceprof.reports.perfetto.packets import fixed_numbers, messages, numbers, tag_of, written

PACKET = tag_of(Trace(packet=[TracePacket()]))
TIME = tag_of(TracePacket(timestamp=1))
EVENT = tag_of(TracePacket(track_event=TrackEvent()))
VALUE = tag_of(TrackEvent(counter_value=1))
FLOW = tag_of(TrackEvent(flow_ids=[1]), num_bytes=8)
NUM_FLOWS = 15  # of 9 bytes each: the length of a message with them takes two bytes, without one

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
        packet.track_event.flow_ids.extend([flow] * NUM_FLOWS * has_flow)
    times = np.array([row[0] for row in rows], np.int64)
    values = np.array([sign * value for _, (value, sign), _, _ in rows], np.int64)
    flows = np.array([row[2] for row in rows], np.int64)
    has_flows = np.array([row[3] for row in rows], np.bool_)
    event = numbers(VALUE, values)
    for _ in range(NUM_FLOWS):
        event += fixed_numbers(FLOW, flows).where(has_flows)
    packets = messages(PACKET, numbers(TIME, times) + messages(EVENT, event))
    content, length = written(packets, len(rows))
    ends = np.cumsum(length).tolist()
    of_each = [content[slice(*span)].tobytes() for span in pairwise([0, *ends])]
    assert [Trace.FromString(one) for one in of_each] == [
        Trace(packet=[one]) for one in trace.packet
    ]
    assert ends[-1:] in ([], [len(content)])
