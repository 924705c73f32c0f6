"""Stages of a loader, each on a thread of its own, by the ranges that mark what each does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.evidence_names import LOADER_STAGE
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import HostCalls
    from traceprof.run.opening import Rank

MIN_BATCHES = 6
"""Of fewer it is not known what a stage waits for."""
WOKEN_NS = 500_000
"""A stage begins so shortly after what it waited for."""
FAR = np.iinfo(np.int64).max // 4
"""As time, longer than anything takes."""
ORDER = ("CPU", "Mixed", "GPU")
"""The stages of a pipeline."""
_MOST = 0.9  # of the batches have to fit
_EARLY_NS = 20_000  # a range ends so shortly after the next stage was woken


class LoaderStage(Record, frozen=True):
    """The work of a thread on n batches, int64[n] each except for `thread` and `order`.

    Attributes:
        thread: its number; -1 if it makes no calls.
        order: of the stage in its pipeline.
        begin_ns: when its range begins.
        end_ns: when it ends.
        first: its first call for the batch; -1 for each if it makes none.
        last: its last one.
    """

    thread: int
    order: int
    begin_ns: Int64
    end_ns: Int64
    first: Int64
    last: Int64

    @property
    def since_ns(self) -> Int64:
        """How long it waited for each batch at most: since it was done with the one before."""
        since: Int64 = self.begin_ns - np.append(-FAR, self.end_ns[:-1])
        return since

    def own_ns(self, calls: HostCalls) -> Int64:
        """Return how long the thread worked since its call before each first one, as known."""
        worked: Int64 = np.append(0, (self.end_ns - calls.end_ns[self.last])[:-1])
        return worked + calls.start_ns[self.first] - self.begin_ns


def stages_of(rank: Rank, calls: HostCalls, shift_ns: int) -> list[LoaderStage]:
    """Return the stages of a process that have enough batches.

    Args:
        rank: one rank of the process.
        calls: of the process.
        shift_ns: what was added to times of the report.
    """
    ranges, columns = rank.trace.ranges(LOADER_STAGE, rank.process).get(rank.process), rank.calls
    assert columns is not None  # noqa: S101  (the replay refuses reports without calls before)
    if ranges is None:
        return []
    kinds = [LOADER_STAGE.search(name) for name in ranges.names]
    order = np.array([ORDER.index(kind[1]) for kind in kinds if kind], np.int64)
    packed, place = np.unique(columns.packed_thread.at(calls.index), return_index=True)
    number = dict(zip(packed.tolist(), calls.thread[place].tolist(), strict=True))
    stages = []
    for kind, thread in np.unique(np.stack((order, ranges.end_thread)), axis=1).T.tolist():
        rows = np.flatnonzero((order == kind) & (ranges.end_thread == thread))
        rows = rows[ranges.end_ns[rows] < intervals.BEYOND_NS]
        if len(rows) < MIN_BATCHES:
            continue
        begin, end = ranges.start_ns[rows] + shift_ns, ranges.end_ns[rows] + shift_ns
        outer = np.flatnonzero((calls.thread == number.get(thread, -1)) & calls.is_outer)
        first = np.searchsorted(calls.start_ns[outer], begin)
        last = np.searchsorted(calls.start_ns[outer], end) - 1
        has = np.flatnonzero(last >= first)
        if len(has):  # others are not of the steps that are replayed
            ranges_of = begin[has], end[has], outer[first[has]], outer[last[has]]
            stages.append(LoaderStage(number[thread], kind, *ranges_of))
        else:
            none = np.full(len(rows), -1)
            stages.append(LoaderStage(-1, kind, begin, end, none, none))
    return stages


def input_of(stage: LoaderStage, stages: list[LoaderStage]) -> tuple[LoaderStage, Int64] | None:
    """Return the stage that brings another one's batches, and which of its each is, -1 if unknown.

    Wherever the other one waited, it begins right after that stage's end, and nowhere before.
    """
    best, nearest = None, float(WOKEN_NS)
    number = np.arange(len(stage.begin_ns))
    for other in stages:
        if other.order >= stage.order:
            continue
        last = np.searchsorted(other.end_ns, stage.begin_ns + _EARLY_NS, side="right") - 1
        batch = number - usual_of(number - last)
        batch[(batch < 0) | (batch >= len(other.end_ns))] = -1
        known = batch >= 0
        lag = stage.begin_ns - other.end_ns[batch]
        waited = known & (lag < stage.since_ns)
        if waited.sum() < MIN_BATCHES or not mostly(lag[known] >= -_EARLY_NS):
            continue
        if mostly(lag[waited] <= WOKEN_NS) and median_of(lag[waited]) < nearest:
            best, nearest = (other, batch), float(median_of(lag[waited]))
    return best


def values_at(values: Int64, at: Int64) -> Int64:
    """Return some of n values, -1 if a place is none of theirs."""
    known = (at >= 0) & (at < len(values))
    return np.where(known, values[np.where(known, at, 0)], -1)


def usual_of(values: Int64) -> int:
    """Return the value that most have."""
    distinct, count = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(count)])


def mostly(fits: Mask) -> bool:
    """Say whether nearly all are so."""
    return bool(np.mean(fits) >= _MOST)
