"""The work of a process by the ranges of `instrument`: compute, communication, gradient buckets.

A process without GPU work can only be measured by these. Where ranges are nested, the one that the
thread waits in counts: a call inside `backward` is communication, not compute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum

import numpy as np

from traceprof import intervals, labels
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.labels import Label
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.communication_calls import CallLabel, number_of, operation_of, read_call
from traceprof.trace.model.ranges import LabelRanges
from traceprof.trace.model.special_values import OPEN_END


class _Role(IntEnum):
    OTHER = 0
    STEP = 1
    COMPUTE = 2
    OPERATION = 3
    CONTAINER = 4  # encloses operations
    WAIT = 5
    BUCKET = 6
    GPU_COPY = 7
    LOADING = 8


_COMPUTE = (labels.FORWARD, labels.BACKWARD, labels.OPTIMIZER_STEP)
_ROLE_OF = {
    **dict.fromkeys(_COMPUTE, _Role.COMPUTE),
    labels.BUCKET: _Role.BUCKET,
    labels.DATA_LOADING: _Role.LOADING,
}
_STEP = re.compile(rf"{labels.STEP} \d+")
_GPU_COPY = re.compile(r"\w+ (?:h2d|d2h|d2d|p2p)")
# Functions that return before the operation is done.
_ALWAYS_ASYNCHRONOUS = re.compile(r"_*(?:isend|irecv)")


class CpuOperations(Rows, frozen=True):
    """The communication operations of a process, each once, by start; n of each column."""

    start_ns: Int64  # int64[n], when it was called
    # int64[n], when it was over; if that is unknown, when its call returned
    end_ns: Int64
    is_over: Mask  # bool[n], whether the end is the operation's and not only its call's
    kind: Int64  # int64[n], indices into `LabelRanges.kinds`
    text: Int64  # int64[n], indices into `LabelRanges.texts`
    sequence: Int64  # int64[n], the call's number in its group; -1 if unknown


class CpuBuckets(Record, frozen=True):
    """The gradient buckets of a process by start; n of each column."""

    start_ns: Int64  # int64[n], when it was ready
    end_ns: Int64  # int64[n], when it was reduced, `OPEN_END` where the capture ended before
    index: Int64  # int64[n], its place among the buckets; -1 if unknown
    bytes: Int64  # int64[n]; -1 if unknown


class CpuWork(Record, frozen=True):
    """The work of a process according to its ranges."""

    start_ns: int  # when its first range began
    # when the last one ended. One that was open when the capture ended lasts to the latest time
    # that is known from the others
    end_ns: int
    first_compute_ns: int  # begin of the first `forward`, `backward` or `optimizer step`
    # time in `forward`, `backward` or `optimizer step`, not waiting for communication
    compute: Intervals
    communication: Intervals  # time in a call or a wait for one, or with one in flight
    loading: Intervals  # when a thread waited for its data
    communicates: Mask  # bool[n], whether each range is communication
    operations: CpuOperations  # the communication operations
    calls: Sequence[CallLabel | None]  # calls by `LabelRanges.kinds`; None for none
    num_open: int  # ranges that were open when the capture ended
    used_gpu: bool  # whether its ranges include copies to or from a GPU


def is_rank(ranges: LabelRanges) -> bool:
    """Return whether a process trains: it communicates, computes or has steps."""
    telling = (_Role.STEP, _Role.COMPUTE, _Role.OPERATION)
    return any(_role(kind, read_call(kind)) in telling for kind in ranges.kinds)


def cpu_work(ranges: LabelRanges) -> CpuWork:
    """Return the work of a process by its ranges; it has at least one."""
    calls = [read_call(label) for label in ranges.kinds]
    of_kind = [_role(label, call) for label, call in zip(ranges.kinds, calls, strict=True)]
    role = np.array(of_kind, np.int64)[ranges.kind]
    start, is_open = ranges.start_ns, ranges.end_ns == OPEN_END
    last = max(int(start.max()), int(ranges.end_ns[~is_open].max(initial=start.max())))
    end = np.where(is_open, last, ranges.end_ns)
    blocks = is_in(role, (_Role.OPERATION, _Role.CONTAINER, _Role.WAIT)) & ranges.nests
    flies = is_in(role, (_Role.OPERATION, _Role.CONTAINER)) & ~ranges.nests
    in_flight = intervals.union(start[flies], end[flies])
    computes = (role == _Role.COMPUTE) & ranges.nests
    compute = intervals.empty()
    for thread in distinct_values(ranges.thread[computes]).tolist():
        of_thread = ranges.thread == thread
        working, blocked = (
            intervals.union(start[chosen], end[chosen])
            for chosen in (computes & of_thread, blocks & of_thread)
        )
        tail = intervals.intersect(_tails(ranges, end, of_thread), in_flight)
        waiting = intervals.merge(blocked, tail)
        compute = intervals.merge(compute, intervals.subtract(working, waiting))
    return CpuWork(
        start_ns=int(start.min()),
        end_ns=last,
        first_compute_ns=int(start[role == _Role.COMPUTE].min(initial=last)),
        compute=compute,
        loading=intervals.union(start[role == _Role.LOADING], end[role == _Role.LOADING]),
        communication=intervals.merge(intervals.union(start[blocks], end[blocks]), in_flight),
        communicates=blocks | flies,
        operations=_operations(ranges, end, role == _Role.OPERATION, calls),
        calls=calls,
        num_open=int(is_open.sum()),
        used_gpu=_Role.GPU_COPY in of_kind,
    )


def text_at(ranges: LabelRanges, work: CpuWork, time_ns: int) -> str | None:
    """Return the text of the communication range open at a time, of several the last to begin."""
    running = work.communicates & (ranges.start_ns <= time_ns) & (ranges.end_ns > time_ns)
    rows = np.flatnonzero(running)
    if len(rows) == 0:
        return None
    return ranges.texts[int(ranges.text[rows[np.argmax(ranges.start_ns[rows])]])]


def host_buckets(ranges: LabelRanges) -> CpuBuckets:
    """Return the gradient buckets that a process reduced."""
    chosen = np.flatnonzero(_bucket_kinds(ranges)[ranges.kind])
    chosen = chosen[np.argsort(ranges.start_ns[chosen], kind="stable")]
    index, size = (
        np.array([number_of(label.facts.get(name)) for label in ranges.kinds], np.int64)
        for name in ("index", "bytes")
    )
    kind = ranges.kind[chosen]
    return CpuBuckets(ranges.start_ns[chosen], ranges.end_ns[chosen], index[kind], size[kind])


def _role(label: Label, call: CallLabel | None) -> _Role:
    if label.operation == labels.WAIT:
        return _Role.WAIT
    if call is not None:
        return _Role.CONTAINER if call.is_container else _Role.OPERATION
    if label.operation in _ROLE_OF:
        return _ROLE_OF[label.operation]
    if _GPU_COPY.fullmatch(label.operation):
        return _Role.GPU_COPY
    return _Role.STEP if _STEP.fullmatch(label.operation) else _Role.OTHER


def _bucket_kinds(ranges: LabelRanges) -> Mask:
    return np.array([label.operation == labels.BUCKET for label in ranges.kinds], np.bool_)


def _tails(ranges: LabelRanges, end: Int64, of_thread: Mask) -> Intervals:
    """Rest of each `backward` after its last bucket was ready: waiting for operations in flight."""
    is_last = np.array([label.facts.get("last") == "1" for label in ranges.kinds], np.bool_)
    is_backward = np.array([label.operation == labels.BACKWARD for label in ranges.kinds], np.bool_)
    ready = np.sort(ranges.start_ns[(_bucket_kinds(ranges) & is_last)[ranges.kind]])
    backward = np.flatnonzero(is_backward[ranges.kind] & ranges.nests & of_thread)
    at = np.searchsorted(ready, end[backward], side="left") - 1
    backward, at = backward[at >= 0], at[at >= 0]
    holds = ready[at] >= ranges.start_ns[backward]
    return intervals.union(ready[at[holds]], end[backward[holds]])


def _operations(
    ranges: LabelRanges, end: Int64, chosen: Mask, calls: Sequence[CallLabel | None]
) -> CpuOperations:
    """Each operation once: a call and its flight, if known, are merged.

    Both have the same text and begin together. In a series of these that touch, each odd one
    belongs to the next.
    """
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((~ranges.nests[rows], ranges.start_ns[rows], ranges.text[rows]))]
    some, finish = ranges.chosen(rows), end[rows]
    start, text, nests, kind = some.start_ns, some.text, some.nests, some.kind
    is_linked = (text[1:] == text[:-1]) & (nests[1:] != nests[:-1]) & (start[1:] <= finish[:-1])
    is_linked = np.append(is_linked, False)  # to the next
    run_begins = np.insert(~is_linked[:-1], 0, True) if len(rows) else is_linked[:0]
    number = np.arange(len(rows))
    place = number - np.maximum.accumulate(np.where(run_begins, number, 0))
    is_pair = is_linked & (place % 2 == 0)
    is_second = np.append(False, is_pair[:-1])[: len(rows)]
    first = np.flatnonzero(~is_second)
    finish[is_pair] = np.maximum(finish[is_pair], finish[np.flatnonzero(is_pair) + 1])
    ended = some.end_ns != OPEN_END
    is_flight = ~nests & ended
    flies, returns_early = _asynchronous(ranges, calls, set(kind[is_flight].tolist()))
    # Where flights are recorded, a call without one is synchronous, unless it came after the last
    # flight began: then its own may have been cut off by the capture's end.
    is_early = start < start[is_flight].max(initial=0)
    is_done = np.where(flies[kind], is_early, ~returns_early[kind])
    is_certain = (is_pair | ~nests | is_done) & ended
    is_certain &= ~is_pair | np.append(ended[1:], True)[: len(rows)]
    order = first[np.argsort(start[first], kind="stable")]
    return CpuOperations(
        start[order],
        finish[order],
        is_certain[order],
        kind[order],
        text[order],
        ranges.sequence[text[order]],
    )


def _asynchronous(
    ranges: LabelRanges, calls: Sequence[CallLabel | None], flown: AbstractSet[int]
) -> tuple[Mask, Mask]:
    """Say by kind whether flights of the operation and group were recorded, and whether calls wait.

    `flown`: kinds with flights. A call does not wait if something waits for its operation later, or
    its function never waits.
    """
    named = [call and (call.operation, call.fields.communicator) for call in calls]
    with_flights = {named[kind] for kind in flown}
    waited_for = {
        (operation_of(label.facts["op"]), label.facts.get("group"))
        for label in ranges.kinds
        if label.operation == labels.WAIT and "op" in label.facts
    }
    flies = [name is not None and name in with_flights for name in named]
    returns_early = [
        name is not None
        and (_ALWAYS_ASYNCHRONOUS.match(label.operation) is not None or name in waited_for)
        for label, name in zip(ranges.kinds, named, strict=True)
    ]
    return np.array(flies, np.bool_), np.array(returns_early, np.bool_)
