"""The details of one event of a timeline, and of the many events in a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dashboards.timeline import events as ev
from dashboards.timeline.tracks import RankTimeline, Track
from dashboards.widgets.charts import PARTS
from traceprof.communication.messages import messages
from traceprof.communication.readiness import stream_waits
from traceprof.errors import one_line
from traceprof.host.launching_code import launching_code
from traceprof.host.places import places, places_of_calls
from traceprof.intervals import BEYOND_NS, Int64, largest
from traceprof.run.rank import Rank
from traceprof.trace.columns import Column
from traceprof.trace.model.host import ApiCalls, HostCode
from traceprof.trace.model.kinds import memory_label
from traceprof.trace.model.operations import Copies, Operations
from traceprof.trace.model.special_values import NULL
from traceprof.units import counted, duration, percent, size_text, three_digits


def launching_call(timeline: RankTimeline, index: int) -> int:
    """Return the call that launched an operation; -1 if the capture does not have it."""
    group, place = timeline.operation(index)
    return int(timeline.rank.launched_by[group][place])


def waiting_for(timeline: RankTimeline, index: int) -> list[int]:
    """Return what each stream that waited for an operation ran first afterwards, by number.

    There is none where the report has no event records.
    """
    waits = None if timeline.rank.device is None else stream_waits(timeline.rank)
    if waits is None:
        return []
    first = []
    for at in np.flatnonzero(waits.operation == index).tolist():
        operations, places = _launched_on(timeline.rank, int(waits.stream[at]))
        first += operations[places > waits.place[at]][:1].tolist()
    return list(dict.fromkeys(first))


def awaited_by(timeline: RankTimeline, index: int) -> list[int]:
    """Return the operations that an operation's stream waited for directly before it, by number.

    There is none where the report has no event records.
    """
    rank = timeline.rank
    waits = None if rank.device is None else stream_waits(rank)
    if waits is None or launching_call(timeline, index) < 0:
        return []
    group, place = timeline.operation(index)
    stream = _value(rank.operations.groups[group].packed_stream, place)
    operations, places = _launched_on(rank, stream)
    is_it = operations == index
    before = np.max(places[: int(is_it.argmax())], initial=-1)  # the launch of the last one before
    is_between = (waits.place > before) & (waits.place < places[is_it])
    awaited = waits.operation[(waits.stream == stream) & is_between]
    return list(dict.fromkeys(awaited[::-1].tolist()))


def _launched_on(rank: Rank, stream: int) -> tuple[Int64, Int64]:
    """Return what a stream ran, by start, and the place of the launch of each; -1: unknown."""
    first, found = 0, []
    for group, call in zip(rank.operations.groups, rank.launched_by, strict=True):
        on = np.flatnonzero(group.packed_stream.isin([stream]))
        places = np.where(call[on] < 0, -1, rank.host_order[call[on]])
        found.append(np.stack((group.starts.at(on), on + first, places)))
        first += len(group)
    start, operations, places = np.concatenate(found, axis=1)
    order = np.argsort(start, kind="stable")
    return operations[order], places[order]


Fact = tuple[str, str]

_KERNELS, _COPIES, _MEMSETS = range(3)  # of `RankOperations.groups`
_MAX_NAMES = 5  # of a block: what takes most of its time
_MAX_CODE = 300  # characters of a module's path
_MAX_LAUNCHED = 20  # one launch of a graph can run a thousand kernels


def describe(timeline: RankTimeline, source: str, index: int) -> dict[str, Any] | None:
    """Return all facts about an event, `EventDetails` in types.d.ts; None if there is none."""
    place = timeline.find(source, index)
    if place is None:
        return None
    track = timeline.tracks[place[0]]
    facts: Iterator[Fact] = iter(())
    links: list[tuple[str, str, int]] = []
    if source == ev.OPERATION:
        call = launching_call(timeline, index)
        links = [("launched by", ev.CALL, call)] if call >= 0 else []
        links += [("waited for", ev.OPERATION, other) for other in awaited_by(timeline, index)]
        links += [("awaited by", ev.OPERATION, other) for other in waiting_for(timeline, index)]
        facts = _operation_facts(timeline, track, index, call)
    elif source == ev.CALL:
        links = [
            ("launched", ev.OPERATION, operation) for operation in _launched(timeline.rank, index)
        ]
        facts = _call_facts(timeline, index, len(links))
    elif source in _FACTS:
        facts = _FACTS[source](timeline, index)
    elif source in _WHAT:
        facts = iter([("what", _WHAT[source])])
    described = _brief(timeline, source, index)
    if described is not None and timeline.clock.clocks is not None:
        own = timeline.clock.own(int(described["start"]))
        facts = chain(facts, [("start in its report", f"{own} ns")])
    linked = [
        {"relation": relation, **brief}
        for relation, kind, number in links[:_MAX_LAUNCHED]
        if (brief := _brief(timeline, kind, number)) is not None
    ]
    return {**(described or {}), "facts": list(facts), "links": linked}


def summarize(timeline: RankTimeline, track: Track, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return a summary of a row's events in [start, end): `Summary` in types.d.ts."""
    if track.samples is not None:
        return track.samples.summary(start_ns, end_ns)
    inside = track.row.within(start_ns, end_ns)
    events = timeline.events[track.source]
    length = track.row.length(inside)
    names, count, total, longest = events.by_name(track.index[inside].astype(np.int64), length)
    summary: dict[str, Any] = {"count": len(inside), "num_names": len(names)}
    if len(inside) == 1:
        summary["id"] = event_id(timeline, track.source, int(track.index[inside[0]]))
    summary["names"] = [
        {
            "name": events.names.label(int(names[name])),
            "count": int(count[name]),
            "total": str(total[name]),
            "longest": str(longest[name]),
        }
        for name in largest(total, _MAX_NAMES).tolist()
    ]
    return summary


def event_id(timeline: RankTimeline, source: str, index: int) -> str:
    """Return an event's id as text: rank, source, number."""
    return f"{timeline.rank.rank}.{source}.{index}"


def _brief(timeline: RankTimeline, source: str, index: int) -> dict[str, Any] | None:
    location = timeline.find(source, index)
    if location is None:
        return None
    number, place = location
    track, events = timeline.tracks[number], timeline.events[source]
    start = int(track.row.start_ns[place])
    end = int(track.row.end_ns[place])
    name = int(events.numbers(np.array([index]))[0])
    return {
        "id": event_id(timeline, source, index),
        "row": f"{timeline.rank.rank}.{number}",
        "group": track.group,
        "kind": track.kind,
        "category": events.names.category(name) if track.kind == ev.COMPUTE else None,
        "name": events.name_of(index),
        "label": events.label_of(index),
        "start": str(start),
        "end": str(end),
        "duration": str(timeline.clock.own(end) - timeline.clock.own(start)),
    }


def _operation_facts(timeline: RankTimeline, track: Track, index: int, call: int) -> Iterator[Fact]:
    rank = timeline.rank
    group, place = timeline.operation(index)
    operation = rank.operations.groups[group]
    yield "stream", str(_value(operation.packed_stream, place))
    if group == _KERNELS:
        yield from _kernel_facts(timeline, track, place)
    elif group in {_COPIES, _MEMSETS}:
        yield from _copy_facts(rank.operations.groups[group], place)
    correlation = _correlation(operation, place)
    yield "correlation", "not known" if correlation == NULL else str(correlation)
    calls = rank.calls
    if calls is None:
        yield "launched by", "not known: the report holds no API calls"
    elif call < 0:
        yield "launched by", "a call that the capture does not hold"
    else:
        thread = _value(calls.packed_thread, call)
        called, took = _value(calls.starts, call), _value(calls.packed_length, call)
        start = _value(operation.starts, place)
        name = timeline.events[ev.CALL].name_of(call)
        yield "launched by", f"{name} on thread {rank.trace.thread_number(thread)}"
        yield "the call took", duration(took)
        yield "from call to start", duration(start - called)
        around = [*_around("launched in", timeline, thread, timeline.clock.at(called))]
        yield from around
        if not around:  # perhaps on another thread
            [at] = places_of_calls(rank, rank.launched_by[group][[place]]).tolist()
            if at >= 0:
                yield "place", one_line(places(rank).names[at], _MAX_CODE)


def _kernel_facts(timeline: RankTimeline, track: Track, place: int) -> Iterator[Fact]:
    rank, kernels = timeline.rank, timeline.rank.operations.kernels
    signature = _value(kernels.packed_signature, place)
    shape = rank.trace.signatures.shape[signature].tolist()
    for what, sizes in (("grid", shape[:3]), ("block", shape[3:])):
        yield what, " × ".join("?" if size == NULL else str(size) for size in sizes)
    yield from _code_facts(rank, place)
    if track.kind != "communication":
        return
    records = messages(rank)
    message = int(np.searchsorted(records.kernel, place))
    operation = records.operations[int(records.operation[message])]
    yield "operation", operation + records.peer_text(message)
    size = int(records.bytes[message])
    yield "message", _bytes(size) if size >= 0 else "not known: no NCCL range gives its size"
    communicator = records.readable_communicator(message)
    if communicator:
        yield "communicator", communicator
    if records.world_size[message] >= 0:
        yield "ranks", str(records.world_size[message])


def _code_facts(rank: Rank, place: int) -> Iterator[Fact]:
    code = launching_code(rank, np.array([place]))
    if code is None:
        return
    for what, number, texts in (
        ("operator", code.operator, code.operators),
        ("module", code.module, code.modules),
        ("source", code.line, code.lines),
    ):
        if number[0] >= 0:
            yield what, one_line(texts[int(number[0])], _MAX_CODE)


def _copy_facts(copies: Operations, place: int) -> Iterator[Fact]:
    of_copies: Copies = copies  # type: ignore[assignment]  # memory sets are copies, too
    size = int(of_copies.bytes[place])
    length = _value(copies.packed_length, place)
    rate = f", {three_digits(size / length)} GB/s" if length > 0 else ""
    yield "size", f"{_bytes(size)}{rate}"
    for what, memory, device in (
        ("from", of_copies.source_memory, of_copies.source_device),
        ("to", of_copies.destination_memory, of_copies.destination_device),
    ):
        if memory[place] != NULL:
            kind = memory_label(int(memory[place])) or "unknown"
            on = f" of GPU {device[place]}" if device[place] != NULL else ""
            yield what, f"{kind.lower()} memory{on}"


def _value(column: Column, place: int) -> int:
    """Return one value without unpacking the others."""
    return int(column.at(np.array([place]))[0])


def _correlation(columns: ApiCalls | Operations, place: int) -> int:
    return int((columns.packed_ahead.at(np.array([place])) + place)[0])


def _bytes(size: int) -> str:
    return size_text(size) if size < 1000 else f"{size_text(size)} ({size:,} bytes)"


def _call_facts(timeline: RankTimeline, index: int, num_launched: int) -> Iterator[Fact]:
    calls: ApiCalls = timeline.rank.calls  # type: ignore[assignment]  # it is one of them
    thread = _value(calls.packed_thread, index)
    yield "thread", str(timeline.rank.trace.thread_number(thread))
    yield "correlation", str(_correlation(calls, index))
    yield "launched", counted(num_launched, "operation")
    called_ns = timeline.clock.at(_value(calls.starts, index))
    yield from _around("called in", timeline, thread, called_ns)


def _launched(rank: Rank, call: int) -> list[int]:
    launched: list[tuple[int, int]] = []
    first = 0
    for group, calls in zip(rank.operations.groups, rank.launched_by, strict=True):
        places = np.flatnonzero(calls == call)
        launched += zip(group.starts.at(places).tolist(), (places + first).tolist(), strict=True)
        first += len(group)
    return [index for _, index in sorted(launched)]


def _thread_facts(source: str, timeline: RankTimeline, index: int) -> Iterator[Fact]:
    """Yield what is known of an event of a thread that is no call."""
    rank, part = timeline.rank, timeline.events[source].parts[0]
    thread = _value(part.threads, index)
    yield "thread", str(rank.trace.thread_number(thread))
    if _value(part.spans.packed_length, index) >= BEYOND_NS:
        yield "end", "still open when the capture stopped"
    if source == ev.OPERATOR:
        operators: HostCode = rank.trace.operators(rank.process)  # type: ignore[assignment]
        flops = int(operators.work_of(slice(index, index + 1))[0, 0])
        if flops > 0:
            yield "multiplications and additions", f"{flops:,}"
    is_nested = bool(part.nesting(np.array([index]))[0])
    if source == ev.MARK or (source == ev.RANGE and is_nested):
        inside_of = index if source == ev.RANGE else -1
        yield from _around("inside", timeline, thread, part.start(index), inside_of)


def _around(
    what: str, timeline: RankTimeline, thread: int, time_ns: int, inside_of: int = -1
) -> Iterator[Fact]:
    """Yield the names of a thread's nested ranges open at a time, outermost first; none without."""
    names = []
    for track in timeline.tracks:
        if track.source != ev.RANGE:
            continue
        (ranges,) = timeline.events[ev.RANGE].parts
        if _value(ranges.threads, int(track.index[0])) != thread:
            continue
        place = int(track.row.started_before(np.array([time_ns + 1]))[0]) - 1
        if place < 0 or not ranges.nesting(track.index[[place]])[0]:
            continue
        if track.row.end_ns[place] <= time_ns:
            continue
        if track.index[place] == inside_of:
            break
        names.append(timeline.events[ev.RANGE].label_of(int(track.index[place])))
    if names:
        yield what, " > ".join(names)


def _step_facts(timeline: RankTimeline, index: int) -> Iterator[Fact]:
    measures = timeline.steps[index].measures
    for measure, name, _ in PARTS:
        part = getattr(measures, measure)
        share = f" · {percent(part / measures.window_ns)}" if measures.window_ns else ""
        yield name, f"{duration(part)}{share}"


_FACTS: dict[str, Callable[[RankTimeline, int], Iterator[Fact]]] = {
    **{
        source: partial(_thread_facts, source)
        for source in (ev.RANGE, ev.MARK, ev.OPERATOR, ev.PYTHON)
    },
    ev.STEP: _step_facts,
}
_WHAT = {
    ev.STALL: "the thread was held up beyond the usual time of what it did",
    ev.PLACE: "the GPU ran what was launched in it, one operation behind the other",
    ev.STACK: "samples of the thread found it in this function",
}
