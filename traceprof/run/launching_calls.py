"""Which API call launched which GPU operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.intervals import Int64
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Operations


# Ids are given one after the other, so that most are there: then looking in a table of all takes a
# third of the time of a search.
_SPARSE = 8


def launching_calls(operations: Operations, calls: ApiCalls) -> Int64:
    """Return the call that launched each operation.

    Args:
        operations: n operations of a process.
        calls: the calls of the same process.

    Returns:
        Indices into `calls`, int64[n], -1 where the capture has no call: it began later.
    """
    if len(operations) == 0 or len(calls) == 0:
        return np.full(len(operations), -1, np.int64)
    return calls_with(operations.correlation, lambda: operations.start_ns, calls)


def calls_with(wanted: Int64, times_ns: Callable[[], Int64], calls: ApiCalls) -> Int64:
    """Return the call with each correlation id.

    Of several calls with one id (ids can wrap round in a long run), the last before a time.

    Args:
        wanted: int64[n], ids.
        times_ns: gives int64[n], asked for only where ids are not unique.
        calls: the calls of a process.

    Returns:
        Indices into `calls`, int64[n], -1 for none.
    """
    ids = calls.correlation
    if len(ids) == 0:
        return np.full(len(wanted), -1, np.int64)
    if (ids[1:] > ids[:-1]).all():
        return _of_distinct(ids, wanted)
    first = np.searchsorted(ids, wanted, side="left")
    stop = np.searchsorted(ids, wanted, side="right")
    call = np.where(stop > first, first, -1)
    several = np.flatnonzero(stop - first > 1)
    times = times_ns() if len(several) else wanted
    for index in several.tolist():  # one turn per id that is not unique
        of_id = calls.start_ns[first[index] : stop[index]]
        earlier = np.searchsorted(of_id, times[index], side="right")
        call[index] += max(int(earlier) - 1, 0)
    return call


def _of_distinct(ids: Int64, wanted: Int64) -> Int64:
    """Return where in ascending ids each wanted one is, -1 for none."""
    low, high = int(ids[0]), int(ids[-1])
    if high - low > _SPARSE * len(ids):
        first = np.minimum(np.searchsorted(ids, wanted, side="left"), len(ids) - 1)
        return np.where(ids[first] == wanted, first, -1)
    place = np.full(high - low + 2, -1, np.int32)  # the last one for what is outside
    place[ids - low] = np.arange(len(ids), dtype=np.int32)
    inside = (wanted >= low) & (wanted <= high)
    # NULL would overflow.
    index: Int64 = place[np.where(inside, wanted, high + 1) - low].astype(np.int64)
    return index
