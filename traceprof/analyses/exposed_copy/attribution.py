"""Which copies nothing hides, who waits for them, and which of them copy reduced gradients."""

from __future__ import annotations

import re

import numpy as np

from traceprof import intervals
from traceprof.analyses.gradient_buckets import of_operation
from traceprof.communication.exposure import compute_after
from traceprof.host.idle_gaps import busiest_stream
from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.run.concurrency import DIRECTIONS, copy_directions
from traceprof.run.rank import Rank, Window
from traceprof.run.step_ranges import OPTIMIZER_RANGES
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import HOST_MEMORY, UNIFIED_COPIES, CopyKind, MemoryKind

_MEMSET = DIRECTIONS.index("memset")
_UNIFIED = (MemoryKind.MANAGED, MemoryKind.MANAGED_STATIC)


class CopyOwners(Rows, frozen=True):
    """The copies and memory sets of a rank that own exposed time, by start."""

    copy: Int64  # int64[n], index into the rank's copies, or into its memory sets
    direction: Int64  # int64[n], index into `DIRECTIONS`; it shows which copies are memory sets
    start_ns: Int64  # int64[n], when it ran, also outside the window
    end_ns: Int64  # int64[n]
    # int64[n], above 0: how long it ran in the window, when no copy that began before it, no
    # compute and no communication did
    exposed_ns: Int64
    bytes: Int64  # int64[n], 0 if that is unknown
    # int64[n], for copies from or to the host the `MemoryKind` of the host's side, and pageable
    # memory if either side is; `UNKNOWN` otherwise
    memory: Int64
    # bool[n], whether the first compute that starts at or after its end is on its stream
    is_same_stream: Mask


_I = np.empty(0, np.int64)
_NO_COPIES = CopyOwners(_I, _I, _I, _I, _I, _I, _I, _I > 0)


def copy_owners(rank: Rank, window: Window) -> CopyOwners:
    """Return the owner of each nanosecond in which copies run and nothing else does.

    It is the copy that began first of those that run; of those that began together the one that
    ends first, then copies before memory sets, then by kind, stream, bytes and memory.
    """
    copies, memsets = rank.operations.copies, rank.operations.memsets
    if not len(copies) and not len(memsets):
        return _NO_COPIES
    directions = copy_directions(rank)
    chosen = np.flatnonzero(directions >= 0)

    def joined(name: str) -> Int64:
        return np.append(getattr(copies, name)[chosen], getattr(memsets, name))

    direction = np.append(directions[chosen], np.full(len(memsets), _MEMSET))
    kind = np.append(np.maximum(copies.kind[chosen], 0), np.zeros(len(memsets), np.int64))
    is_unified = is_in(memsets.destination_memory, _UNIFIED)
    memory = np.where(is_unified, MemoryKind.MANAGED, MemoryKind.UNKNOWN)
    memory = np.append(_host_memory(rank, chosen), memory)
    start, end, stream, size = map(joined, ("start_ns", "end_ns", "stream", "bytes"))
    # Copies that are equal in all of these are interchangeable: the order of rows does not matter.
    ties = joined("destination_memory"), joined("source_memory"), size, stream, kind
    order = np.lexsort((*ties, direction == _MEMSET, end, start))
    reached = np.maximum.accumulate(end[order])
    low = np.maximum(start[order], window.start_ns)
    low[1:] = np.maximum(low[1:], reached[:-1])
    high = np.minimum(end[order], window.end_ns)
    owns = np.flatnonzero(low < high)
    exposed = _exposed(rank, low[owns], high[owns])
    rows = order[owns[exposed > 0]]
    return CopyOwners(
        np.append(chosen, np.arange(len(memsets)))[rows],
        direction[rows],
        start[rows],
        end[rows],
        exposed[exposed > 0],
        np.maximum(size[rows], 0),
        memory[rows],
        rank.operations.streams_of(compute_after(rank, end[rows], stream[rows])) == stream[rows],
    )


def _exposed(rank: Rank, start_ns: Int64, end_ns: Int64) -> Int64:

    def within(covered: intervals.Intervals) -> Int64:
        return intervals.covered_within(covered, start_ns, end_ns)

    hidden = within(rank.compute) + within(rank.communication) - within(rank.overlapped)
    return end_ns - start_ns - hidden


def _host_memory(rank: Rank, copy: Int64) -> Int64:
    """Return the kind of memory on the host's side, int64[n]; `UNKNOWN` where there is none."""
    copies = rank.operations.copies
    source, destination = copies.source_memory[copy], copies.destination_memory[copy]
    memory = np.full(len(copy), int(MemoryKind.UNKNOWN), np.int64)
    for kind in reversed((*HOST_MEMORY, MemoryKind.MANAGED)):  # of two, pageable memory decides
        memory[(source == kind) | (destination == kind)] = kind
    # The driver moves pages of unified memory: the copy's kind shows it if the memory does not.
    is_unified = is_in(copies.kind[copy], UNIFIED_COPIES)
    memory[is_unified & (memory == MemoryKind.UNKNOWN)] = MemoryKind.MANAGED
    return memory


def is_memory_known(rank: Rank, owners: CopyOwners) -> Mask:
    """Return for which owners the report has the memory of both sides, as far as it matters."""
    from_or_to_host = np.flatnonzero(owners.direction <= DIRECTIONS.index("d2h"))
    known = np.ones(len(owners), np.bool_)
    is_known = rank.operations.copies.is_memory_known
    known[from_or_to_host] = is_known[owners.copy[from_or_to_host]]
    return known


MIN_COPIES = 4
"""In a row: fewer may be anything."""
MIN_STEPS = 2
"""That have such a row: what happens once is no habit of the program."""

# Fused optimizers of PyTorch and Apex (multi_tensor_apply), and kernels named after what they do.
OPTIMIZER_KERNELS = re.compile(
    r"multi_tensor_apply|adam|sgd|lamb|lars|adagrad|rmsprop|lion", re.IGNORECASE
)


def gradient_copies(rank: Rank) -> Int64:
    """Return the copies of gradients out of buckets, of all steps; none if they are not certain.

    In each step with an AllReduce and, launched after its last one, an optimizer kernel, they are
    the longest row of copies within the device on the compute stream between these two, with
    nothing else of that stream launched between them. All such steps must have a row of at least
    `MIN_COPIES`, of the same sizes, and there must be `MIN_STEPS` of them.

    Returns:
        Indices into `rank.operations.copies`, ascending int64[n].
    """
    copies, calls, ranges = rank.operations.copies, rank.calls, rank.step_ranges
    reduces = of_operation(rank, "AllReduce") & (rank.launched_by[0] >= 0)
    within_device = (copies.kind == CopyKind.DEVICE_TO_DEVICE) & ~rank.is_peer_copy
    within_device &= rank.launched_by[1] >= 0
    least = MIN_COPIES * MIN_STEPS
    if calls is None or ranges is None or not reduces.any() or within_device.sum() < least:
        return NO_NUMBERS
    stream = busiest_stream(rank)
    if stream is None or (copies.stream[within_device] == stream).sum() < least:
        return NO_NUMBERS
    launch = calls.start_ns[rank.launched_by[0][reduces]]
    of_reduce = intervals.holder(ranges.start_ns, ranges.end_ns, launch)
    since = np.full(len(ranges.start_ns) + 1, -1)  # the last one is of those in no step
    np.maximum.at(since, of_reduce, launch)
    columns = []
    for number, (group, launched_by) in enumerate(
        zip(rank.operations.groups, rank.launched_by, strict=True)
    ):
        index = np.flatnonzero(launched_by >= 0)
        launch = calls.start_ns[launched_by[index]]
        step = intervals.holder(ranges.start_ns, ranges.end_ns, launch)
        chosen = (step >= 0) & (since[step] >= 0) & (launch > since[step])
        index, launch, step = index[chosen], launch[chosen], step[chosen]
        nothing = np.zeros(len(index), np.bool_)
        columns.append(
            (
                step,
                launch,
                index,
                within_device[index] if number == _COPIES else nothing,
                group.packed_stream.at(index) == stream,
                _updates(rank, number, index, launch) if number in _COMPUTING else nothing,
            )
        )
    step, launch, index, is_copy, is_on_stream, updates = map(
        np.concatenate, zip(*columns, strict=True)
    )
    until = np.full(len(since), intervals.BEYOND_NS)
    np.minimum.at(until, step[updates], launch[updates])
    judged = until < intervals.BEYOND_NS
    inside = np.flatnonzero(is_on_stream & judged[step] & (launch < until[step]))
    inside = inside[np.lexsort((launch[inside], step[inside]))]
    return _rows(step[inside], index[inside], is_copy[inside], judged, rank)


_KERNELS, _COPIES, _, _GRAPHS = range(4)  # in the order of `RankOperations.groups`
_COMPUTING = (_KERNELS, _GRAPHS)


def _updates(rank: Rank, group: int, index: Int64, launch: Int64) -> Mask:
    """Return which kernels or graphs update parameters: by their range, or by their name."""
    updates = np.zeros(len(index), np.bool_)
    ranges = rank.trace.ranges(OPTIMIZER_RANGES, rank.process).get(rank.process)
    if ranges is not None:
        begun = np.searchsorted(ranges.start_ns, launch, "right")
        updates = begun > np.searchsorted(np.sort(ranges.end_ns), launch, "right")
    if group == _KERNELS:
        names = rank.kernel_names
        named = [key for key, name in names.items() if OPTIMIZER_KERNELS.search(name)]
        updates |= rank.operations.kernels.are_named(named)[index]
        updates &= ~rank.is_communication_kernel[index]
    return updates


def _rows(step: Int64, index: Int64, is_copy: Mask, judged: Mask, rank: Rank) -> Int64:
    """Return the copies of the longest row of each step; none where the steps' rows differ.

    `step`: int64[n], of the operations on the compute stream between AllReduce and optimizer, by
    step, then launch. `index`: of the copy, for copies within the device (`is_copy`). `judged`:
    bool[steps], which must have a row.
    """
    if not len(step):
        return NO_NUMBERS
    begins = np.append(True, (step[1:] != step[:-1]) | (is_copy[1:] != is_copy[:-1]))
    first = np.flatnonzero(begins)
    length = np.diff(first, append=len(step))
    longest = int(length.max(initial=0, where=is_copy[first]))
    first = first[is_copy[first] & (length == longest)]
    _, first_of_step = np.unique(step[first], return_index=True)
    first = first[first_of_step]
    if longest < MIN_COPIES or len(first) < max(int(judged.sum()), MIN_STEPS):
        return NO_NUMBERS
    rows = index[first[:, np.newaxis] + np.arange(longest)]
    sizes = np.sort(rank.operations.copies.bytes[rows], axis=1)
    if (sizes != sizes[0]).any():
        return NO_NUMBERS
    return np.sort(rows.ravel())
