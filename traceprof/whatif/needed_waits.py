"""Which waits of the host bring what it uses at once: what it sends, or writes to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.thread_evidence import host_evidence

if TYPE_CHECKING:
    from traceprof.host.thread_evidence import ThreadEvidence
    from traceprof.intervals import Int64, Intervals
    from traceprof.run.opening import Mask, Rank
    from traceprof.whatif.columns import HostCalls

MIN_SLEEP_NS = 1_000_000
"""A thread that sleeps so long after a copy came is taken to write or send it, not to be held up
by the scheduler."""


def needed_at_once(
    rank: Rank,
    calls: HostCalls,
    launching: Int64,
    waiting: Int64,
    is_for_copy: Mask,
    shift_ns: int,
) -> Mask:
    """Return which calls wait for what is used before the thread launches anything, bool[m].

    Before a call of MPI (or Gloo) that is likely what MPI sends. Before a long sleep that is not
    for data loading it is likely what is written or sent, if it is a copy to the host. A program
    without the wait would use what is not there yet.

    Args:
        rank: one rank of the process.
        calls: of the process.
        launching: int64[k], the calls that put work on the GPU, indices into `calls`.
        waiting: int64[m], outer calls, likewise.
        is_for_copy: bool[m], whether the call waits for a copy to the host.
        shift_ns: what was added to times of the report.
    """
    is_needed = np.zeros(len(waiting), np.bool_)
    evidence = host_evidence(rank)
    if evidence is None or not len(waiting):
        return is_needed
    launches = np.unique(calls.outer[launching])
    following = np.append(launches, -1)[np.searchsorted(launches, waiting, side="right")]
    is_last = (following < 0) | (calls.thread[following] != calls.thread[waiting])
    until_ns = np.where(is_last, intervals.BEYOND_NS, calls.start_ns[following])
    threads = evidence.calls.packed_thread.at(calls.index[waiting])
    for thread in np.unique(threads).tolist():
        rows = np.flatnonzero(threads == thread)
        of_thread = evidence.thread(thread)
        after = calls.end_ns[waiting[rows]] - shift_ns, until_ns[rows] - shift_ns
        uses = _begins_within(of_thread.mpi, *after)
        uses |= is_for_copy[rows] & _begins_within(_long_sleeps(of_thread), *after)
        is_needed[rows] = uses
    return is_needed


def _long_sleeps(thread: ThreadEvidence) -> Intervals:
    """Return when a thread slept long, and not in a range of data loading."""
    asleep = intervals.subtract(thread.sleep.asleep, thread.loading)
    is_long = asleep.end_ns - asleep.start_ns >= MIN_SLEEP_NS
    return intervals.Intervals(asleep.start_ns[is_long], asleep.end_ns[is_long])


def _begins_within(spans: Intervals, low_ns: Int64, high_ns: Int64) -> Mask:
    """Return whether one of some spans begins from each low time to the high one, bool[n]."""
    at = np.searchsorted(spans.start_ns, low_ns, side="left")
    begins: Mask = np.append(spans.start_ns, intervals.BEYOND_NS)[at] < high_ns
    return begins
