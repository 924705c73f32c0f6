"""Gaps that end with the copy of a batch: a thread that slept before it waited for the batch.

A copy of a batch goes from the host to the device. Either a step begins or ends on the host between
the compute launched before and after the copy, or its thread launches nothing to the busiest
compute stream, and so only loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import is_in
from traceprof.trace.model.special_values import NULL, OPEN_END

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.host.idle_gaps import IdleGaps
    from traceprof.host.launching_threads import LaunchingThreads
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls


def are_batches(
    rank: Rank,
    calls: ApiCalls,
    gaps: IdleGaps,
    threads: LaunchingThreads,
    streams_of: Mapping[int, frozenset[int]],
) -> Mask:
    """Return which late gaps end with the copy of a batch, bool[late gaps].

    Args:
        rank: the rank.
        calls: the calls of its process.
        gaps: its gaps.
        threads: the threads of its late gaps.
        streams_of: the streams of the rank to which each thread launches.
    """
    is_batch = np.zeros(len(gaps.late), np.bool_)
    uploads = np.flatnonzero(gaps.is_upload)
    if not len(uploads):
        return is_batch
    busiest = _busiest_stream(rank)
    computing = [thread for thread, streams in streams_of.items() if busiest in streams]
    only_loads = ~is_in(threads.thread[uploads], np.array(computing, np.int64))
    if busiest is None:
        only_loads[:] = False
    is_batch[uploads] = only_loads
    others = uploads[~only_loads]
    is_batch[others] = _are_at_boundaries(rank, calls, calls.start_ns[gaps.launch[others]])
    return is_batch


def _busiest_stream(rank: Rank) -> int | None:
    """Return the stream on which compute ran longest, the first of equals; None without compute."""
    spent: dict[int, int] = {}
    kernels, _, _, graphs = rank.operations.groups
    for group, chosen in ((kernels, ~rank.is_communication_kernel), (graphs, slice(None))):
        distinct = group.packed_stream.counted(chosen)[0]
        total = np.zeros(len(distinct), np.int64)
        which = group.packed_stream.places_in(distinct)[chosen]
        np.add.at(total, which, group.packed_length.at(chosen))
        for number, ns in zip(distinct.tolist(), total.tolist(), strict=True):
            spent[number] = spent.get(number, 0) + ns
    return min(spent, key=lambda number: (-spent[number], number), default=None)


def _are_at_boundaries(rank: Rank, calls: ApiCalls, time_ns: Int64) -> Mask:
    """Return whether a step begins or ends between the compute launched before and after times.

    Args:
        rank: the rank that computes.
        calls: the calls of its process.
        time_ns: int64[n].

    Returns:
        bool[n].
    """
    if rank.step_ranges is None or not len(time_ns):
        return np.zeros(len(time_ns), np.bool_)
    limits = np.sort(np.concatenate((rank.step_ranges.start_ns, rank.step_ranges.end_ns)))
    kernels, _, _, graphs = rank.launched_by
    launched = np.concatenate((kernels[~rank.is_communication_kernel], graphs))
    launches = calls.start_ns.take(launched[launched >= 0])
    launches.sort(kind="stable")  # fast, since they are nearly in order
    # No limit comes before the first of these, all before the last.
    launches = np.concatenate(([NULL], launches, [OPEN_END]))
    before = launches[np.searchsorted(launches, time_ns) - 1]
    after = launches[np.searchsorted(launches, time_ns, side="right")]
    num_before = np.searchsorted(limits, before, side="right")
    is_between: Mask = np.searchsorted(limits, after, side="right") > num_before
    return is_between
