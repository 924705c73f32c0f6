"""Waits between streams that no call shows: delays that end right after another stream's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.replay.graph.columns import COMMUNICATION

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.replay.graph.stream_waits import OperationWaits

_MIN_LATE_NS = 5_000
_SOONEST_NS, _LATEST_NS = 500, 5_000  # from the end of what was waited for to the start
_SHIFTS, _SEED = 20, 1
_COPIES = 1  # the group of copies
_BEFORE_ALL = np.iinfo(np.int64).min // 4


def hidden_stream_ns(
    calls: HostCalls, work: GpuWork, launched_ns: Int64, between: OperationWaits
) -> tuple[Int64, Int64]:
    """Return when operations seem to have waited for another stream for no reason that is known.

    They began 0.5 to 5 us after an operation of another stream that was launched before, and over
    5 us after all that is known to have held them: launch, stream, recorded waits and what may have
    been waited for, the copies of the same direction. As many do so by chance as do where all are
    moved by the same random time: so much counts less.

    Args:
        calls: of a process.
        work: its operations.
        launched_ns: int64[n], when each was handed to the GPU.
        between: the waits of its streams; those inferred from times alone do not count.

    Returns:
        int64[k] each, begins and ends of the delays, of which no more count than chance explains.
    """
    held = np.maximum(launched_ns, _previous_ends(work))
    known = slice(None) if between.is_recorded else ~between.is_sure
    np.maximum.at(held, between.consumer[known], work.end_ns[between.producer[known]])
    late = np.flatnonzero((work.call >= 0) & (work.start_ns - held > _MIN_LATE_NS))
    nothing = np.empty(0, np.int64)
    if not len(late):
        return nothing, nothing
    by_end = np.argsort(work.end_ns, kind="stable")
    ends, chain = work.end_ns[by_end], work.chain[by_end]
    in_time = np.where(work.call >= 0, calls.in_time[work.call], -1)
    start, own = work.start_ns[late], work.chain[late]
    at = np.searchsorted(ends, start - _SOONEST_NS, side="right") - 1
    is_hidden = _is_after(at, ends, chain, start, own)
    is_hidden &= in_time[by_end[np.maximum(at, 0)]] < in_time[late]
    low = int(work.start_ns.min())
    span = int(work.end_ns.max()) - low + 1
    by_chance = np.zeros(len(late))
    for shift in np.random.default_rng(_SEED).integers(1, span, _SHIFTS).tolist():
        moved = low + (start - low + shift) % span
        at = np.searchsorted(ends, moved - _SOONEST_NS, side="right") - 1
        by_chance += _is_after(at, ends, chain, moved, own)
    delay = start - held[late]
    hidden_ns = int(delay[is_hidden].sum())
    expected_ns = float((by_chance * delay).sum()) / _SHIFTS
    rows = late[is_hidden]
    if not len(rows) or hidden_ns <= expected_ns:
        return nothing, nothing
    # Each counts as much less as chance explains of all.
    share = 1 - expected_ns / hidden_ns
    begin = work.start_ns[rows] - np.rint(share * delay[is_hidden]).astype(np.int64)
    return begin, work.start_ns[rows]


def _is_after(at: Int64, ends: Int64, chain: Int64, start: Int64, own: Int64) -> Mask:
    last = np.maximum(at, 0)
    after: Mask = (at >= 0) & (start - ends[last] <= _LATEST_NS) & (chain[last] != own)
    return after


def _previous_ends(work: GpuWork) -> Int64:
    """Return when what was before each was over, int64[n].

    On its stream; of copies, in their direction; of communication kernels, on their rank.
    """
    previous = np.full(len(work), _BEFORE_ALL)
    follows = np.flatnonzero(work.chain[1:] == work.chain[:-1]) + 1
    previous[follows] = work.end_ns[follows - 1]
    copies = np.flatnonzero(work.group == _COPIES)
    direction = work.is_to_host[copies] + 2 * work.is_to_device[copies]
    sent = np.flatnonzero((work.kind == COMMUNICATION) & (work.group == 0))
    for rows, engine in (
        (copies, work.rank[copies] * 4 + direction),
        (sent, work.rank[sent]),  # a communicator runs one operation at a time
    ):
        order = np.lexsort((work.start_ns[rows], engine))
        rows_of, of = rows[order], engine[order]
        # Engines lie one after the other, far apart, so that one running maximum serves all.
        base = of * (int(work.end_ns.max()) - int(work.start_ns.min()) + 1)
        reached = np.maximum.accumulate(work.end_ns[rows_of] + base)[:-1] - base[1:]
        same = of[1:] == of[:-1]
        at = rows_of[1:][same]
        previous[at] = np.maximum(previous[at], np.minimum(reached[same], work.start_ns[at]))
    return previous


def covered_ns(begin_ns: Int64, end_ns: Int64, limits_ns: tuple[int, int]) -> int:
    """Return how much of some limits delays cover."""
    return intervals.clip(intervals.union(begin_ns, end_ns), *limits_ns).measure_ns
