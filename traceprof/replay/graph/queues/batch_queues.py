"""Queues of batches between a thread that copies them to the GPU and one that trains.

A stream of the training waits for what the other thread has launched: so it is known by which call
the training has taken each batch. A thread that is faster waits for room in its queue: it begins a
batch when the one some places before it has been taken. How many places that are is learned: by
the right number its silences since then vary least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof import intervals
from traceprof.replay.graph.queues.rows import MIN_TAKEN, queue_rows, silent_ns, taken_rows
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals
    from traceprof.replay.graph.columns import HostCalls


class Uses(Record, frozen=True):
    """The u waits of streams for what a thread launched.

    Attributes:
        taking: int64[u], outer calls of threads that train, by which their streams wait for it.
        used: int64[u], outer calls of the thread that launched it.
        event: int64[u], the events recorded right after that; -1 if unknown.
    """

    taking: Int64
    used: Int64
    event: Int64


class BatchQueue(NamedTuple):
    """A queue between a thread and those that train.

    Attributes:
        thread: it brings batches.
        rows: int64[5, m], the waits, as in `QueueWaits`.
        busy: when the thread works.
        ahead: how many batches are there at most when one is taken.
    """

    thread: int
    rows: Int64
    busy: Intervals
    ahead: int


_MIN_BATCHES = 6  # of fewer it is not known what varies less
_MAX_PLACES = 64  # of a queue
_MIN_SILENCE_NS = 50_000  # between two batches
_VARIES_LESS = 0.8  # of the variance of what a thread does not wait for
_MAX_UNSURE = 0.05  # of a thread's silences that may be waits and may be its work


def batch_queue(thread: int, uses: Uses, calls: HostCalls) -> BatchQueue | None:
    """Return the waits at a queue; None if it is unknown how batches go through it.

    An event that is recorded for one batch after the other does not say which one is taken.

    Args:
        thread: it brings batches.
        uses: of its work.
        calls: of the process.
    """
    outer = np.flatnonzero((calls.thread == thread) & calls.is_outer)
    silent = silent_ns(calls, outer)
    taking, at, event = _batches(uses, np.searchsorted(outer, uses.used), silent)
    if len(taking) < _MIN_BATCHES or (event[1:] == event[:-1]).any():
        return None
    first = _after_longest(silent, at)  # of all but the first batch
    last = outer[np.append(first - 1, at[-1])]
    rows = taken_rows(taking, last, calls, is_sure=True)
    if rows is None:
        return None
    silence = silent_ns(calls, taking)
    waited = (calls.start_ns[taking] - calls.end_ns[last] < silence) & (silence > _MIN_SILENCE_NS)
    first = np.append(first, _not_taken(first, at, len(outer)))
    begin, ended = calls.start_ns[outer[first]], calls.end_ns[outer[first - 1]]
    own, is_awaited = begin - ended, bool(2 * waited.sum() > len(waited))
    depth, is_clear = _places(begin, ended, calls.end_ns[taking], is_awaited=is_awaited)
    if not is_clear:
        return None
    if depth is not None:
        place = np.arange(len(first)) - depth
        known = np.flatnonzero((place >= 0) & (place < len(taking)))
        taken_by = taking[place[known]]
        own[known] = np.minimum(own[known], begin[known] - calls.end_ns[taken_by])
        given = queue_rows(outer[first[known]], taken_by, own[known], own[known])
        rows = np.concatenate((rows, given[:, own[known] >= 0]), axis=1)
        own = np.minimum(own, int(own[known].max()))  # of others it is not known
    over = calls.end_ns[outer[np.append(first[1:] - 1, len(outer) - 1)]]
    there = np.searchsorted(calls.end_ns[outer[first - 1]], calls.start_ns[taking], side="right")
    ahead = int((there - np.arange(len(taking))).max())
    return BatchQueue(thread, rows, intervals.union(begin - own, over), ahead)


def _not_taken(first: Int64, at: Int64, num: int) -> Int64:
    """Return the first calls of batches that nobody has taken, as far as all are alike.

    Args:
        first: int64[n - 1], of batches that were taken but the first one.
        at: int64[n], the calls of these that are waited for.
        num: of the thread's calls.
    """
    per_batch, place = np.diff(at), first - at[:-1]
    if per_batch.min() < per_batch.max() or place.min() < place.max():
        return np.empty(0, np.int64)
    following: Int64 = np.arange(at[-1] + place[0], num, per_batch[0])
    return following


def _batches(uses: Uses, at: Int64, silent: Int64) -> tuple[Int64, Int64, Int64]:
    """Return by which call each batch is taken, its last call waited for and event, int64[b] each.

    Args:
        uses: of the batches.
        at: int64[u], what is used, by its number among the calls of its thread.
        silent: int64[c], how long that thread made no call before each of these.
    """
    order = np.lexsort((at, uses.taking))
    order = order[np.append(np.diff(uses.taking[order]) > 0, True)[: len(order)]]
    number = np.cumsum(silent > _MIN_SILENCE_NS)[at[order]]
    is_next = number > np.append(-1, np.maximum.accumulate(number)[:-1])[: len(order)]
    order = order[is_next]
    return uses.taking[order], at[order], uses.event[order]


def _after_longest(silent: Int64, at: Int64) -> Int64:
    """Return the calls after the longest silences between others, int64[n - 1].

    Args:
        silent: int64[c], before each call of a thread.
        at: int64[n], some of these calls, ascending.
    """
    between = silent[: at[-1] + 1]
    longest = np.repeat(np.maximum.reduceat(between, at[:-1] + 1), np.diff(at))
    calls = np.arange(at[0] + 1, at[-1] + 1)
    is_longest = between[calls] == longest
    calls, gap = calls[is_longest], np.searchsorted(at, calls[is_longest])
    first: Int64 = calls[np.unique(gap, return_index=True)[1]]
    return first


def _places(
    begin_ns: Int64, ended_ns: Int64, taken_ns: Int64, *, is_awaited: bool
) -> tuple[int | None, bool]:
    """Return how many batches are in a queue when its thread waits, and if that is clear.

    None if it never waits. If it is as fast as what trains, and is not waited for, it likely does.

    Args:
        begin_ns: int64[n], when the thread begins with each batch but the first.
        ended_ns: int64[n], when it was done with the batch before.
        taken_ns: int64[t], when each batch was taken, that before the first of these, too.
        is_awaited: whether what trains waits for most batches.
    """
    best, least, may_wait = None, _VARIES_LESS if is_awaited else 1.0, 0.0
    for depth in range(min(_MAX_PLACES, len(begin_ns) - _MIN_BATCHES + 1)):
        begin, ended = begin_ns[depth:], ended_ns[depth:]
        taken = taken_ns[: len(begin)]
        begin, ended = begin[: len(taken)], ended[: len(taken)]
        waits = taken > ended
        if (taken > begin).any() or waits.sum() < MIN_TAKEN:
            continue
        if 3 * waits.sum() > len(waits):  # it was not only ahead at first
            share = np.maximum(taken - ended, 0).sum() / max((begin - ended).sum(), 1)
            may_wait = max(may_wait, float(share))
        of_own, since = np.var(begin - ended), np.var(begin - np.maximum(taken, ended))
        if since < least * of_own:
            best, least = depth, float(since / of_own)
    return best, best is not None or may_wait <= _MAX_UNSURE
