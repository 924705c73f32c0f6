"""Waits at a queue between threads, as rows: for a call of another thread and the thread's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import median_of, quantiles_of

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.replay.graph.columns import HostCalls

MIN_TAKEN = 3
"""This number of waits, all by the same call of a step, identifies that call."""
_TAKEN_NS = 50_000  # a thread that waited for a batch goes on so much later at most than usual
_MOST = 0.9  # of the waits have to end after what they are for


def queue_rows(
    call: Int64, after: Int64, gap_ns: Int64, own_ns: Int64, *, is_sure: bool = True
) -> Int64:
    """Return rows of `QueueWaits`, int64[5, m]."""
    return np.stack((call, after, gap_ns, own_ns, np.full(len(call), int(is_sure))))


def taken_rows(call: Int64, after: Int64, calls: HostCalls, *, is_sure: bool) -> Int64 | None:
    """Return the waits of a thread for batches: int64[5, m]; None if it did not wait for these.

    Args:
        call: int64[n], by which it takes each batch.
        after: int64[n], the last call of the other thread for it.
        calls: of the process.
        is_sure: whether it is known that it takes these.
    """
    lag = calls.start_ns[call] - calls.end_ns[after]
    if not len(lag) or np.mean(lag >= 0) < _MOST:
        return None
    call, after, lag = call[lag >= 0], after[lag >= 0], lag[lag >= 0]
    own = silent_ns(calls, call)
    waited = lag < own
    usual, is_clear = usual_lag(lag[waited]) if is_sure else (0, False)
    waited &= (lag <= usual + _TAKEN_NS) | (not is_clear)
    by_itself = int(median_of(own[~waited])) if not waited.all() else min(usual, int(lag.min()))
    own = np.where(waited, np.minimum(own, by_itself), own)
    gap = np.where(waited, lag, np.minimum(lag, usual if is_clear else 0))
    return queue_rows(call, after, gap, own, is_sure=is_sure)


def usual_lag(lag: Int64) -> tuple[int, bool]:
    """Return how soon after a batch a thread that waited for it goes on, and if that is clear."""
    if not len(lag):
        return 0, False
    shortest = int(quantiles_of(lag, (0.25,))[0])
    return shortest, bool((lag <= shortest + _TAKEN_NS).sum() >= max(MIN_TAKEN, len(lag) / 3))


def silent_ns(calls: HostCalls, call: Int64) -> Int64:
    """Return how long its thread made no call before each outer call; 0 before its first."""
    before = calls.outer[call - 1]
    is_same = (call > 0) & (calls.thread[before] == calls.thread[call])
    silent: Int64 = np.where(is_same, calls.start_ns[call] - calls.end_ns[before], 0)
    return silent
