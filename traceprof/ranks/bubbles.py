"""Bubbles of a pipeline: when each stage waits for another one, and why.

The messages and passes of a pipeline are a graph. It is walked three times, always with the order
in which each stage ran its passes: with equal stages and messages that take no time, with the
stages' own passes, and with the messages' own time. As far as a gap is there in the first walk it
is warm-up; what the second adds is imbalance, what the third adds is transfer. The rest is
lateness: of the host, of data, of other streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import BETWEEN_TWO
from traceprof.ranks.pipeline_walk import Walk, meetings_of
from traceprof.ranks.pipelines import MAX_UNSURE_NS
from traceprof.ranks.schedules import schedule_of
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Float64, Int64, Intervals
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.passes import RankPasses
    from traceprof.ranks.pipelines import Pipeline
    from traceprof.ranks.schedules import Schedule

_NUM_PARTS = 4


class StageGaps(Record, frozen=True):
    """A stage: its n passes, and the n + 1 gaps before and after them, in the run's time.

    Attributes:
        member: index of the rank.
        start_ns: int64[n], of its passes.
        end_ns: int64[n].
        kind: int64[n], as `RankPasses` has it.
        step: int64[n], index of the step of each, -1 for none.
        gap_start_ns: int64[n + 1], when the stage had nothing to do.
        gap_end_ns: int64[n + 1].
        parts_ns: int64[n + 1, 4], the bubble in each gap by part, 0 if it waits for no stage.
        communicating_ns: how much of its bubble it spent in sends and receives.
        ideal_start_ns: int64[n], when its passes would start if all stages were equal and messages
            took no time, since the pipeline's start.
        ideal_end_ns: int64[n].
        shift_ns: to be added to its times so that they compare with the first stage's.
    """

    member: int
    start_ns: Int64
    end_ns: Int64
    kind: Int64
    step: Int64
    gap_start_ns: Int64
    gap_end_ns: Int64
    parts_ns: Int64
    communicating_ns: int
    ideal_start_ns: Int64
    ideal_end_ns: Int64
    shift_ns: int

    @property
    def bubble_ns(self) -> int:
        """How long it waits for other stages."""
        return int(self.parts_ns.sum())

    @property
    def waits(self) -> tuple[Int64, Int64, Int64]:
        """Its waits cut into their parts: start, end and number of the part, int64[k] each.

        How much of a wait each part makes up is known, when it was is not: they are put one after
        the other, so that the last ends where the next pass starts.
        """
        last = self.gap_end_ns - self.parts_ns.sum(axis=1)
        ends = last[:, np.newaxis] + self.parts_ns.cumsum(axis=1)
        gap, part = np.nonzero(self.parts_ns)
        end = ends[gap, part]
        return end - self.parts_ns[gap, part], end, part


class PipelineBubbles(Record, frozen=True):
    """A pipeline and its bubbles.

    Attributes:
        stages: in order.
        schedule: of its passes.
        start_ns: when the first pass of all stages starts, in the run's time of the first stage.
        end_ns: when the last one is over.
    """

    stages: tuple[StageGaps, ...]
    schedule: Schedule
    start_ns: int
    end_ns: int


def bubbles_of(
    pipeline: Pipeline,
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
) -> PipelineBubbles | None:
    """Return the bubbles of a pipeline; None if its messages contradict each other.

    Args:
        pipeline: its stages.
        ranks: the ranks on one clock.
        passes: of each rank.
        arrivals: of each rank.
    """
    stages = [passes[member] for member in pipeline.members]
    spans = [
        tuple(ranks.clocks.to_run(stage.report, times) for times in (stage.start_ns, stage.end_ns))
        for stage in stages
    ]
    if any(not len(stage) for stage in stages):
        return None
    limits = np.cumsum([0, *(len(stage) for stage in stages)])
    meetings = meetings_of(pipeline, ranks, arrivals, passes, limits)
    own = np.concatenate([end - start for start, end in spans])
    walk = Walk(limits, meetings)
    if not walk.is_possible:
        return None
    equal = _equal(stages, pipeline, own)
    levels = [
        walk.starts(equal, moves=False),
        walk.starts(own, moves=False),
        walk.starts(own, moves=True),
    ]
    shifts = _shifts(pipeline, ranks)
    begin = min(int(start[0]) + first for (start, _), (first, _) in zip(spans, shifts, strict=True))
    finish = max(int(end[-1]) + last for (_, end), (_, last) in zip(spans, shifts, strict=True))
    finishes = [
        int((starts + took).max()) for starts, took in zip(levels, (equal, own, own), strict=True)
    ]
    waits = np.zeros(int(limits[-1]), np.bool_)
    waits[meetings.outputs[:, 1]] = True
    gaps = []
    for place, (start, end) in enumerate(spans):
        chosen = slice(int(limits[place]), int(limits[place + 1]))
        gap_start = np.append(begin - shifts[place][0], end)
        gap_end = np.append(start, finish - shifts[place][1])
        member = pipeline.members[place]
        busy = _others(member, ranks, arrivals, {*pipeline.members})
        lengths = gap_end - gap_start - np.append(stages[place].copying_ns, 0)
        lengths -= intervals.covered_within(busy, gap_start, gap_end)
        lengths = np.where(np.append(waits[chosen], True), np.maximum(lengths, 0), 0)
        expected = []
        for starts, took, last in zip(levels, (equal, own, own), finishes, strict=True):
            until: Int64 = np.append(starts[chosen], last)
            since: Int64 = np.append(0, starts[chosen] + took[chosen])
            expected.append(until - since)
        parts = _parts(expected, lengths)
        gaps.append(
            StageGaps(
                member,
                start,
                end,
                stages[place].kind,
                stages[place].step,
                gap_start,
                gap_end,
                parts,
                _communicating(ranks, arrivals[member], gap_start, gap_end, lengths),
                levels[0][chosen],
                levels[0][chosen] + equal[chosen],
                sum(shifts[place]) // 2,
            )
        )
    return PipelineBubbles(tuple(gaps), schedule_of(pipeline, passes), begin, finish)


def _shifts(pipeline: Pipeline, ranks: RankComparison) -> list[tuple[int, int]]:
    """Return the offsets that put each stage's times on the first stage's clock.

    Where the clocks of machines are uncertain, the first and the last message between neighbours
    say it: both sides of a message are over at once.

    Returns:
        Of each stage, at the first message and at the last.
    """
    reports = [ranks.reports[member] for member in pipeline.members]
    unsure = [ranks.clocks.uncertainty_ns(reports[0], report) for report in reports]
    shifts = [(0, 0)]
    for stage in range(1, len(reports)):
        messages = pipeline.between(stage - 1, stage)
        first, last = shifts[-1]
        if messages is not None and any(value is None or value > MAX_UNSURE_NS for value in unsure):
            apart = messages.sent_ns - messages.end_ns
            first, last = first + int(apart[0]), last + int(apart[-1])
        shifts.append((first, last))
    return shifts


def _parts(expected: Sequence[Int64], lengths: Int64) -> Int64:
    """Return how much of each gap each walk explains that those before do not, int64[n, 4]."""
    parts = np.zeros((len(lengths), _NUM_PARTS), np.int64)
    done = np.zeros(len(lengths), np.int64)
    for place, level in enumerate((*expected, lengths)):
        reached = np.maximum(done, np.minimum(level, lengths))
        parts[:, place] = reached - done
        done = reached
    return parts


def _communicating(
    ranks: RankComparison, arrivals: Arrivals, gap_start: Int64, gap_end: Int64, lengths: Int64
) -> int:
    """Return the time in a stage's gaps that communication kernels take."""
    start, end = (
        ranks.clocks.to_run(arrivals.report, times[~arrivals.is_mpi])
        for times in (arrivals.start_ns, arrivals.end_ns)
    )
    inside = intervals.covered_within(intervals.union(start, end), gap_start, gap_end)
    return int(np.minimum(inside, lengths).sum())


def _others(
    member: int, ranks: RankComparison, arrivals: Sequence[Arrivals], members: set[int]
) -> Intervals:
    """Return when a stage communicates with ranks that are no stages of its pipeline."""
    arrival = arrivals[member]
    exchanges = [arrival.operations.index(name) for name in BETWEEN_TWO]
    chosen = ~is_in(arrival.operation, np.array(exchanges, np.int64)) & ~arrival.is_mpi
    for group in ranks.waits:
        if member in group.group.members and len(members & {*group.group.members}) > 1:
            place = group.group.place[:, group.group.members.index(member)]
            chosen[place[place >= 0]] = False
    return intervals.union(
        ranks.clocks.to_run(arrival.report, arrival.start_ns[chosen]),
        ranks.clocks.to_run(arrival.report, arrival.end_ns[chosen]),
    )


def _equal(stages: Sequence[RankPasses], pipeline: Pipeline, own: Int64) -> Int64:
    """Return the length of each pass if all stages are equal, int64[passes].

    Passes of a kind take their mean over the stages, step by step. What no range calls a forward
    or a backward takes the mean of its stage's passes with the same messages, and then all stages
    the same time together.
    """
    kinds = np.concatenate([stage.kind for stage in stages])
    step = np.concatenate([stage.step for stage in stages])
    number = np.repeat(np.arange(len(stages)), [len(stage) for stage in stages])
    knows_kinds = all((stage.kind > 0).any() for stage in stages)
    if knows_kinds:
        named = kinds > 0
        equal: Float64 = own.astype(np.float64)
        equal[named] = _means(np.stack((kinds, step))[:, named], own[named])
    else:
        named = np.zeros(len(own), np.bool_)
        equal = _means(np.stack((number, _roles(stages, pipeline))), own)
    rest = np.flatnonzero(~named)
    totals = np.bincount(number[rest], equal[rest], minlength=len(stages))
    scale = np.divide(totals.mean(), totals, out=np.ones(len(stages)), where=totals > 0)
    equal[rest] *= scale[number[rest]]
    result: Int64 = np.rint(equal).astype(np.int64)
    return result


def _roles(stages: Sequence[RankPasses], pipeline: Pipeline) -> Int64:
    """Return a number of each pass by the ways of its messages, int64[passes]."""
    limits = np.cumsum([0, *(len(stage) for stage in stages)])
    roles = np.zeros(int(limits[-1]), np.int64)
    offset = dict(zip(pipeline.members, limits.tolist(), strict=False))
    for (source, destination), messages in pipeline.messages.items():
        goes_on = offset[source] < offset[destination]
        for place, ends, bit in (
            (source, messages.producer, 0),
            (destination, messages.consumer, 2),
        ):
            roles[offset[place] + ends[ends >= 0]] |= 1 << (bit + goes_on)
    return roles


def _means(keys: Int64, values: Int64) -> Float64:
    """Return the mean of the values with the same keys, float64[n]."""
    _, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    means: Float64 = (np.bincount(inverse, values) / np.bincount(inverse))[inverse]
    return means
