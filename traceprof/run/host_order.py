"""The order in which the host made its API calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int32
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls


def host_order(rank: Rank) -> Int32:
    """Return the place of each call of a rank's process among all of them, int32[calls].

    Calls are ordered by start, then end, then correlation id; calls that agree in all three share a
    place. The result is cached for all ranks of the process, and empty if there are no API calls.
    """
    return rank.process_cache.get(_host_order, rank.calls)


def _host_order(calls: ApiCalls | None) -> Int32:
    if calls is None:
        return np.empty(0, np.int32)
    start = calls.start_ns
    if (start[1:] > start[:-1]).all():
        return np.arange(len(start), dtype=np.int32)
    # Calls are sorted by correlation id.
    order = np.argsort(start, kind="stable")
    is_new = np.ones(len(start), np.bool_)
    is_new[1:] = start.take(order[1:]) != start.take(order[:-1])
    if not is_new.all():
        end, correlation = calls.end_ns, calls.correlation
        order = np.lexsort((end, start))
        for column in (end, correlation):
            is_new[1:] |= column[order[1:]] != column[order[:-1]]
    place = np.empty(len(start), np.int32)
    place[order] = np.cumsum(is_new) - 1
    return place
