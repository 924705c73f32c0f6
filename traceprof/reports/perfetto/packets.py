"""Packets of a Perfetto trace, written as they are made.

Few are objects of Perfetto's classes. TrackEvents and values of counters are Protobuf messages as
columns of bytes, many of one kind at a time: numpy encodes a column of fields, its numbers with as
many bytes as the largest one needs. Tags come from Perfetto's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from traceprof.errors import one_line
from traceprof.intervals import Int64, Mask
from traceprof.reports.perfetto.events import TrackEvents
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from google.protobuf.message import Message


Bytes = npt.NDArray[np.uint8]


def lanes(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return for each event the first track on which it follows all others, or lies inside one.

    Starts ascend; tracks count from 0.
    """
    lane = np.zeros(len(start_ns), np.int64)
    is_crossing = ~_is_nested(start_ns, end_ns)
    if not is_crossing.any():
        return lane
    # What ended before others begin has nothing to do with them: few are looked at one by one.
    latest = np.maximum.accumulate(end_ns)
    island = np.cumsum(np.append(True, start_ns[1:] >= latest[:-1]))
    rows = np.flatnonzero(is_in(island, island[is_crossing]))
    open_ends: list[list[int]] = []
    chosen = []
    for start, end in zip(start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
        number = 0
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                break
            number += 1
        else:
            ends = []
            open_ends.append(ends)
        ends.append(end)
        chosen.append(number)
    lane[rows] = chosen
    return lane


def nested_order(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the order of the begins and ends of n events that lie inside each other.

    int64[2 n]: i for where event i begins, ~i for where it ends. Events ascend by start.
    """
    begun, ending, before = _ends(start_ns, end_ns)
    order = np.empty(2 * len(start_ns), np.int64)
    number = np.arange(len(start_ns))
    order[number + before] = number
    order[begun[ending] + number] = ~ending
    return order


def _ends(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Return positions of ends among begins, for events that nest (last begun, first ended).

    For each event, how many have begun when it ends; the events by when they end; and for each
    event, how many have ended when it begins.
    """
    number = np.arange(len(start_ns))
    if (end_ns[:-1] <= start_ns[1:]).all():  # one after the other: the most of a stream
        return number + 1, number, number
    begun = np.maximum(np.searchsorted(start_ns, end_ns), number + 1)
    ending = len(number) - 1 - np.argsort(begun[::-1], kind="stable")
    before = np.searchsorted(begun[ending], number, side="right")
    return begun, ending, before


def _is_nested(start_ns: Int64, end_ns: Int64) -> Mask:
    """Return whether the end of each event, by end, is that of the last one that began before."""
    begun, ending, before = _ends(start_ns, end_ns)
    number = np.arange(len(start_ns))
    # As deep as when it began, and no sooner than the end before it.
    depth = number - before
    is_nested = np.empty(len(number), np.bool_)
    is_nested[ending] = depth[ending] == begun[ending] - number - 1
    is_nested[ending[1:]] &= np.diff(end_ns[ending]) >= 0
    return is_nested


_BITS = 7  # of a number in each byte; the eighth says that another byte follows
_MORE = 1 << _BITS


class RowFields(Record, frozen=True):
    """Fields of n messages."""

    # in order, uint8[n or 1, width]: of each message, or of all; and which messages have them,
    # bool[n], None for all
    columns: tuple[tuple[Bytes, Mask | None], ...]
    length: Int64  # int64[n] or int64[1], how many bytes are written of each

    def __add__(self, other: RowFields) -> RowFields:
        return RowFields((*self.columns, *other.columns), self.length + other.length)

    def where(self, is_present: Mask) -> RowFields:
        """Return the same fields, of some messages only: bool[n]."""
        columns = tuple(
            (content, is_present if known is None else is_present & known)
            for content, known in self.columns
        )
        return RowFields(columns, np.where(is_present, self.length, 0))


class EncodedMessages(NamedTuple):
    """Messages, one after the other."""

    content: Bytes  # their bytes
    length: Int64  # int64[n], how many are of each


def tag_of(message: Message, num_bytes: int = 1) -> bytes:
    """Return the tag of the only field of a message, whose value takes `num_bytes` bytes."""
    content: bytes = message.SerializeToString()
    return content[:-num_bytes]


def numbers(tag: bytes, values: Int64) -> RowFields:
    """Return a field of numbers, int64[n] or int64[1], as many bytes as the largest one needs."""
    value = np.asarray(values).astype(np.uint64)
    top = int(value.max()) if len(value) else 0
    shifts = np.arange(0, max(top.bit_length(), 1), _BITS).astype(np.uint64)
    content = (value[:, np.newaxis] >> shifts).astype(np.uint8) & np.uint8(_MORE - 1)
    content[:, :-1] |= _MORE
    return _after(tag, content)


def fixed_numbers(tag: bytes, values: Int64) -> RowFields:
    """Return a field of numbers of eight bytes each, int64[n]."""
    return _after(tag, np.asarray(values).astype("<u8")[:, np.newaxis].view(np.uint8))


def messages(tag: bytes, fields: RowFields) -> RowFields:
    """Return a field that is a message of fields."""
    return numbers(tag, fields.length) + fields


def texts(tag: bytes, text: str) -> RowFields:
    """Return a field that is the same text in all messages."""
    content = text.encode()
    return numbers(tag, _all(len(content))) + _after(content, np.empty((1, 0), np.uint8))


def written(fields: RowFields, num: int) -> EncodedMessages:
    """Put n messages together."""
    width = sum(content.shape[1] for content, _ in fields.columns)
    rows, kept = np.empty((num, width), np.uint8), np.ones((num, width), np.bool_)
    first = 0
    for content, known in fields.columns:
        part = slice(first, first + content.shape[1])
        rows[:, part] = content
        if known is not None:
            kept[:, part] = known[:, np.newaxis]
        first = part.stop
    return EncodedMessages(rows[kept], np.broadcast_to(fields.length, num))


def merged(kind: npt.NDArray[np.int8], parts: Sequence[EncodedMessages]) -> Bytes:
    """Interleave messages of several kinds in one order.

    `kind`: int8[n], which part each is of. `parts`: the messages of each kind, in order.
    """
    if len(kind) == len(parts[0].length):
        return parts[0].content
    length = np.empty(len(kind), np.int64)
    for number, part in enumerate(parts):
        length[kind == number] = part.length
    owner = np.repeat(kind, length)
    content = np.empty(len(owner), np.uint8)
    for number, part in enumerate(parts):
        content[owner == number] = part.content
    return content


def _after(tag: bytes, content: Bytes) -> RowFields:
    before = np.frombuffer(tag, np.uint8)[np.newaxis]
    length = np.full(1, len(tag) + content.shape[1], np.int64)
    return RowFields(((before, None), (content, None)), length)


_BEGIN, _END = proto.TrackEvent.TYPE_SLICE_BEGIN, proto.TrackEvent.TYPE_SLICE_END
_INSTANT = proto.TrackEvent.TYPE_INSTANT
_COUNTER = proto.TrackEvent.TYPE_COUNTER
_SEQUENCE = 1  # all packets are of one, so that a name is written once
_FIRST, _OTHERS = 3, 2  # sequence flags: the state begins here; it is needed
_MAX_PACKETS = 4096  # written together; of names, in a packet
_CHUNK = 32_768  # packets that are columns at a time
_MAX_FLOWS = 2  # of an event that is written in columns
MAX_NAME = 512

_PACKET = tag_of(proto.Trace(packet=[proto.TracePacket()]))
_TIME = tag_of(proto.TracePacket(timestamp=1))
_OF_SEQUENCE = tag_of(proto.TracePacket(trusted_packet_sequence_id=1))
_FLAGS = tag_of(proto.TracePacket(sequence_flags=1))
_EVENT = tag_of(proto.TracePacket(track_event=proto.TrackEvent()))
_CATEGORY = tag_of(proto.TrackEvent(category_iids=[1]))
_TYPE = tag_of(proto.TrackEvent(type=_BEGIN))
_NAME = tag_of(proto.TrackEvent(name_iid=1))
_TRACK = tag_of(proto.TrackEvent(track_uuid=1))
_VALUE = tag_of(proto.TrackEvent(counter_value=1))
_NOTE = tag_of(proto.TrackEvent(debug_annotations=[proto.DebugAnnotation()]))
_INTEGER = tag_of(proto.DebugAnnotation(int_value=1))
_TEXT = tag_of(proto.DebugAnnotation(string_value_iid=1))
_KEY = tag_of(proto.DebugAnnotation(name=""))
_FLOW = tag_of(proto.TrackEvent(flow_ids=[1]), num_bytes=8)


class PacketWriter:
    """Writes packets, a few thousand at a time.

    `shift_ns` is added to all times; Perfetto has none below 0.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file, self._shift_ns = file, shift_ns
        self._trace, self._num_packets = proto.Trace(), 0
        self._num_tracks = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._places: dict[str, int] = {}
        first = self._packet()
        first.sequence_flags = _FIRST
        # Track events without a clock of their own are of this one.
        first.trace_packet_defaults.timestamp_clock_id = proto.BUILTIN_CLOCK_BOOTTIME

    def utc(self, start_utc_ns: int) -> None:
        """Say what UTC was at time 0."""
        packet = self._packet()
        packet.timestamp = self._shift_ns
        packet.clock_snapshot.primary_trace_clock = proto.BUILTIN_CLOCK_BOOTTIME
        for clock, time_ns in (
            (proto.BUILTIN_CLOCK_BOOTTIME, self._shift_ns),
            (proto.BUILTIN_CLOCK_REALTIME, start_utc_ns),
        ):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time_ns)

    def process(self, pid: int, name: str, order: int) -> int:
        """Add a process; return its track."""
        number, track = self._track()
        track.process.pid = pid
        track.process.process_name = name
        track.child_ordering = proto.TrackDescriptor.EXPLICIT
        track.sibling_order_rank = order
        return number

    def thread(self, pid: int, tid: int, name: str) -> int:
        """Add a thread of a process; return its track."""
        number, track = self._track()
        track.thread.pid, track.thread.tid, track.thread.thread_name = pid, tid, name
        return number

    def track(self, parent: int, name: str, order: int = 0) -> int:
        """Add a track below another one; return it. Those of one name are shown as one."""
        number, track = self._track()
        track.parent_uuid, track.name, track.sibling_order_rank = parent, name, order
        return number

    def counter(self, parent: int, name: str, unit: str, order: int = 0) -> int:
        """Add a counter below a track; return its track."""
        number, track = self._track()
        track.parent_uuid, track.name, track.sibling_order_rank = parent, name, order
        track.counter.unit = proto.CounterDescriptor.UNIT_UNSPECIFIED
        track.counter.unit_name = unit
        return number

    def slices(self, new_track: Callable[[], int], events: TrackEvents) -> None:
        """Add events that have a length.

        `new_track`: adds a track: first for all, then for what neither follows what is on the
        others nor lies inside it.
        """
        lane = lanes(events.start_ns, events.end_ns)
        last = int(lane.max(initial=0))
        for number in range(last + 1):
            self._nested(new_track(), events.chosen(lane == number) if last else events)

    def _nested(self, track: int, events: TrackEvents) -> None:
        name, category = self._named(events)
        place = self._placed(events)
        num_flows = np.bincount(events.flows[0], minlength=len(events))
        is_special = num_flows > _MAX_FLOWS
        is_special[[*events.own_notes]] = True
        order = nested_order(events.start_ns, events.end_ns)
        for first in range(0, len(order), _CHUNK):
            part = order[first : first + _CHUNK]
            kind = ((part >= 0) & is_special[part]).astype(np.int8)
            parts = [self._slices(track, events, part[kind == 0], name, category, place)]
            if kind.any():
                parts.append(self._special(track, events, part[kind == 1], name, category))
            self._write(merged(kind, parts))

    def _slices(
        self,
        track: int,
        events: TrackEvents,
        part: Int64,
        name: Int64,
        category: Int64,
        place: Int64,
    ) -> EncodedMessages:
        """Return packets of begins and ends, of one track; see `nested_order`."""
        is_begin = part >= 0
        row = np.where(is_begin, part, ~part)
        fields = numbers(_CATEGORY, category[events.category[row]]).where(is_begin)
        for key, (values, is_known) in events.notes.items():
            if (is_noted := is_begin & is_known[row]).any():
                note = numbers(_INTEGER, values[row]) + texts(_KEY, key)
                fields += messages(_NOTE, note).where(is_noted)
        if place.any():
            note = texts(_KEY, "place") + numbers(_TEXT, place[row])
            fields += messages(_NOTE, note).where(is_begin & (place[row] > 0))
        fields += numbers(_TYPE, np.where(is_begin, _BEGIN, _END))
        fields += numbers(_NAME, name[events.name[row]]).where(is_begin)
        fields += numbers(_TRACK, _all(track))
        first = np.searchsorted(events.flows[0], row)
        num = np.searchsorted(events.flows[0], row, side="right") - first
        for number in range(_MAX_FLOWS):
            if (has_flow := is_begin & (num > number)).any():
                at = np.minimum(first + number, len(events.flows[1]) - 1)
                flow = events.flows[1][at]
                fields += fixed_numbers(_FLOW, flow).where(has_flow)
        times = np.where(is_begin, events.start_ns[row], events.end_ns[row])
        return self._packets(times, fields)

    def instants(self, track: int, events: TrackEvents) -> None:
        """Add events that have no length."""
        name, category = self._named(events)
        for first in range(0, len(events), _CHUNK):
            part = slice(first, first + _CHUNK)
            fields = (
                numbers(_CATEGORY, category[events.category[part]])
                + numbers(_TYPE, _all(_INSTANT))
                + numbers(_NAME, name[events.name[part]])
                + numbers(_TRACK, _all(track))
            )
            self._write(self._packets(events.start_ns[part], fields).content)

    def values(self, track: int, times: Int64, values: npt.NDArray[np.int64 | np.int32]) -> None:
        """Give a counter the values that it has from times on."""
        for first in range(0, len(times), _CHUNK):
            part = slice(first, first + _CHUNK)
            fields = (
                numbers(_TYPE, _all(_COUNTER))
                + numbers(_TRACK, _all(track))
                + numbers(_VALUE, values[part].astype(np.int64))
            )
            self._write(self._packets(times[part], fields).content)

    def _packets(self, times: Int64, event: RowFields) -> EncodedMessages:
        """Return packets of events.

        `times`: int64[n], on the run's clock.
        """
        packet = (
            numbers(_TIME, times + self._shift_ns)
            + numbers(_OF_SEQUENCE, _all(_SEQUENCE))
            + messages(_EVENT, event)
            + numbers(_FLAGS, _all(_OTHERS))
        )
        return written(messages(_PACKET, packet), len(times))

    def _write(self, content: Bytes) -> None:
        self.flush()
        self._file.write(content.data)

    def _special(
        self, track: int, events: TrackEvents, part: Int64, name: Int64, category: Int64
    ) -> EncodedMessages:
        packets = [
            self._special_packet(
                track,
                events,
                index,
                int(name[events.name[index]]),
                int(category[events.category[index]]),
            )
            for index in part.tolist()
        ]
        content = np.frombuffer(b"".join(packets), np.uint8)
        return EncodedMessages(content, np.array([len(packet) for packet in packets], np.int64))

    def _special_packet(
        self, track: int, events: TrackEvents, index: int, name: int, category: int
    ) -> bytes:
        trace = proto.Trace()
        packet = trace.packet.add(
            timestamp=int(events.start_ns[index]) + self._shift_ns,
            trusted_packet_sequence_id=_SEQUENCE,
            sequence_flags=_OTHERS,
        )
        event = packet.track_event
        event.type, event.track_uuid, event.name_iid = _BEGIN, track, name
        event.category_iids.append(category)
        notes = {
            key: int(values[index])
            for key, (values, is_known) in events.notes.items()
            if is_known[index]
        } | dict(events.own_notes.get(index, {}))
        if events.place is not None and events.place[index] >= 0:
            notes["place"] = one_line(events.places[events.place[index]], MAX_NAME)
        own = slice(*np.searchsorted(events.flows[0], [index, index + 1]))
        event.flow_ids.extend(events.flows[1][own].tolist())
        for key, value in notes.items():
            note = event.debug_annotations.add(name=key)
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = value
        content: bytes = trace.SerializeToString()
        return content

    def _named(self, events: TrackEvents) -> tuple[Int64, Int64]:
        return (
            self._interned("event_names", self._names, events.names, events.name),
            self._interned(
                "event_categories", self._categories, events.categories, events.category
            ),
        )

    def _placed(self, events: TrackEvents) -> Int64:
        if events.place is None:
            return np.zeros(len(events), np.int64)
        used = events.place[events.place >= 0]
        field = "debug_annotation_string_values"
        return np.append(self._interned(field, self._places, events.places, used), 0)[events.place]

    def _interned(
        self, field: str, known: dict[str, int], texts: Sequence[str], used: npt.NDArray[np.integer]
    ) -> Int64:
        is_used = np.zeros(len(texts), np.bool_)
        is_used[used] = True
        number = np.zeros(len(texts), np.int64)
        interned = None
        for index in np.flatnonzero(is_used).tolist():
            text = one_line(texts[index], MAX_NAME)
            of_text = known.get(text)
            if of_text is None:
                of_text = known[text] = len(known) + 1
                if interned is None or len(interned) >= _MAX_PACKETS:
                    interned = getattr(self._packet().interned_data, field)
                if field == "debug_annotation_string_values":
                    interned.add(iid=of_text, str=text.encode())
                else:
                    interned.add(iid=of_text, name=text)
            number[index] = of_text
        return number

    def flush(self) -> None:
        """Write what is not written yet."""
        # A trace is made of its packets, so that several one after the other are one.
        if self._num_packets:
            self._file.write(self._trace.SerializeToString())
            self._trace, self._num_packets = proto.Trace(), 0

    def _packet(self) -> proto.TracePacket:
        if self._num_packets >= _MAX_PACKETS:
            self.flush()
        self._num_packets += 1
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _OTHERS
        return packet

    def _track(self) -> tuple[int, proto.TrackDescriptor]:
        self._num_tracks += 1
        track = self._packet().track_descriptor
        track.uuid = self._num_tracks
        return self._num_tracks, track


def _all(value: int) -> Int64:
    """Return a number that is that of all messages, int64[1]."""
    return np.full(1, value, np.int64)
