"""The API call that launched each GPU operation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traceprof.intervals import Int64, Mask
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.operations import Operations

# Ids are assigned consecutively, so most of them occur: a lookup table then takes a third of the
# time of a search.
_SPARSE = 8


def launching_calls(operations: Operations, calls: ApiCalls) -> Int64:
    """Return indices of the calls that launched operations, int64[n]; -1: before the capture."""
    if len(operations) == 0 or len(calls) == 0:
        return np.full(len(operations), -1, np.int64)
    return calls_with(operations.correlation, lambda: operations.start_ns, calls)


def calls_with(wanted: Int64, times_ns: Callable[[], Int64], calls: ApiCalls) -> Int64:
    """Index of the call with each of some correlation ids, int64[n]; -1 for none.

    Of several calls with one id it is the last before a time, of those that `times_ns` returns.
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
    for index in several.tolist():  # one iteration per id that is not unique
        of_id = calls.start_ns[first[index] : stop[index]]
        earlier = np.searchsorted(of_id, times[index], side="right")
        call[index] += max(int(earlier) - 1, 0)
    return call


def are_first(group: Int64, times_ns: Int64) -> Mask:
    """Return which times are the earliest of their group, a number from 0; of equal ones all."""
    earliest = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, group, times_ns)
    return times_ns == earliest.take(group)


def _of_distinct(ids: Int64, wanted: Int64) -> Int64:
    low, high = int(ids[0]), int(ids[-1])
    if high - low > _SPARSE * len(ids):
        first = np.minimum(np.searchsorted(ids, wanted, side="left"), len(ids) - 1)
        return np.where(ids[first] == wanted, first, -1)
    place = np.full(high - low + 3, -1, np.int32)  # the first and the last are for ids outside
    place[ids - (low - 1)] = np.arange(len(ids), dtype=np.int32)
    # The value that stands for NULL is outside, too, even where the difference wraps around.
    return place.take(wanted - (low - 1), mode="clip").astype(np.int64)
