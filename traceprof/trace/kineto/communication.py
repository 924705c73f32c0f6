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

from traceprof.labels import OWN_DESCRIPTIONS
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.events import AROUND_CALLS, Kind
from traceprof.trace.model.call_labels import operation_of
from traceprof.trace.model.communication_calls import BARRIER, Fields
from traceprof.trace.model.limits import MAX_BYTES
from traceprof.trace.model.nested_calls import CallRange
from traceprof.trace.model.special_values import OPEN_END, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.kineto.content import Call, Content
    from traceprof.trace.kineto.events import Arguments

_ITEM_BYTES = {
    1: ("Byte", "Char", "Bool", "QInt8", "QUInt8", "unsigned char", "signed char", "bool",
        "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu",
        "c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"),
    2: ("Short", "Half", "BFloat16", "UInt16", "short", "short int", "c10::Half",
        "c10::BFloat16", "unsigned short"),
    4: ("Int", "Float", "QInt32", "UInt32", "ComplexHalf", "int", "float", "unsigned int",
        "c10::complex<c10::Half>"),
    8: ("Long", "Double", "UInt64", "ComplexFloat", "long", "long int", "double",
        "unsigned long", "c10::complex<float>"),
    16: ("ComplexDouble", "c10::complex<double>"),
}  # fmt: skip
_BYTES_OF = {name: size for size, names in _ITEM_BYTES.items() for name in names}
_RECEIVED = ("ReduceScatter", "Recv", "Scatter")  # their message is the data that one rank receives


def operation_named(function: str) -> str | None:
    """Return the operation of a back end's function; None if it does not communicate.

    Args:
        function: in PyTorch's spelling: `allreduce`, `_allgather_base`, `all_to_allv`.
    """
    spelt = function.lower().replace("alltoall", "all_to_all")
    for joined, split in (
        ("allreduce", "all_reduce"),
        ("allgather", "all_gather"),
        ("reducescatter", "reduce_scatter"),
    ):
        spelt = spelt.replace(joined, split)
    return operation_of(spelt)


def read_calls(content: Content, process: int, labels: Sequence[CallRange]) -> list[CallRange]:
    """Return the calls of a process that communicate, ordered by thread, then start.

    Args:
        content: of the trace.
        process: of the calls.
        labels: the labels of `instrument`: calls inside these are the same.
    """
    operators = [
        row for row in call_rows(content, Kind.OPERATOR, process) if row.call.name == AROUND_CALLS
    ]
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
    """Return the operators or annotations of communication of a process, unordered."""
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
    """Return the size of one rank's message, as NCCL counts it."""
    item = _BYTES_OF.get(arguments.data_type or "", 0)
    number = arguments.num_out if operation in _RECEIVED else arguments.num_in
    if not item or number is None or not 0 < number < MAX_BYTES or operation == BARRIER:
        return UNKNOWN
    if operation == "AlltoAll":  # the number is sent to all ranks together
        size = arguments.group_size
        return number * item // size if size is not None and size > 0 else UNKNOWN
    return number * item


def _global_rank(peer: int | None, group_ranks: str | None) -> int:
    """Return the rank in the world of a group's rank; -1 if unknown."""
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
            math.prod(shape) * _BYTES_OF[name] for shape, name in zip(shapes, types, strict=True)
        )
        return size if isinstance(size, int) and 0 < size < MAX_BYTES else UNKNOWN
    except (ValueError, TypeError, KeyError):
        return UNKNOWN
