"""Perfetto traces read back by Perfetto's own classes, as its trace processor reads them."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent


@dataclass
class Slice:
    start_ns: int
    end_ns: int
    name: str
    category: str
    flows: tuple[int, ...]
    notes: dict[str, Any]


@dataclass
class ReadTrace:
    parents: dict[int, int] = field(default_factory=dict)  # of each track
    # of each track; of processes and threads, theirs
    names: dict[int, str] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)  # tracks that are processes
    # by track, by start
    slices: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    # by track, (time, value)
    values: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    # by track, (time, name, category)
    instants: dict[int, list[tuple[int, str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    utc_ns: tuple[int, int] | None = None  # what UTC was at the time of the snapshot, and that time

    def tracks(self, process: int, *names: str) -> list[int]:
        """Return the tracks that lie below a process by these names, one below the other."""
        below = [process]
        for name in names:
            below = [
                track
                for track, parent in self.parents.items()
                if parent in below and self.names[track] == name
            ]
        return below

    def events(self, process: int, *names: str) -> list[Slice]:
        """Return the events of such tracks, by start."""
        events = [event for track in self.tracks(process, *names) for event in self.slices[track]]
        return sorted(events, key=lambda event: (event.start_ns, event.end_ns))

    def all_below(self, process: int) -> list[int]:
        below = [process]
        for track in below:
            below += [child for child, parent in self.parents.items() if parent == track]
        return below[1:]


def read(content: bytes) -> ReadTrace:
    """Read a trace; events of a track are nested by time, those of one time in their order."""
    trace = Trace()
    trace.ParseFromString(content)
    read_trace = ReadTrace()
    event_names: dict[int, str] = {}
    categories: dict[int, str] = {}
    texts: dict[int, str] = {}
    events: list[tuple[int, TrackEvent]] = []
    pids: dict[int, int] = {}
    for packet in trace.packet:
        for name in packet.interned_data.event_names:
            assert name.iid not in event_names
            event_names[name.iid] = name.name
        for name in packet.interned_data.event_categories:
            categories[name.iid] = name.name
        for text in packet.interned_data.debug_annotation_string_values:
            assert text.iid not in texts
            texts[text.iid] = text.str.decode()
        if packet.HasField("track_descriptor"):
            _add_track(read_trace, packet.track_descriptor, pids)
        if packet.HasField("clock_snapshot"):
            by_id = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
            read_trace.utc_ns = by_id[1], by_id[6]
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in read_trace.parents
            events.append((packet.timestamp, packet.track_event))
    _add_events(read_trace, events, event_names, categories, texts)
    return read_trace


def _add_track(trace: ReadTrace, track: TrackDescriptor, pids: dict[int, int]) -> None:
    assert track.uuid not in trace.parents
    parent, shown = track.parent_uuid, track.name
    if track.HasField("process"):
        assert track.process.pid not in pids
        pids[track.process.pid] = track.uuid
        trace.processes.append(track.uuid)
        shown = track.process.process_name
    if track.HasField("thread"):
        parent, shown = pids[track.thread.pid], track.thread.thread_name
    trace.parents[track.uuid], trace.names[track.uuid] = parent, shown


def _add_events(
    trace: ReadTrace,
    events: list[tuple[int, TrackEvent]],
    names: dict[int, str],
    categories: dict[int, str],
    texts: dict[int, str],
) -> None:
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    for time_ns, event in sorted(events, key=lambda item: item[0]):
        stack = open_slices[event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            trace.values[event.track_uuid].append((time_ns, event.counter_value))
        elif event.type == TrackEvent.TYPE_INSTANT:
            moment = time_ns, names[event.name_iid], categories[event.category_iids[0]]
            trace.instants[event.track_uuid].append(moment)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end_ns = time_ns
        else:
            notes = {
                note.name: texts[note.string_value_iid]
                if note.WhichOneof("value") == "string_value_iid"
                else getattr(note, note.WhichOneof("value") or "")
                for note in event.debug_annotations
            }
            begun = Slice(
                time_ns, -1, names[event.name_iid], categories[event.category_iids[0]],
                tuple(event.flow_ids), notes,
            )  # fmt: skip
            stack.append(begun)
            trace.slices[event.track_uuid].append(begun)
    assert not any(open_slices.values())
