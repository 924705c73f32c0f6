"""Communication that compute needed at once: there was nothing to hide it behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.stream_waits import stream_waits
from traceprof.run.host_order import host_order
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from traceprof.communication.readiness import Readiness
    from traceprof.communication.stream_waits import StreamWaits
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank


def needed_at_once(rank: Rank, ready: Readiness, operations: Int64) -> Mask:
    """Return which operations a compute stream waits for with nothing else to do meanwhile.

    That is: no compute was launched between the operation and that wait, and no other communication
    was outstanding. Outstanding is communication launched before the wait that had not ended when
    the operation's launch began, and that no compute stream waited for before that launch.

    Args:
        rank: a rank with a GPU.
        ready: when its communication could have begun.
        operations: int64[n], indices into `ready`.

    Returns:
        bool[n]; all false if the report has no event records.
    """
    is_needed: Mask = np.zeros(len(operations), np.bool_)
    waits = stream_waits(rank)
    if waits is None or len(operations) == 0:
        return is_needed
    computing = np.flatnonzero(is_in(waits.stream, _compute_streams(rank)))
    awaited, first = np.unique(waits.operation[computing], return_index=True)
    at = np.minimum(np.searchsorted(awaited, ready.index[operations]), len(awaited) - 1)
    if len(awaited) == 0:
        return is_needed
    is_needed = (awaited[at] == ready.index[operations]) & (ready.place[operations] >= 0)
    at = first[at[is_needed]]
    chosen = operations[is_needed]
    until = waits.place[computing[at]]
    is_alone = _no_compute_between(rank, ready.place[chosen], until)
    candidates = np.flatnonzero(is_alone)
    is_alone[candidates] = _none_outstanding(
        rank, ready, chosen[candidates], until[candidates], waits.chosen(computing)
    )
    is_needed[is_needed] = is_alone
    return is_needed


def _compute_streams(rank: Rank) -> Int64:
    """Return the streams on which anything computes."""
    streams, _ = rank.operations.kernels.packed_stream.counted(~rank.is_communication_kernel)
    return distinct_values(np.concatenate((streams, rank.operations.graphs.stream)))


def _no_compute_between(rank: Rank, place: Int64, until: Int64) -> Mask:
    """Return whether no compute was launched between two places each, bool[n]."""
    kernels, *_, graphs = rank.launched_by
    call = np.concatenate((kernels[~rank.is_communication_kernel], graphs))
    launched = np.sort(host_order(rank)[call[call >= 0]], kind="stable")
    after = np.searchsorted(launched, place, side="right")
    is_none: Mask = np.searchsorted(launched, until, side="left") <= after
    return is_none


def _none_outstanding(
    rank: Rank, ready: Readiness, operations: Int64, until: Int64, waits: StreamWaits
) -> Mask:
    """Return for which operations no other communication was outstanding, bool[n].

    Args:
        rank: the rank.
        ready: when its communication could have begun.
        operations: int64[n], indices into `ready`.
        until: int64[n], the place of the wait for each.
        waits: the waits of the streams that compute.
    """
    is_none = np.ones(len(operations), np.bool_)
    if rank.calls is None:
        return is_none
    begun = rank.calls.start_ns[ready.call[operations]]
    place = ready.place[operations]
    for stream in distinct_values(ready.stream).tolist():
        here = np.flatnonzero((ready.stream == stream) & (ready.place >= 0))
        if len(here) == 0:
            continue
        here = here[np.lexsort((ready.end_ns[here], ready.start_ns[here], ready.place[here]))]
        first = _first_not_awaited(ready, here, waits, place)
        stop = np.searchsorted(ready.place[here], until, side="left")
        end = _Highest(ready.end_ns[here])
        # The operation itself does not count.
        numbers = np.full(len(ready), -1, np.int64)
        numbers[here] = np.arange(len(here))
        itself = numbers[operations]
        middle = np.where((itself >= first) & (itself < stop), itself, stop)
        latest = np.maximum(end.between(first, middle), end.between(middle + 1, stop))
        is_none &= latest <= begun
    return is_none


def _first_not_awaited(ready: Readiness, here: Int64, waits: StreamWaits, place: Int64) -> Int64:
    """Return how many operations of a stream had been waited for before each place, int64[n].

    A wait for an operation is a wait for all operations before it on its stream.

    Args:
        ready: when the rank's communication could have begun.
        here: int64[m], indices into it: the communication of one stream, in order.
        waits: the waits of the streams that compute.
        place: int64[n].
    """
    of_stream = np.flatnonzero(waits.awaited_stream == ready.stream[here[0]])
    if len(of_stream) == 0:
        return np.zeros(len(place), np.int64)
    is_wait = np.repeat([False, True], [len(here), len(of_stream)])
    columns = (
        is_wait,
        np.concatenate((ready.end_ns[here], waits.end_ns[of_stream])),
        np.concatenate((ready.start_ns[here], waits.awaited_start_ns[of_stream])),
        np.concatenate((ready.place[here], waits.awaited_place[of_stream])),
    )
    order = np.lexsort(columns)
    num_until = np.empty(len(order), np.int64)
    num_until[order] = np.cumsum(~is_wait[order])
    highest = np.maximum.accumulate(num_until[len(here) :])
    at = np.searchsorted(waits.place[of_stream], place, side="left")
    return np.append(0, highest)[at]


class _Highest:
    """The highest number of any slice of an array, from the highest of 1, 2, 4, 8, … in a row."""

    def __init__(self, values: Int64) -> None:
        self._levels = [values]
        while len(self._levels[-1]) > 1 << (len(self._levels) - 1):
            last, half = self._levels[-1], 1 << (len(self._levels) - 1)
            self._levels.append(np.maximum(last[:-half], last[half:]))

    def between(self, first: Int64, stop: Int64) -> Int64:
        """Return the highest in each [first, stop), int64[n]; the least int64 where it is empty."""
        highest = np.full(len(first), np.iinfo(np.int64).min, np.int64)
        length = np.maximum(stop - first, 0)
        for level, values in enumerate(self._levels):
            at = np.flatnonzero((length >> level) == 1)
            highest[at] = np.maximum(values[first[at]], values[stop[at] - (1 << level)])
        return highest
