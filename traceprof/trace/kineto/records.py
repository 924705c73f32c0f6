"""What a trace recorded: GPU operations, what the host did, and communication calls.

Since PyTorch 2.3 the operator `record_param_comms` around each call of a back end has operation,
sizes, group and peer. Before, only an annotation inside it has them (`nccl:all_reduce`), with the
shapes of its tensors if these were recorded.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from traceprof import labels
from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.trace.columns import Column, pack, pack_ahead
from traceprof.trace.grouping import distinct_values, groups, is_in, numbered
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.content import Content
from traceprof.trace.kineto.events import AnyEvent, Arguments, Kind
from traceprof.trace.kineto.operator_work import ITEM_BYTES
from traceprof.trace.model.communication_calls import BARRIER, Fields, operation_of, read_call
from traceprof.trace.model.host import (
    NO_SPANS,
    ApiCalls,
    EventRecords,
    HostCode,
    LaunchStalls,
    Synchronizations,
    ThreadSpans,
)
from traceprof.trace.model.kinds import UNIFIED_COPIES, CopyKind, MemoryKind, SynchronizationKind
from traceprof.trace.model.operations import (
    Copies,
    Kernels,
    Operations,
    RankKey,
    RankOperations,
    Signatures,
)
from traceprof.trace.model.ranges import (
    NO_MARKS,
    NO_RANGES,
    CallRange,
    LabelRanges,
    Marks,
    NamedRanges,
    RangeTable,
    labelled,
    name_until,
)
from traceprof.trace.model.special_values import MAX_BYTES, NULL, OPEN_END, UNKNOWN

# Kineto's names, such as `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)`.
_COPY = re.compile(r"\w+ (?P<kind>\w+)(?: \((?P<source>[\w ]+) -> (?P<destination>[\w ]+)\))?")
_SET = re.compile(r"\w+ \((?P<destination>[\w ]+)\)")
COPY_KINDS = {  # by their initials
    re.sub(r"(\w)\w*-to-(\w).*", r"\1to\2", kind.label): kind
    for kind in CopyKind
    if kind not in UNIFIED_COPIES
}
MEMORY_KINDS = {kind.label: kind for kind in MemoryKind if kind is not MemoryKind.UNKNOWN}


class CopyFacts(NamedTuple):
    """Facts from a name; NULL if unknown."""

    kind: int = NULL
    source_memory: int = NULL
    destination_memory: int = NULL


def copy_facts(name: str) -> CopyFacts:
    """Return the facts in the name of a copy or memory set."""
    match = _COPY.fullmatch(name)
    if match is not None:
        return CopyFacts(
            COPY_KINDS.get(match["kind"], CopyKind.UNKNOWN),
            MEMORY_KINDS.get(match["source"] or "", NULL),
            MEMORY_KINDS.get(match["destination"] or "", NULL),
        )
    match = _SET.fullmatch(name)
    return CopyFacts(destination_memory=MEMORY_KINDS.get(match[1], NULL) if match else NULL)


_GROUPS = (Kind.KERNEL, Kind.COPY, Kind.MEMORY_SET)
_NO_COLUMN = pack(NO_NUMBERS)


def read_operations(content: Content, process: int) -> dict[RankKey, RankOperations]:
    """GPU operations of a process, by device; their kernels leave the `content`."""
    tables = {kind: content.tables.get(kind, {}) for kind in _GROUPS}
    content.take(Kind.KERNEL)
    rows: dict[Kind, dict[int, Int64]] = {kind: {} for kind in _GROUPS}
    for kind, columns in tables.items():
        of_rows = columns[table.DEVICE].values if columns else NO_NUMBERS
        rows[kind] = {int(of_rows[of_one[0]]): of_one for of_one in groups(of_rows)}
    devices = sorted({device for by_device in rows.values() for device in by_device})
    names = np.array([name for name, *_ in content.signatures], np.int64)
    operations = {}
    for device in devices:
        kernels, copies, memsets = (
            _sorted(tables[kind], rows[kind].get(device, NO_NUMBERS)) for kind in _GROUPS
        )
        operations[RankKey(process, device)] = RankOperations(
            Kernels(*_base(kernels, content), kernels.get(table.SIGNATURE, _NO_COLUMN), names),
            _copies(copies, content),
            _copies(memsets, content),
            Operations(_NO_COLUMN, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN),
        )
    return operations


def read_signatures(content: Content) -> Signatures:
    """Return kernels by name, grid and block."""
    missing = (NULL, NULL, NULL)
    shapes = [[*(grid or missing), *(block or missing)] for _, grid, block in content.signatures]
    return Signatures(
        np.array([name for name, *_ in content.signatures], np.int64),
        np.array(shapes, np.int64).reshape(len(shapes), 6),
    )


def num_of_unknown_size(content: Content) -> int:
    """Return the number of memory copies without a size."""
    columns = content.tables.get(Kind.COPY)
    return 0 if columns is None else int((columns[table.BYTES].values == NULL).sum())


def _sorted(columns: Mapping[str, Column], rows: Int64) -> dict[str, Column]:
    if len(rows) == 0:
        return {}
    start, length = columns[table.START].at(rows), columns[table.LENGTH].at(rows)
    rows = rows[np.lexsort((start + length, start))]
    return {name: column.taken(rows) for name, column in columns.items()}


def _base(rows: Mapping[str, Column], content: Content) -> tuple[Column, Column, Column, Column]:
    if not rows:
        return _NO_COLUMN, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN
    start = pack(rows[table.START].values - content.first_ns)
    ahead = pack_ahead(rows[table.CORRELATION].values)
    return start, rows[table.LENGTH], rows[table.STREAM], ahead


def _copies(rows: Mapping[str, Column], content: Content) -> Copies:
    if not rows:
        return Copies(*_base(rows, content), *[NO_NUMBERS] * 6)
    size = rows[table.BYTES].values
    number = rows[table.NAME].values
    distinct, which = numbered(number)
    facts = np.array([copy_facts(content.names[name]) for name in distinct.tolist()], np.int64)
    kind, source, destination = facts[which].T
    unknown = np.full(len(size), NULL, np.int64)  # of memory sets
    devices = [
        rows[end].values if end in rows else unknown for end in (table.SOURCE, table.DESTINATION)
    ]
    return Copies(
        *_base(rows, content),
        bytes=np.where(size == NULL, 0, size),
        kind=kind,
        source_device=devices[0],
        destination_device=devices[1],
        source_memory=source,
        destination_memory=destination,
    )


_KINDS = {
    "Event Sync": SynchronizationKind.HOST_FOR_EVENT,
    "Stream Wait Event": SynchronizationKind.STREAM_FOR_EVENT,
    "Stream Sync": SynchronizationKind.HOST_FOR_STREAM,
    "Context Sync": SynchronizationKind.HOST_FOR_DEVICE,
}
_STALL = "Command Buffer Full"


def read_api_calls(content: Content) -> ApiCalls | None:
    """Return the API calls of the process, instead of their table; None without any."""
    columns = content.take(Kind.API_CALL)
    if not columns:
        return None
    start = columns[table.START].values - content.first_ns
    correlation = columns[table.CORRELATION].values
    order = np.lexsort((start, correlation))
    return ApiCalls(
        pack(start[order]),
        columns[table.LENGTH].taken(order),
        pack_ahead(correlation[order]),
        columns[table.THREAD].taken(order),
        columns[table.NAME].taken(order),
        pack(np.full(len(order), NULL)),
    )


def read_host_code(content: Content, process: int, kind: Kind) -> HostCode | None:
    """Operators or Python functions (`kind`) of a process, in order of start.

    The trace is of one process: their table is no longer needed.
    """
    columns = content.take(kind)
    if not columns:
        return None
    rows = np.flatnonzero(columns[table.PROCESS].isin([process]))
    start = columns[table.START].at(rows) - content.first_ns
    order = np.argsort(start, kind="stable")
    rows = rows[order]
    return HostCode(
        pack(start[order]),
        columns[table.LENGTH].taken(rows),
        columns[table.THREAD].taken(rows),
        columns[table.NAME].taken(rows),
        columns[table.EXTERNAL].taken(rows) if table.EXTERNAL in columns else None,
        columns[table.SEQUENCE].taken(rows) if table.SEQUENCE in columns else None,
        columns[table.WORK].taken(rows) if table.WORK in columns else None,
        content.work,
        content.names,
    )


def read_synchronizations(content: Content) -> Synchronizations | None:
    """Return the waits of the process; None if they were not recorded."""
    columns = content.tables.get(Kind.SYNCHRONIZATION)
    if columns is None:
        return None
    start = columns[table.START].values - content.first_ns
    order = np.argsort(start, kind="stable")
    start = start[order]
    name = columns[table.NAME].values[order]
    kind_of_name = {
        number: _KINDS.get(content.names[number], SynchronizationKind.UNKNOWN)
        for number in distinct_values(name).tolist()
    }
    return Synchronizations(
        start_ns=start,
        end_ns=start + columns[table.LENGTH].values[order],
        stream=_ids(columns[table.STREAM].values[order]),
        correlation=columns[table.CORRELATION].values[order],
        kind=np.array([kind_of_name[number] for number in name.tolist()], np.int64),
        event=_ids(columns[table.EVENT].values[order]),
        recording=_ids(columns[table.RECORD].values[order]),
        device=_ids(columns[table.DEVICE].values[order]),
    )


def read_event_records(content: Content, calls: ApiCalls | None) -> EventRecords | None:
    """Return the recordings of events that waits refer to; None if no waits were recorded.

    A wait has the event, the stream in which it was recorded, and the call that recorded it.
    """
    columns = content.tables.get(Kind.SYNCHRONIZATION)
    if columns is None or calls is None:
        return None
    record, stream, event, device = (
        _ids(columns[name].values)
        for name in (table.RECORD, table.RECORD_STREAM, table.EVENT, table.DEVICE)
    )
    known = np.flatnonzero((record != NULL) & (stream != NULL) & (event != NULL))
    if len(known) == 0:
        return None
    _, first = np.unique(record[known], return_index=True)
    rows = known[first]
    called_ns = np.append(calls.start_ns, NULL)[calls.with_ids(record[rows])]
    order = np.lexsort((record[rows], called_ns))
    rows = rows[order]
    return EventRecords(
        called_ns[order], stream[rows], event[rows], record[rows], record[rows], device[rows]
    )


def read_launch_stalls(content: Content, process: int) -> LaunchStalls | None:
    """Return the blocked launches; None if overhead was not recorded."""
    columns = content.tables.get(Kind.OVERHEAD)
    if columns is None:
        return None
    stalls = [number for number, name in enumerate(content.names) if name == _STALL]
    chosen = is_in(columns[table.NAME].values, np.array(stalls, np.int64))
    chosen &= columns[table.PROCESS].values == process
    rows = np.flatnonzero(chosen)
    start = columns[table.START].at(rows) - content.first_ns
    rows, start = rows[np.argsort(start, kind="stable")], np.sort(start)
    return LaunchStalls(
        start,
        start + columns[table.LENGTH].at(rows),
        columns[table.THREAD].at(rows),
        columns[table.CORRELATION].at(rows),
    )


def read_overhead(content: Content) -> ThreadSpans:
    """Return the work of CUDA and of the profiler itself: loading, requests of buffers."""
    columns = content.tables.get(Kind.OVERHEAD)
    if columns is None:
        return NO_SPANS
    start = columns[table.START].values - content.first_ns
    end = start + columns[table.LENGTH].values
    order = np.lexsort((end, start))
    thread, name = columns[table.THREAD].values, columns[table.NAME].values
    return ThreadSpans(start[order], end[order], thread[order], name[order], content.names)


def _ids(values: Int64) -> Int64:
    return np.where(values < 0, NULL, values)


def matching(
    ranges: RangeTable, pattern: re.Pattern[str], until: re.Pattern[str] | None = None
) -> NamedRanges:
    """Return ranges with a match in their name, by start, then end; names end at `until`."""
    numbers = distinct_values(ranges.name).tolist()
    name_of = {number: name_until(ranges.names[number], until) for number in numbers}
    numbers = [number for number, name in name_of.items() if pattern.search(name) is not None]
    found = ranges.chosen(is_in(ranges.name, numbers))
    found = found.chosen(np.lexsort((found.end_ns, found.start_ns)))
    name, names = np.searchsorted(numbers, found.name), [name_of[number] for number in numbers]
    return NamedRanges(found.start_ns, found.end_ns, name, found.thread, found.thread, names)


def read_annotations(content: Content) -> RangeTable:
    """Return the annotations of the process."""
    columns = content.tables.get(Kind.ANNOTATION)
    if columns is None:
        return NO_RANGES
    start = columns[table.START].values - content.first_ns
    end = start + columns[table.LENGTH].values
    end[columns[table.IS_OPEN].values > 0] = OPEN_END
    order = np.lexsort((-end, start))
    thread, name = (columns[of].at(order) for of in (table.THREAD, table.NAME))
    nests = np.ones(len(order), np.bool_)
    return RangeTable(start[order], end[order], name, thread, nests, content.names)


def read_marks(content: Content, process: int) -> Marks:
    """Return the marks of a process."""
    columns = content.tables.get(Kind.MARK)
    if columns is None:
        return NO_MARKS
    rows = np.flatnonzero(columns[table.PROCESS].isin([process]))
    time = columns[table.START].at(rows) - content.first_ns
    order = np.argsort(time, kind="stable")
    name, thread = (columns[of].at(rows[order]) for of in (table.NAME, table.THREAD))
    return Marks(time[order], name, thread, content.names)


_RECEIVED = ("ReduceScatter", "Recv", "Scatter")  # their message is the data that one rank receives


def operation_named(function: str) -> str | None:
    """Operation of a back end's function, such as `_allgather_base`; None for others."""
    spelt = function.lower().replace("alltoall", "all_to_all")
    for joined, split in (
        ("allreduce", "all_reduce"),
        ("allgather", "all_gather"),
        ("reducescatter", "reduce_scatter"),
    ):
        spelt = spelt.replace(joined, split)
    return operation_of(spelt)


def read_calls(content: Content, ranges: Sequence[CallRange]) -> list[CallRange]:
    """Communicating calls of the process, ordered by thread, then start.

    Calls inside `ranges`, those of `instrument`, are the same.
    """
    operators = call_rows(content, Kind.OPERATOR)
    calls = [
        CallRange(start, end, thread, operation, _fields(event.args, operation))
        for start, end, thread, event in operators
        if (operation := operation_named(event.args.collective or "")) is not None
    ]
    unnamed = _Spans(row for row in operators if row[3].args.collective is None)
    named = _Spans(calls)
    for start, end, thread, event in call_rows(content, Kind.ANNOTATION):
        match = table.ANNOTATION.fullmatch(event.name)
        operation = match and operation_named(match[1])
        if not operation or named.around(start, end, thread):
            continue
        span = unnamed.around(start, end, thread) or (start, end)
        fields = Fields(bytes=bytes_of_shapes(event.args, operation))
        calls.append(CallRange(*span, thread, operation, fields))
    sized = _Spans(call for call in ranges if call.fields.bytes >= 0)
    calls = [call for call in calls if not sized.around(call.start, call.end, call.thread)]
    return sorted([*calls, *ranges], key=lambda call: (call.thread, call.start, -call.end))


class _Spans:
    """Spans that do not overlap on their thread, to find the one around another span."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._spans = sorted((thread, start, end) for start, end, thread, *_ in rows)

    def around(self, start: int, end: int, thread: int) -> tuple[int, int] | None:
        """Return the span of a thread around another; None if there is none."""
        place = bisect_right(self._spans, (thread, start, OPEN_END)) - 1
        owner, begin, stop = self._spans[place] if place >= 0 else (None, 0, 0)
        return (begin, stop) if owner == thread and stop >= end else None


def call_rows(content: Content, kind: Kind) -> list[tuple[int, int, int, AnyEvent]]:
    """Start, end, thread and event of operators or annotations of communication, unordered."""
    columns = content.tables.get(kind)
    if columns is None:
        return []
    facts: Int64 = columns[table.FACTS].values
    chosen = np.flatnonzero(facts != UNKNOWN)
    start = columns[table.START].at(chosen) - content.first_ns
    end = start + columns[table.LENGTH].at(chosen)
    if table.IS_OPEN in columns:
        end[columns[table.IS_OPEN].at(chosen) > 0] = OPEN_END
    thread = columns[table.THREAD].at(chosen)
    events = [content.calls[number] for number in facts[chosen].tolist()]
    return [*zip(start.tolist(), end.tolist(), thread.tolist(), events, strict=True)]


def _fields(arguments: Arguments, operation: str) -> Fields:
    peer = arguments.destination if operation == "Send" else arguments.source
    if operation not in {"Send", "Recv"}:
        peer = None
    group = arguments.group if arguments.group is not None else arguments.group_id
    size, sequence = arguments.group_size, arguments.sequence
    return Fields(
        communicator=None if group is None else str(group),
        bytes=_bytes(arguments, operation),
        peer=_global_rank(peer, arguments.group_ranks),
        world_size=size if size is not None and 0 < size < 1 << 31 else UNKNOWN,
        sequence=sequence if sequence is not None and 0 <= sequence < 1 << 56 else UNKNOWN,
        description=own_description(arguments.group_description),
    )


def own_description(text: str | None) -> str | None:
    """Return the description that the user gave a group; None for PyTorch's own."""
    return None if text is None or text in labels.OWN_DESCRIPTIONS else "_".join(text.split())


def _bytes(arguments: Arguments, operation: str) -> int:
    """Size of one rank's message, as NCCL counts it."""
    item = ITEM_BYTES.get(arguments.data_type or "", 0)
    number = arguments.num_out if operation in _RECEIVED else arguments.num_in
    if not item or number is None or not 0 < number < MAX_BYTES or operation == BARRIER:
        return UNKNOWN
    if operation == "AlltoAll":  # the number is sent to all ranks together
        size = arguments.group_size
        return number * item // size if size is not None and size > 0 else UNKNOWN
    return number * item


def _global_rank(peer: int | None, group_ranks: str | None) -> int:
    if peer is None or peer < 0 or group_ranks is None:
        return UNKNOWN
    ranks = re.findall(r"\d+", group_ranks)
    if "..." in group_ranks or peer >= len(ranks) or len(ranks[peer]) > 9:
        return UNKNOWN
    return int(ranks[peer])


def bytes_of_shapes(annotation: Arguments, operation: str) -> int:
    """Return the size of one rank's message from the shapes of a call's tensors."""
    if operation in {"ReduceScatter", "Scatter", "AlltoAll"}:
        return UNKNOWN  # the tensor is sent to all ranks together, whose number is unknown
    try:
        shapes = json.loads(bytes(annotation.input_sizes))
        types = json.loads(bytes(annotation.input_types))
        size = sum(
            math.prod(shape) * ITEM_BYTES[name] for shape, name in zip(shapes, types, strict=True)
        )
        return size if isinstance(size, int) and 0 < size < MAX_BYTES else UNKNOWN
    except (ValueError, TypeError, KeyError):
        return UNKNOWN


_PLAIN = (labels.FORWARD, labels.BACKWARD, labels.OPTIMIZER_STEP, labels.DATA_LOADING)
_LABEL = re.compile(rf"{labels.STEP} \d+|\w+ (?:h2d|d2h|d2d|p2p)|{labels.BUCKET}|{labels.WAIT}")


def read_labels(ranges: RangeTable) -> LabelRanges | None:
    """Return the annotations that `instrument` made; None without any."""
    numbers = distinct_values(ranges.name).tolist()
    label_of = {number: labels.parse(ranges.names[number]) for number in numbers}
    calls = [number for number, label in label_of.items() if read_call(label) is not None]
    others = [
        number
        for number, label in label_of.items()
        if label.operation in _PLAIN or _LABEL.fullmatch(label.operation)
    ]
    found = ranges.chosen(is_in(ranges.name, [*calls, *others]))
    if not len(found):
        return None
    found = found.chosen(np.lexsort((-found.end_ns, found.start_ns, found.thread)))
    buckets = [number for number in others if label_of[number].operation == labels.BUCKET]
    nests = ~is_in(found.name, buckets)
    # An operation in flight has the text of its call, and begins with it.
    same = (found.name[1:] == found.name[:-1]) & is_in(found.name[1:], calls)
    same &= (found.thread[1:] == found.thread[:-1]) & (found.start_ns[1:] <= found.end_ns[:-1])
    nests[:-1] &= ~same
    names = [found.names[number] for number in found.name.tolist()]
    return labelled(found.start_ns, found.end_ns, found.thread, nests, names)
