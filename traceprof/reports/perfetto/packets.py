"""Packets of a Perfetto trace, written as they are made: by the classes of Perfetto's package."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_BOOTTIME,
    BUILTIN_CLOCK_REALTIME,
    CounterDescriptor,
    Trace,
    TrackDescriptor,
    TrackEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

BEGIN, END = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
_INSTANT = TrackEvent.TYPE_INSTANT
_COUNTER = TrackEvent.TYPE_COUNTER
_SEQUENCE = 1  # all packets are of one, so that a name is written once
_FIRST, _OTHERS = 3, 2  # sequence flags: the state begins here; it is needed
_MAX_PACKETS = 4096  # written together

Value = int | float | str | bool


class PacketWriter:
    """Writes packets, a few thousand at a time.

    Args:
        file: is written to.
        shift_ns: is added to all times; Perfetto has none below 0.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file, self._shift_ns = file, shift_ns
        self._trace, self._num_packets = Trace(), 0
        self._num_tracks = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        first = self._packet()
        first.sequence_flags = _FIRST
        # Track events without a clock of their own are of this one.
        first.trace_packet_defaults.timestamp_clock_id = BUILTIN_CLOCK_BOOTTIME

    def utc(self, start_utc_ns: int) -> None:
        """Say what UTC was at time 0."""
        packet = self._packet()
        packet.timestamp = self._shift_ns
        packet.clock_snapshot.primary_trace_clock = BUILTIN_CLOCK_BOOTTIME
        for clock, time_ns in (
            (BUILTIN_CLOCK_BOOTTIME, self._shift_ns),
            (BUILTIN_CLOCK_REALTIME, start_utc_ns),
        ):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time_ns)

    def process(self, pid: int, name: str, order: int) -> int:
        """Add a process; return its track.

        Args:
            pid: its number, of no other process.
            name: is shown.
            order: of processes, from the top.
        """
        number, track = self._track()
        track.process.pid = pid
        track.process.process_name = name
        track.child_ordering = TrackDescriptor.EXPLICIT
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
        track.counter.unit = CounterDescriptor.UNIT_UNSPECIFIED
        track.counter.unit_name = unit
        return number

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        flows: Sequence[int] = (),
        notes: Mapping[str, Value] | None = None,
    ) -> None:
        """Begin an event.

        Args:
            track: that it is on.
            time_ns: on the run's clock.
            name: is shown.
            category: of it.
            flows: numbers that it shares with others: arrows go from one to the next.
            notes: what else is shown of it.
        """
        packet = self._named(BEGIN, track, time_ns, name, category)
        event = packet.track_event
        if flows:
            event.flow_ids.extend(flows)
        for key, value in (notes or {}).items():
            note = event.debug_annotations.add(name=key)
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = value

    def instant(self, track: int, time_ns: int, name: str, category: str) -> None:
        """Add an event that has no length; see `begin`."""
        self._named(_INSTANT, track, time_ns, name, category)

    def _named(
        self, kind: TrackEvent.Type, track: int, time_ns: int, name: str, category: str
    ) -> TracePacket:
        packet = self._packet()
        packet.timestamp = time_ns + self._shift_ns
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = len(self._names) + 1
            packet.interned_data.event_names.add(iid=number, name=name)
        event.name_iid = number
        number = self._categories.get(category)
        if number is None:
            number = self._categories[category] = len(self._categories) + 1
            packet.interned_data.event_categories.add(iid=number, name=category)
        event.category_iids.append(number)
        return packet

    def end(self, track: int, time_ns: int) -> None:
        """End the event of a track that began last and has not ended."""
        packet = self._packet()
        packet.timestamp = time_ns + self._shift_ns
        event = packet.track_event
        event.type, event.track_uuid = END, track

    def value(self, track: int, time_ns: int, value: int) -> None:
        """Give a counter the value that it has from a time on."""
        packet = self._packet()
        packet.timestamp = time_ns + self._shift_ns
        event = packet.track_event
        event.type, event.track_uuid, event.counter_value = _COUNTER, track, value

    def flush(self) -> None:
        """Write what is not written yet."""
        # A trace is made of its packets, so that several one after the other are one.
        self._file.write(self._trace.SerializeToString())
        self._trace, self._num_packets = Trace(), 0

    def _packet(self) -> TracePacket:
        if self._num_packets >= _MAX_PACKETS:
            self.flush()
        self._num_packets += 1
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _OTHERS
        return packet

    def _track(self) -> tuple[int, TrackDescriptor]:
        self._num_tracks += 1
        track = self._packet().track_descriptor
        track.uuid = self._num_tracks
        return self._num_tracks, track
