"""Copies that nothing hides: which copy each exposed nanosecond belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.run.concurrency import DIRECTIONS, copy_directions
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import UNIFIED_COPIES, MemoryKind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window

_MEMSET = DIRECTIONS.index("memset")
_HOST_MEMORY = (MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.MANAGED)
_UNIFIED = (MemoryKind.MANAGED, MemoryKind.MANAGED_STATIC)


class CopyOwners(Record, frozen=True):
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

    def __len__(self) -> int:
        return len(self.copy)


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
    copy = np.append(chosen, np.arange(len(memsets)))
    direction = np.append(directions[chosen], np.full(len(memsets), _MEMSET))
    kind = np.append(np.maximum(copies.kind[chosen], 0), np.zeros(len(memsets), np.int64))
    start = np.append(copies.start_ns[chosen], memsets.start_ns)
    end = np.append(copies.ends(chosen), memsets.end_ns)
    # Copies that are equal in all of these are interchangeable: the order of rows does not matter.
    ties = [
        np.append(of_copies[chosen], of_memsets)
        for of_copies, of_memsets in (
            (copies.destination_memory, memsets.destination_memory),
            (copies.source_memory, memsets.source_memory),
            (copies.bytes, memsets.bytes),
            (copies.stream, memsets.stream),
        )
    ]
    order = np.lexsort((*ties, kind, direction == _MEMSET, end, start))
    del ties
    copy, direction, start, end = copy[order], direction[order], start[order], end[order]
    reached = np.maximum.accumulate(end)
    low = np.maximum(start, window.start_ns)
    low[1:] = np.maximum(low[1:], reached[:-1])
    high = np.minimum(end, window.end_ns)
    owns = np.flatnonzero(low < high)
    exposed = _exposed(rank, low[owns], high[owns])
    owns, exposed = owns[exposed > 0], exposed[exposed > 0]
    copy, direction, start, end = copy[owns], direction[owns], start[owns], end[owns]
    is_memset = direction == _MEMSET
    size, memory = np.empty(len(copy), np.int64), np.full(len(copy), int(MemoryKind.UNKNOWN))
    stream = np.empty(len(copy), np.int64)
    for group, mask in ((copies, ~is_memset), (memsets, is_memset)):
        size[mask] = np.maximum(group.bytes[copy[mask]], 0)
        stream[mask] = group.packed_stream.at(copy[mask])
    memory[~is_memset] = _host_memory(rank, copy[~is_memset])
    set_memory = memsets.destination_memory[copy[is_memset]]
    memory[is_memset] = np.where(
        is_in(set_memory, _UNIFIED), MemoryKind.MANAGED, MemoryKind.UNKNOWN
    )
    return CopyOwners(
        copy, direction, start, end, exposed, size, memory, _same_stream(rank, end, stream)
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
    for kind in reversed(_HOST_MEMORY):  # of two, pageable memory decides
        memory[(source == kind) | (destination == kind)] = kind
    # The driver moves pages of unified memory: the copy's kind shows it if the memory does not.
    is_unified = is_in(copies.kind[copy], UNIFIED_COPIES)
    memory[is_unified & (memory == MemoryKind.UNKNOWN)] = MemoryKind.MANAGED
    return memory


def _same_stream(rank: Rank, end_ns: Int64, stream: Int64) -> Mask:
    """Return after which copies the next compute is on their stream; of several at once, any."""
    same = np.zeros(len(end_ns), np.bool_)
    if not len(end_ns):
        return same
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    computes = np.flatnonzero(~rank.is_communication_kernel)
    start = kernels.start_ns.take(computes)
    following = _next_start(start, end_ns)
    if len(graphs):
        following = np.minimum(following, _next_start(graphs.start_ns, end_ns))
    same |= _any_starts(kernels.packed_stream.at(computes), start, following, stream)
    if len(graphs):
        same |= _any_starts(graphs.stream, graphs.start_ns, following, stream)
    return same


def _next_start(start_ns: Int64, times_ns: Int64) -> Int64:
    """Return the first of ascending starts at or after each time; far off where there is none."""
    return np.append(start_ns, intervals.BEYOND_NS)[np.searchsorted(start_ns, times_ns)]


def _any_starts(stream_of_start: Int64, start_ns: Int64, times_ns: Int64, stream: Int64) -> Mask:
    """Return whether something starts at a time on a stream, bool[n]; `start_ns` ascends."""
    distinct, place = np.unique(times_ns, return_inverse=True)
    first = np.searchsorted(start_ns, distinct, side="left")
    count = np.searchsorted(start_ns, distinct, side="right") - first
    # The first operation that starts at each distinct time, then the second, and so on.
    which = np.repeat(np.arange(len(distinct)), count)
    streams = stream_of_start[np.arange(len(which)) + (first - np.cumsum(count) + count)[which]]
    numbers, code = np.unique(np.append(streams, stream), return_inverse=True)
    code = code.reshape(-1)
    there = which * len(numbers) + code[: len(which)]
    wanted = place.reshape(-1) * len(numbers) + code[len(which) :]
    return is_in(wanted, there)


def is_memory_known(rank: Rank, owners: CopyOwners) -> Mask:
    """Return for which owners the report has the memory of both sides, as far as it matters."""
    copies = rank.operations.copies
    from_or_to_host = np.flatnonzero(owners.direction <= DIRECTIONS.index("d2h"))
    copy = owners.copy[from_or_to_host]
    known = np.ones(len(owners), np.bool_)
    for memory in (copies.source_memory[copy], copies.destination_memory[copy]):
        known[from_or_to_host] &= (memory != NULL) & (memory != MemoryKind.UNKNOWN)
    return known
