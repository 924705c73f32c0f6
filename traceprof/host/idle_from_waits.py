"""The idle time that chosen host waits or kernels cause: it would not be there without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.freed_time import since_other_launches
from traceprof.host.idle_causes import idle_causes
from traceprof.run.steady_steps import covered_in_mean
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.host import ApiCalls


class IdleFromWaits(Record, frozen=True):
    """The idle time that some waits of a rank's process cause in a window.

    Attributes:
        call: int64[n], indices into the calls of the process: those that cause idle time.
        idle_ns: int64[n], the idle time that is attributed to each. The sum is at least `saved_ns`:
            without one wait, a part of its idle time may be attributed to another one.
        saved_ns: the idle time that would not be there without any of them.
    """

    call: Int64
    idle_ns: Int64
    saved_ns: int


def waits_with_cost(rank: Rank, calls: ApiCalls) -> Mask:
    """Return which calls of the process may cause idle time of its rank, bool[calls]."""
    chosen = np.zeros(len(calls), np.bool_)
    chosen[idle_causes(rank).attributable.costs.call] = True
    return chosen


def idle_from_waits(rank: Rank, window: Window, chosen: Mask) -> IdleFromWaits:
    """Return the idle time that some waits cause in a window, whenever they began.

    Args:
        rank: the rank whose GPU idles.
        window: the time to look at.
        chosen: which calls of the process, bool[calls].
    """
    causes = idle_causes(rank)
    inside = causes.sync.within(window)
    call = causes.attributable.costs.call[causes.sync.wait]
    counts = (inside > 0) & chosen[call]
    calls, which = np.unique(call[counts], return_inverse=True)
    idle = np.zeros(len(calls), np.int64)
    np.add.at(idle, which, inside[counts])
    return IdleFromWaits(calls, idle, causes.sync_ns_without(window, np.flatnonzero(chosen)))


def outermost(calls: ApiCalls, rows: Int64) -> Int64:
    """Return the outermost of some calls in which each of them lies: itself if in no other.

    A call of the runtime may be recorded with the driver's call that it makes: that is one call.

    Args:
        calls: the calls of a process.
        rows: int64[n], indices of some calls.

    Returns:
        Indices of calls, int64[n].
    """
    start, end, thread = calls.start_ns[rows], calls.ends(rows), calls.packed_thread.at(rows)
    order = np.lexsort((rows, -end, start, thread))
    outer_rows = np.empty(len(rows), np.int64)
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    for of_thread in np.split(order, edges):
        if len(of_thread) == 0:
            continue
        ends = end[of_thread]
        reach = np.maximum.accumulate(ends)
        is_outer = np.append(True, ends[1:] > reach[:-1])
        outer = np.maximum.accumulate(np.where(is_outer, np.arange(len(ends)), 0))
        outer_rows[of_thread] = rows[of_thread[outer]]
    return outer_rows


def around_ns(rank: Rank, window: Window, kernels: Int64, waiting_ns: int) -> int:
    """Return what a mean steady step would gain at most without kernels, besides their own time.

    That is the GPU's turn-around before each, and the host's time for launching them, as far as
    the GPU idles because the host is the slower one, or they wait for another rank's.

    Args:
        rank: whose communication kernels they are.
        window: what is judged.
        kernels: int64[n], indices into its kernels.
        waiting_ns: how long they wait in the mean step while nothing computes.
    """
    begin, busy = rank.operations.kernels.start_ns[kernels], rank.busy
    slower = idle_causes(rank).host_is_slower
    after = np.flatnonzero(is_in(busy.start_ns[1:], begin))
    turn = intervals.union(busy.end_ns[after], busy.start_ns[after + 1])
    turn_ns, calls = covered_in_mean(rank, window, intervals.subtract(turn, slower)), rank.calls
    if calls is None:
        return turn_ns
    chosen, called = np.zeros(len(calls), np.bool_), rank.launched_by[0][kernels]
    chosen[called[called >= 0]] = True
    launching_ns = covered_in_mean(rank, window, since_other_launches(rank, calls, chosen))
    return turn_ns + min(launching_ns, covered_in_mean(rank, window, slower) + waiting_ns)
