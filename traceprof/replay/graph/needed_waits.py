"""Host waits whose result is used at once: sent, written or worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.idle_causes import MAX_STRETCH_NS
from traceprof.host.thread_evidence import host_evidence
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.host.thread_evidence import ThreadEvidence
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.run.opening import Rank

MIN_SLEEP_NS = 1_000_000
"""A thread that sleeps so long after a copy came is taken to write or send it, not to be held up
by the scheduler."""
MAX_SCALAR_BYTES = 16
"""A complex number: it is looked at, and not worked on for long."""


def needed_at_once(
    ranks: Sequence[tuple[int, Rank]],
    calls: HostCalls,
    work: GpuWork,
    waiting: Int64,
    awaited: Int64,
    shift_ns: int,
) -> Mask:
    """Return which waits are for data used before the thread launches anything, bool[m].

    Before a call of MPI (or Gloo) that is likely what MPI sends. A program without the wait would
    use what is not there yet. So it would with a copy to the host if then, without data loading,

    * the thread sleeps for long: it likely writes or sends what came;
    * it makes no launch for longer than a wait explains: it works on what came, but for a scalar;
    * the first thing that it launches is a copy of as many bytes to the GPU: what came goes back,
      from another rank or changed by the host.

    Args:
        ranks: of the process, each with its index among those of the run.
        calls: of the process.
        work: its operations.
        waiting: int64[m], outer calls, indices into `calls`; some several times.
        awaited: int64[m], the operation that each waits for, indices into `work`.
        shift_ns: what was added to times of the report.
    """
    is_needed = np.zeros(len(waiting), np.bool_)
    evidence = host_evidence(ranks[0][1])
    if evidence is None or not len(waiting):
        return is_needed
    following = _launched_next(calls, work, waiting)
    has_next = following >= 0
    until_ns = np.full(len(waiting), intervals.BEYOND_NS)
    until_ns[has_next] = calls.start_ns[calls.outer[work.call[following[has_next]]]] - shift_ns
    since_ns = calls.end_ns[waiting] - shift_ns
    copied = np.where(work.is_to_host[awaited], copied_bytes(ranks, work, awaited), 0)
    is_for_copy = _of_call(calls, waiting, copied > 0)
    is_for_data = _of_call(calls, waiting, copied > MAX_SCALAR_BYTES) & has_next
    threads = evidence.calls.packed_thread.at(calls.index[waiting])
    for thread in distinct_values(threads).tolist():
        rows = np.flatnonzero(threads == thread)
        of_thread = evidence.thread(thread)
        gap = since_ns[rows], until_ns[rows]
        uses = _begins_within(of_thread.mpi, *gap)
        uses |= is_for_copy[rows] & _begins_within(_long_sleeps(of_thread), *gap)
        works = is_for_data[rows] & (gap[1] - gap[0] > MAX_STRETCH_NS)
        uses[works] |= _awake_ns(of_thread, gap[0][works], gap[1][works]) > MAX_STRETCH_NS
        is_needed[rows] = uses
    goes_back = _goes_back(ranks, calls, work, (waiting, awaited), following)
    return is_needed | _of_call(calls, waiting, goes_back)


def round_trips(
    ranks: Sequence[tuple[int, Rank]], calls: HostCalls, work: GpuWork, waits: tuple[Int64, Int64]
) -> tuple[Int64, Int64]:
    """Return the calls that wait for data that goes straight back to a GPU, each with that launch.

    Where the thread's own code runs for longer between them than a wait explains, such as an
    optimizer on the CPU, what it copies to the GPU is its result.

    Args:
        ranks: of the process, each with its index among those of the run.
        calls: of the process.
        work: its operations.
        waits: int64[m] each, outer calls that wait, and the operations that they wait for.
    """
    waiting, _ = waits
    following = _launched_next(calls, work, waiting)
    rows = np.flatnonzero(_goes_back(ranks, calls, work, waits, following))
    since, until = waiting[rows], calls.outer[work.call[following[rows]]]
    evidence = host_evidence(ranks[0][1])
    if evidence is not None and len(rows):
        own = evidence.calls
        low, high = own.ends(calls.index[since]), own.start_ns[calls.index[until]]
        threads, worked = own.packed_thread.at(calls.index[since]), np.zeros(len(rows), np.int64)
        for thread in distinct_values(threads).tolist():
            chosen, of_thread = threads == thread, evidence.thread(thread)
            worked[chosen] = _awake_ns(of_thread, low[chosen], high[chosen], of_thread.mpi)
        since, until = (column[worked <= MAX_STRETCH_NS] for column in (since, until))
    return since, until


def _launched_next(calls: HostCalls, work: GpuWork, waiting: Int64) -> Int64:
    """Return the next launch of each call's thread, int64[m]; -1 for none."""
    operations = np.flatnonzero(work.call >= 0)
    launch = calls.outer[work.call[operations]]
    order = np.argsort(launch, kind="stable")
    at = np.searchsorted(launch[order], waiting, side="right")
    following = np.append(operations[order], -1)[at]
    is_own = calls.thread[work.call[following]] == calls.thread[waiting]
    return np.where((following >= 0) & is_own, following, -1)


def copied_bytes(ranks: Sequence[tuple[int, Rank]], work: GpuWork, operations: Int64) -> Int64:
    """Return the bytes that operations copy, int64[n]; 0 if they copy nothing."""
    copied = np.zeros(len(operations), np.int64)
    for index, rank in ranks:
        of_rank = (work.rank[operations] == index) & (work.group[operations] == 1)
        rows = np.flatnonzero(of_rank & (operations >= 0))
        copied[rows] = rank.operations.copies.bytes[work.place[operations[rows]]]
    return copied


def _goes_back(
    ranks: Sequence[tuple[int, Rank]],
    calls: HostCalls,
    work: GpuWork,
    waits: tuple[Int64, Int64],
    following: Int64,
) -> Mask:
    """Say which copies to the host are followed by one of as many bytes to the GPU, bool[m].

    Of several copies that follow each other on a stream, the first or the last one. Where the
    thread loads data between them, what it copies to the GPU is something else.
    """
    waiting, awaited = waits
    begins = np.append(True, ~work.is_to_host[:-1] | (np.diff(work.chain) != 0))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(work)), 0))[awaited]
    size = copied_bytes(ranks, work, following)
    is_same = (copied_bytes(ranks, work, awaited) == size) | (
        copied_bytes(ranks, work, first) == size
    )
    to_device = (following >= 0) & work.is_to_device[following]
    same: Mask = work.is_to_host[awaited] & to_device & is_same & (size > 0)
    evidence = host_evidence(ranks[0][1])
    rows = np.flatnonzero(same)
    if evidence is not None and len(rows):
        own = evidence.calls
        low = own.ends(calls.index[waiting[rows]])
        high = own.start_ns[calls.index[calls.outer[work.call[following[rows]]]]]
        threads = own.packed_thread.at(calls.index[waiting[rows]])
        for thread in distinct_values(threads).tolist():
            chosen = threads == thread
            loading = evidence.thread(thread).loading
            loaded_ns = intervals.covered_within(loading, low[chosen], high[chosen])
            same[rows[chosen]] = loaded_ns == 0
    return same


def _of_call(calls: HostCalls, waiting: Int64, chosen: Mask) -> Mask:
    """Say for which rows their call is one of those of some rows, bool[m]."""
    of_call = np.zeros(len(calls), np.bool_)
    of_call[waiting[chosen]] = True
    return of_call[waiting]


def _long_sleeps(thread: ThreadEvidence) -> Intervals:
    """Return when a thread slept long, and not in a range of data loading."""
    asleep = intervals.subtract(thread.sleep.asleep, thread.loading)
    is_long = asleep.end_ns - asleep.start_ns >= MIN_SLEEP_NS
    return intervals.Intervals(asleep.start_ns[is_long], asleep.end_ns[is_long])


def _awake_ns(thread: ThreadEvidence, low_ns: Int64, high_ns: Int64, *others: Intervals) -> Int64:
    """Return the time from low to high without sleep, data loading and others, int64[n]."""
    other = intervals.merge(thread.sleep.asleep, thread.loading, *others)
    return high_ns - low_ns - intervals.covered_within(other, low_ns, high_ns)


def _begins_within(spans: Intervals, low_ns: Int64, high_ns: Int64) -> Mask:
    """Return whether one of some spans begins from each low time to the high one, bool[n]."""
    at = np.searchsorted(spans.start_ns, low_ns, side="left")
    begins: Mask = np.append(spans.start_ns, intervals.BEYOND_NS)[at] < high_ns
    return begins
