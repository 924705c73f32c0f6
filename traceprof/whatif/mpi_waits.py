"""Which waits of the host stand right before a call of MPI, which may need what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.thread_evidence import host_evidence

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.opening import Mask, Rank
    from traceprof.whatif.columns import HostCalls


def before_mpi(rank: Rank, calls: HostCalls, waiting: Int64, shift_ns: int) -> Mask:
    """Return which calls return right before MPI (or Gloo) is called, bool[m].

    Between the two the thread makes no other API call. What MPI sends then is likely what the call
    waited for, so a program without the wait would send what is not there yet.

    Args:
        rank: one rank of the process.
        calls: of the process.
        waiting: int64[m], outer calls, indices into `calls`.
        shift_ns: what was added to times of the report.
    """
    is_before = np.zeros(len(waiting), np.bool_)
    evidence = host_evidence(rank)
    if evidence is None or not len(waiting):
        return is_before
    outer = np.flatnonzero(calls.is_outer)
    following = np.append(outer, -1)[np.searchsorted(outer, waiting, side="right")]
    is_last = (following < 0) | (calls.thread[following] != calls.thread[waiting])
    until_ns = np.where(is_last, np.iinfo(np.int64).max, calls.start_ns[following])
    threads = evidence.calls.packed_thread.at(calls.index[waiting])
    for thread in np.unique(threads).tolist():
        rows = np.flatnonzero(threads == thread)
        starts = evidence.thread(thread).mpi.start_ns + shift_ns
        at = np.searchsorted(starts, calls.end_ns[waiting[rows]], side="left")
        next_ns = np.append(starts, np.iinfo(np.int64).max)[at]
        is_before[rows] = next_ns < until_ns[rows]
    return is_before
