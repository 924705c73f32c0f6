"""Calls in which host threads wait for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.run.host_clock import copies_to_pageable
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import CopyKind, MemoryKind, waits_for_gpu
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.host import ApiCalls

# CUDA stages copies of up to 64 KiB from pageable memory and returns at once, and such a copy takes
# some microseconds however it is made.
MAX_STAGED_BYTES = 64 * 1024
OWN_WAIT_NS = 15_000
"""What a synchronizing call takes if there is nothing to wait for: the median of the shortest in
real traces, the profiler's part included."""


class ThreadCalls(Record, frozen=True):
    """Some API calls of one thread, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        call: int64[n], indices into the process's `ApiCalls`.
    """

    start_ns: Int64
    end_ns: Int64
    call: Int64

    @property
    def covered(self) -> Intervals:
        """The times in which one of the calls was running."""
        return intervals.union(self.start_ns, self.end_ns)


def synchronizing_calls(rank: Rank, calls: ApiCalls) -> Mask:
    """Return which calls of the process wait for the GPU, bool[calls].

    Calls are known by name, except for asynchronous copies to pageable host memory: those return
    when the copy is over, such as the read of four bytes in `loss.item()`.
    """
    ids = [key for key, name in rank.trace.api_names.items() if waits_for_gpu(name)]
    synchronizes = calls.packed_name.isin(ids)
    reads = rank.launched_by[1][copies_to_pageable(rank)]
    synchronizes[reads[reads >= 0]] = True
    return synchronizes


def by_thread(calls: ApiCalls, chosen: Mask) -> dict[int, ThreadCalls]:
    """Return the chosen calls of each thread that made any."""
    index = np.flatnonzero(chosen)
    if len(index) == 0:
        return {}
    thread = calls.packed_thread.at(index)
    order = np.lexsort((calls.ends(index), calls.start_ns[index], thread))
    index = index[order]
    threads, first = np.unique(thread[order], return_index=True)
    return {
        thread: ThreadCalls(calls.start_ns[part], calls.ends(part), part)
        for thread, part in zip(threads.tolist(), np.split(index, first[1:]), strict=True)
    }


def may_copy_from_pageable(rank: Rank, window: Window) -> bool:
    """Return whether a copy to the GPU in a window may be from pageable memory.

    False only where there are such copies, and all of them are known to be from other memory.
    """
    copies = rank.operations.copies
    is_upload = (copies.kind == CopyKind.HOST_TO_DEVICE) & window.holds_start(copies.start_ns)
    source = copies.source_memory[is_upload]
    unpinned = (NULL, MemoryKind.UNKNOWN, MemoryKind.PAGEABLE)
    return not len(source) or bool(is_in(source, unpinned).any())
