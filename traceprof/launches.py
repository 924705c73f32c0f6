"""Which API call launched which GPU operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.trace.model import ApiCalls, Operations


def launching_calls(operations: Operations, calls: ApiCalls) -> Int64:
    """Return the call that launched each operation.

    Of several calls with the operation's correlation id (ids can wrap round in a long run), the
    last before the operation's start launched it.

    Args:
        operations: n operations of a process.
        calls: the calls of the same process.

    Returns:
        Indices into `calls`, int64[n], -1 where the capture has no call: it began later.
    """
    first = np.searchsorted(calls.correlation, operations.correlation, side="left")
    if (calls.correlation[1:] > calls.correlation[:-1]).all():
        within = np.minimum(first, max(len(calls) - 1, 0))
        known = (first < len(calls)) & (len(calls) > 0)
        known[known] = calls.correlation[within[known]] == operations.correlation[known]
        return np.where(known, first, -1)
    stop = np.searchsorted(calls.correlation, operations.correlation, side="right")
    call = np.where(stop > first, first, -1)
    for index in np.flatnonzero(stop - first > 1).tolist():  # one turn per id that is not unique
        of_id = calls.start_ns[first[index] : stop[index]]
        earlier = np.searchsorted(of_id, operations.start_ns[index], side="right")
        call[index] += max(int(earlier) - 1, 0)
    return call
