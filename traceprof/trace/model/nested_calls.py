"""Communication calls as nested ranges on their threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceprof import labels
from traceprof.trace.model.call_labels import read_call
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS, CommunicationCalls
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.model.communication_calls import Fields
    from traceprof.trace.model.ranges import LabelRanges


class CallRange(NamedTuple):
    """A call that communicates.

    Attributes:
        start: in ns.
        end: in ns; the largest int64 if still open at the capture's end.
        thread: of the call.
        operation: one of `OPERATIONS`.
        fields: known facts.
    """

    start: int
    end: int
    thread: int
    operation: str
    fields: Fields


def labelled_calls(ranges: LabelRanges) -> list[CallRange]:
    """Return the pushed ranges that are labels of communication calls, in their order."""
    kinds = [read_call(label) for label in ranges.kinds]
    is_call = np.array([call is not None for call in kinds], np.bool_)
    chosen = np.flatnonzero(ranges.nests & is_call[ranges.kind])
    columns = (ranges.start_ns, ranges.end_ns, ranges.thread, ranges.text)
    call_ranges = []
    for start, end, thread, text in zip(
        *(column[chosen].tolist() for column in columns), strict=True
    ):
        name = ranges.texts[text]
        call = read_call(labels.parse(name))  # with its sequence number, which the kinds lack
        if call is not None:
            # NCCL's barrier is an all-reduce.
            operation = "AllReduce" if call.operation == BARRIER else call.operation
            call_ranges.append(CallRange(start, end, thread, operation, call.fields))
    return call_ranges


def nested_calls(ranges: Sequence[CallRange]) -> CommunicationCalls:
    """Return calls of one process, each a launch range of its own.

    A call without a size stands for the calls inside it.

    Args:
        ranges: ordered by thread, then start, longer ones first.
    """
    launches: list[tuple[CallRange, list[int], int]] = []
    children: list[list[int]] = []
    open_: list[int] = []
    for number, call in enumerate(ranges):
        while open_ and (ranges[open_[-1]].thread, ranges[open_[-1]].end) < (
            call.thread,
            max(call.end, call.start + 1),
        ):
            open_.pop()
        parent = open_[-1] if open_ else -1
        if parent >= 0:
            children[parent].append(number)
        launches.append((call, [number], parent))
        children.append([])
        open_.append(number)
    stand_for = [
        (call, inside if inside and call.fields.bytes < 0 else launched, parent)
        for (call, launched, parent), inside in zip(launches, children, strict=True)
    ]
    return _columns(ranges, stand_for)


def _columns(
    calls: Sequence[CallRange], launches: Sequence[tuple[CallRange, list[int], int]]
) -> CommunicationCalls:
    def column(values: Iterable[Any]) -> Int64:
        return np.array(list(values), np.int64)

    names = dict.fromkeys(call.fields.communicator or "" for call in calls)
    names.pop("", None)
    number = {name: index for index, name in enumerate(names)}
    operations = {name: index for index, name in enumerate(OPERATIONS)}
    counts = [len(members) for _, members, _ in launches]
    return CommunicationCalls(
        start_ns=column(call.start for call in calls),
        end_ns=column(call.end for call in calls),
        thread=column(call.thread for call in calls),
        operation=column(operations[call.operation] for call in calls),
        bytes=column(call.fields.bytes for call in calls),
        communicator=column(number.get(call.fields.communicator or "", UNKNOWN) for call in calls),
        peer=column(call.fields.peer for call in calls),
        world_size=column(call.fields.world_size for call in calls),
        sequence=column(call.fields.sequence for call in calls),
        launch_start_ns=column(call.start for call, _, _ in launches),
        launch_end_ns=column(call.end for call, _, _ in launches),
        launch_thread=column(call.thread for call, _, _ in launches),
        launch_parent=column(parent for *_, parent in launches),
        first_member=np.concatenate((np.zeros(1, np.int64), np.cumsum(column(counts)))),
        members=column(member for _, members, _ in launches for member in members),
        communicators=tuple(names),
        descriptions={
            call.fields.communicator: call.fields.description
            for call in calls
            if call.fields.communicator and call.fields.description
        },
    )
