"""The threads that launched the operations after a rank's gaps, and threads that stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, groups, is_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls

NO_THREAD = -1


class LaunchingThreads(Record, frozen=True):
    """The threads of gaps.

    Attributes:
        thread: int64[n], the thread that launched the operation after each gap.
        stand_in: int64[n], the thread of the process's last call before that launch, if it is
            another one that launches to the same stream (PyTorch hands work over to its autograd
            thread); else `NO_THREAD`.
    """

    thread: Int64
    stand_in: Int64

    def and_alone(self, thread: Int64) -> LaunchingThreads:
        """Return these followed by threads, int64[n], for which no other one stands in."""
        alone = np.full(len(thread), NO_THREAD, np.int64)
        pairs = (self.thread, thread), (self.stand_in, alone)
        return LaunchingThreads(*(np.concatenate(pair) for pair in pairs))

    def groups(self) -> Iterator[tuple[tuple[int, ...], Int64]]:
        """Yield each combination of thread and stand-in with the indices of its gaps."""
        if not len(self.thread):
            return
        for rows in groups(self.thread, self.stand_in):
            thread, stand_in = int(self.thread[rows[0]]), int(self.stand_in[rows[0]])
            yield (thread,) if stand_in == NO_THREAD else (thread, stand_in), rows


def streams_by_thread(rank: Rank, calls: ApiCalls) -> dict[int, frozenset[int]]:
    """Return the streams of the rank to which each thread launches, at any time.

    Args:
        rank: the rank.
        calls: the calls of its process.
    """
    streams_of: dict[int, set[int]] = {}
    threads = calls.packed_thread.distinct
    thread_of_call = calls.packed_thread.places_in(threads)
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        rows = np.flatnonzero(launched_by >= 0)
        if not len(rows):
            continue
        streams = group.packed_stream.distinct
        pair = thread_of_call.take(launched_by.take(rows))
        pair *= len(streams)
        pair += group.packed_stream.places_in(streams).take(rows)
        for number in np.flatnonzero(np.bincount(pair)).tolist():
            thread, stream = divmod(number, len(streams))
            streams_of.setdefault(int(threads[thread]), set()).add(int(streams[stream]))
    return {thread: frozenset(streams) for thread, streams in streams_of.items()}


def launching_threads(
    calls: ApiCalls, launch: Int64, stream: Int64, streams_of: Mapping[int, frozenset[int]]
) -> LaunchingThreads:
    """Return the threads of gaps.

    Args:
        calls: the calls of the process.
        launch: int64[n], the call that launched the operation after each gap.
        stream: int64[n], that operation's stream.
        streams_of: the streams to which each thread launches.
    """
    thread = calls.packed_thread.at(launch)
    if not len(launch):
        return LaunchingThreads(thread, thread)
    order, start = by_start(calls)
    place = np.searchsorted(start, calls.start_ns[launch]) - 1
    before = calls.packed_thread.at(place if order is None else order[place])
    stands_in = (place >= 0) & (before != thread)
    for number in distinct_values(before[stands_in]).tolist():
        streams = np.array(sorted(streams_of.get(number, ())), np.int64)
        stands_in &= (before != number) | is_in(stream, streams)
    return LaunchingThreads(thread, np.where(stands_in, before, NO_THREAD))


def by_start(calls: ApiCalls) -> tuple[Int64 | None, Int64]:
    """Return the order of calls by start, then end, then thread, and their starts in that order.

    The order is None if the calls are in it already.
    """
    start = calls.start_ns
    steps = np.diff(start)
    if (steps > 0).all():
        return None, start
    order = np.arange(len(start)) if (steps >= 0).all() else np.argsort(start, kind="stable")
    start = start[order]
    ties = np.diff(start) == 0
    tied = np.flatnonzero(np.append(ties, False) | np.append(False, ties))
    if len(tied):
        some = order[tied]
        keys = calls.packed_thread.at(some), calls.ends(some), calls.start_ns[some]
        order[tied] = some[np.lexsort(keys)]
    return order, start
