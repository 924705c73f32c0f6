"""What the host's waits for the GPU cost: the idle time that would not be there without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.idle_causes import idle_causes

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.rank import Mask, Rank, Window
    from traceprof.trace.model.host import ApiCalls


@dataclass(frozen=True, slots=True)
class WaitCosts:
    """What some waits of a rank's process cost in a window.

    Attributes:
        call: int64[n], indices into the calls of the process: those that cost something.
        cost_ns: int64[n], the idle time that each made, as long as it held; its sum is at least
            `saved_ns`: without one wait another one may make a part of the same idle time.
        saved_ns: the idle time that would not be there without any of them.
    """

    call: Int64
    cost_ns: Int64
    saved_ns: int


def costing_calls(rank: Rank, calls: ApiCalls) -> Mask:
    """Return which calls of the process may cost its rank idle time, bool[calls]."""
    chosen = np.zeros(len(calls), np.bool_)
    chosen[idle_causes(rank).run_ahead.debts.call] = True
    return chosen


def wait_costs(rank: Rank, window: Window, chosen: Mask) -> WaitCosts:
    """Return what some waits cost in a window, whenever they began.

    Args:
        rank: whose GPU idles.
        window: where to look.
        chosen: which calls of the process, bool[calls].
    """
    causes = idle_causes(rank)
    inside = causes.taken.within(window)
    call = causes.run_ahead.debts.call[causes.taken.debt]
    counts = (inside > 0) & chosen[call]
    calls, which = np.unique(call[counts], return_inverse=True)
    cost = np.zeros(len(calls), np.int64)
    np.add.at(cost, which, inside[counts])
    return WaitCosts(calls, cost, causes.sync_ns_without(window, np.flatnonzero(chosen)))


def outermost(calls: ApiCalls, rows: Int64) -> Int64:
    """Return for some calls the one of them that each lies in, itself where there is none.

    A call of the runtime may be recorded with the driver's call that it makes: that is one call.

    Args:
        calls: of a process.
        rows: int64[n], indices of the calls.

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
