"""Communication calls from PyTorch's own operators and annotations.

Since 2.3 the operator `record_param_comms` around each call of a back end has operation, sizes,
group and peer. Before, only an annotation inside it has them (`nccl:all_reduce`), with the shapes
of its tensors if these were recorded.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceprof import labels
from traceprof.labels import OWN_DESCRIPTIONS
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.events import Kind
from traceprof.trace.kineto.operator_work import ITEM_BYTES
from traceprof.trace.model.communication_calls import BARRIER, Fields, operation_of, read_call
from traceprof.trace.model.ranges import CallRange, labelled
from traceprof.trace.model.special_values import MAX_BYTES, OPEN_END, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.trace.kineto.content import Call, Content
    from traceprof.trace.kineto.events import Arguments
    from traceprof.trace.kineto.records import Annotations
    from traceprof.trace.model.ranges import LabelRanges

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


def read_calls(content: Content, process: int, labels: Sequence[CallRange]) -> list[CallRange]:
    """Communicating calls of a process, ordered by thread, then start.

    Calls inside `labels`, those of `instrument`, are the same.
    """
    operators = call_rows(content, Kind.OPERATOR, process)
    named = [
        (start, end, thread, operation, _fields(arguments, operation))
        for start, end, thread, (_, arguments) in operators
        if (operation := operation_named(arguments.collective or "")) is not None
    ]
    calls = [CallRange(*call) for call in named]
    unnamed = [row for row in operators if row.call.arguments.collective is None]
    around = {thread: _Spans(thread, unnamed) for thread in {row[2] for row in unnamed}}
    inside = {thread: _Spans(thread, named) for thread in {row[2] for row in named}}
    for start, end, thread, annotation in call_rows(content, Kind.ANNOTATION, process):
        match = table.ANNOTATION.fullmatch(annotation.name)
        operation = match and operation_named(match[1])
        if not operation or (thread in inside and inside[thread].around(start, end)):
            continue
        span = (around[thread].around(start, end) if thread in around else None) or (start, end)
        fields = Fields(bytes=bytes_of_shapes(annotation.arguments, operation))
        calls.append(CallRange(*span, thread, operation, fields))
    sized = [(call.start, call.end, call.thread) for call in labels if call.fields.bytes >= 0]
    of_labels = {thread: _Spans(thread, sized) for *_, thread in sized}
    calls = [
        call
        for call in calls
        if call.thread not in of_labels or not of_labels[call.thread].around(call.start, call.end)
    ]
    calls += labels
    calls.sort(key=lambda call: (call.thread, call.start, -call.end))
    return [
        # NCCL's barrier is an all-reduce.
        call._replace(operation="AllReduce") if call.operation == BARRIER else call
        for call in calls
    ]


class _Spans:
    """Spans of one thread that do not overlap, to find the one around another span."""

    def __init__(self, thread: int, rows: list[Any]) -> None:
        spans = sorted((row[0], row[1]) for row in rows if row[2] == thread)
        self._start = np.array([start for start, _ in spans], np.int64)
        self._end = np.array([end for _, end in spans], np.int64)

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the span around another; None if there is none."""
        place = int(np.searchsorted(self._start, start, side="right")) - 1
        if place < 0 or self._end[place] < end:
            return None
        return int(self._start[place]), int(self._end[place])


class CallRow(NamedTuple):
    """An operator or annotation of communication, with its times in ns."""

    start: int
    end: int
    thread: int
    call: Call


def call_rows(content: Content, kind: Kind, process: int) -> list[CallRow]:
    """Operators or annotations of communication of a process, unordered."""
    columns = content.tables.get(kind)
    if columns is None:
        return []
    facts: Int64 = columns[table.FACTS].values
    chosen = np.flatnonzero((columns[table.PROCESS].values == process) & (facts != UNKNOWN))
    start = columns[table.START].at(chosen) - (content.first_ns or 0)
    end = start + columns[table.LENGTH].at(chosen)
    if table.IS_OPEN in columns:
        end[columns[table.IS_OPEN].at(chosen) > 0] = OPEN_END
    thread = columns[table.THREAD].at(chosen)
    rows = zip(*(column.tolist() for column in (start, end, thread, facts[chosen])), strict=True)
    return [
        CallRow(begin, stop, caller, content.calls[number]) for begin, stop, caller, number in rows
    ]


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
    return None if text is None or text in OWN_DESCRIPTIONS else "_".join(text.split())


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


def read_label_ranges(annotations: Mapping[int, Annotations]) -> dict[int, LabelRanges]:
    """Read the ranges of `instrument` by process."""
    by_process = {}
    for process, ranges in annotations.items():
        names = {number: ranges.names[number] for number in distinct_values(ranges.name).tolist()}
        ours = [number for number, name in names.items() if _is_label(name)]
        calls = [number for number in ours if read_call(labels.parse(names[number])) is not None]
        rows = np.flatnonzero(is_in(ranges.name, np.array(ours, np.int64)))
        if len(rows):
            by_process[process] = _labels(ranges, rows, is_in(ranges.name[rows], calls))
    return by_process


def _is_label(name: str) -> bool:
    label = labels.parse(name)
    if label.operation in _PLAIN:
        return True
    return _LABEL.fullmatch(label.operation) is not None or read_call(label) is not None


def _labels(ranges: Annotations, rows: Int64, is_call: Mask) -> LabelRanges:
    order = np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows], ranges.thread[rows]))
    rows, is_call = rows[order], is_call[order]
    names = [ranges.names[number] for number in ranges.name[rows].tolist()]
    buckets = [labels.parse(name).operation == labels.BUCKET for name in names]
    nests = ~np.array(buckets, np.bool_)
    # An operation in flight has the text of its call, and begins with it.
    same = (ranges.name[rows][1:] == ranges.name[rows][:-1]) & is_call[1:]
    same &= (ranges.thread[rows][1:] == ranges.thread[rows][:-1]) & (
        ranges.start_ns[rows][1:] <= ranges.end_ns[rows][:-1]
    )
    nests[:-1] &= ~same
    return labelled(ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows], nests, names)
