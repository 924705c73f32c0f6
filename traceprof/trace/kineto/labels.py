"""Annotations that are labels, or substitutes for labels without `instrument`.

A process without a GPU is measured by the labels of `instrument`. Without these, PyTorch's own
annotations show a part of it: `gloo:all_reduce` is an operation in flight, on a thread of the back
end; `DistributedDataParallel.forward`, `Optimizer.step#SGD.step` and autograd's operators compute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof import labels
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.communication import (
    bytes_of_shapes,
    call_rows,
    operation_named,
    own_description,
)
from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.call_labels import read_call
from traceprof.trace.model.ranges import labelled
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64, Mask
    from traceprof.trace.kineto.communication import CallRow
    from traceprof.trace.kineto.content import Call, Content
    from traceprof.trace.kineto.metadata import Metadata
    from traceprof.trace.kineto.ranges import Annotations
    from traceprof.trace.model.ranges import LabelRanges


_OF_GPU = (Kind.KERNEL, Kind.COPY, Kind.MEMORY_SET)
_PLAIN = (labels.FORWARD, labels.BACKWARD, labels.OPTIMIZER_STEP, labels.DATA_LOADING)
_LABEL = re.compile(rf"{labels.STEP} \d+|\w+ (?:h2d|d2h|d2d|p2p)|{labels.BUCKET}|{labels.WAIT}")
_COMPUTES = (
    (re.compile(r"DistributedDataParallel\.forward|FullyShardedDataParallel\.forward"),
     labels.FORWARD),
    (re.compile(r"Optimizer\.step#\w+\.step"), labels.OPTIMIZER_STEP),
)  # fmt: skip


class _Row(NamedTuple):
    """A row of `LabelRanges`."""

    start: int
    end: int
    thread: int
    nests: bool
    text: str


_ONE_SIDED = ("Send", "Recv")  # the back end runs them on the calling thread


def read_label_ranges(
    content: Content, annotations: Mapping[int, Annotations], metadata: Metadata
) -> dict[int, LabelRanges]:
    """Return the ranges of `instrument` by process, or their substitutes.

    Args:
        content: of the trace.
        annotations: by process.
        metadata: of the trace.
    """
    has_gpu = any(kind in content.num_events for kind in _OF_GPU)
    by_process = {}
    for process, ranges in annotations.items():
        names = {number: ranges.names[number] for number in distinct_values(ranges.name).tolist()}
        ours = [number for number, name in names.items() if _is_label(name)]
        calls = [number for number in ours if read_call(labels.parse(names[number])) is not None]
        rows = np.flatnonzero(is_in(ranges.name, np.array(ours, np.int64)))
        if not calls and not has_gpu:
            substitutes = _substitutes(content, process, ranges, metadata)
        else:
            substitutes = None
        of_process = substitutes or _labels(ranges, rows, is_in(ranges.name[rows], calls))
        if len(of_process):
            by_process[process] = of_process
    return by_process


def _is_label(name: str) -> bool:
    """Return whether an annotation is one of `instrument`."""
    label = labels.parse(name)
    if label.operation in _PLAIN:
        return True
    return _LABEL.fullmatch(label.operation) is not None or read_call(label) is not None


def _labels(ranges: Annotations, rows: Int64, is_call: Mask) -> LabelRanges:
    """Return the annotations that are labels.

    Args:
        ranges: of a process.
        rows: indices of the labels, int64[n].
        is_call: bool[n], whether they are communication.
    """
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


def _substitutes(
    content: Content, process: int, ranges: Annotations, metadata: Metadata
) -> LabelRanges | None:
    """Return substitutes from PyTorch's annotations; None if no annotation communicates."""
    rows = list[_Row]()
    for flight, call, function, operation in _operations(content, process):
        text = _text(function, flight.call, operation, metadata)
        start, is_call = flight.start, operation in _ONE_SIDED
        if call is not None and not is_call:
            start = call.start
            rows.append(_Row(call.start, call.end, call.thread, nests=True, text=text))
        rows.append(_Row(start, flight.end, flight.thread, is_call, text))
    if not rows:
        return None
    for pattern, label in _COMPUTES:
        named = ranges.matching(pattern)
        columns = (column.tolist() for column in (named.start_ns, named.end_ns, named.thread))
        rows += [
            _Row(begin, end, thread, nests=True, text=label)
            for begin, end, thread in zip(*columns, strict=True)
        ]
    borders = np.array(sorted(row.start for row in rows if row.text in _PLAIN), np.int64)
    backwards = _backwards(content, process, borders)
    rows += [
        _Row(begin, end, thread, nests=True, text=labels.BACKWARD)
        for begin, end, thread in backwards
    ]
    rows.sort(key=lambda row: (row.thread, row.start, -row.end))
    starts, ends, threads = (np.array([row[place] for row in rows], np.int64) for place in range(3))
    nests = np.array([row.nests for row in rows], np.bool_)
    return labelled(starts, ends, threads, nests, [row.text for row in rows])


def _operations(content: Content, process: int) -> list[tuple[CallRow, CallRow | None, str, str]]:
    """Return each operation of a back end, its call, function and operation.

    The call, on the training thread, is known if there are as many calls as operations: a back end
    begins the operations of one function in the order of the calls.
    """
    operations: dict[tuple[str, str], list[CallRow]] = defaultdict(list)
    for row in call_rows(content, Kind.ANNOTATION, process):
        match = table.ANNOTATION.fullmatch(row.call.name)
        operation = match and operation_named(match[1])
        if match and operation:
            operations[match[1], operation].append(row)
    calls: dict[str, list[CallRow]] = defaultdict(list)
    for row in call_rows(content, Kind.OPERATOR, process):
        _, _, function = row.call.name.partition("::")
        calls[operation_named(function) or ""].append(row)
    rows = []
    for (function, operation), flights in operations.items():
        flights.sort()
        called = sorted(calls[operation])
        is_known = len(called) == len(flights) and all(
            call.start <= flight.start for call, flight in zip(called, flights, strict=True)
        )
        for index, flight in enumerate(flights):
            rows.append((flight, called[index] if is_known else None, function, operation))
    return rows


def _text(function: str, call: Call, operation: str, metadata: Metadata) -> str:
    """Return the label that `instrument` would have made of a call, with the known facts."""
    size = bytes_of_shapes(call.arguments, operation)
    group, num_ranks, text = metadata.only_group or ("unknown", None, None)
    description = own_description(text)
    facts = {
        **({"bytes": str(size)} if size != UNKNOWN else {}),
        "group": group,
        **({"size": str(num_ranks)} if num_ranks else {}),
        **({"desc": description} if description else {}),
    }
    return str(labels.Label(function, facts))


def _backwards(content: Content, process: int, borders: Int64) -> list[tuple[int, int, int]]:
    """Return start, end and thread of each backward pass: autograd's operators between others.

    Args:
        content: of the trace.
        process: of the passes.
        borders: starts of forward passes and optimizer steps, ascending int64[n].
    """
    columns = content.tables.get(Kind.BACKWARD)
    if columns is None:
        return []
    chosen = np.flatnonzero(columns[table.PROCESS].values == process)
    start = columns[table.START].at(chosen) - (content.first_ns or 0)
    end, thread = start + columns[table.LENGTH].at(chosen), columns[table.THREAD].at(chosen)
    after = np.searchsorted(borders, start, side="right")
    passes: dict[tuple[int, int], tuple[int, int]] = {}
    for key, span in zip(
        zip(thread.tolist(), after.tolist(), strict=True),
        zip(start.tolist(), end.tolist(), strict=True),
        strict=True,
    ):
        known = passes.get(key, span)
        passes[key] = min(known[0], span[0]), max(known[1], span[1])
    return [(*span, of_thread) for (of_thread, _), span in passes.items()]
