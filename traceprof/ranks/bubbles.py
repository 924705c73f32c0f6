"""Bubbles of a pipeline: when each stage waits for another one, and why.

The passes of a pipeline and its handovers (messages, collectives) form a graph. It is walked three
times, always with the order in which each stage ran its passes: with equal stages and messages that
take no time, then with the stages' own passes, then with the messages' own time. The part of a gap
that the first walk has is warm-up; what the second adds is imbalance, what the third adds is
transfer. The rest is lateness: of the host, of data, of other streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import BETWEEN_TWO
from traceprof.intervals import Float64, Int64, Intervals
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.passes import RankPasses
from traceprof.ranks.pipelines import (
    MAX_UNSURE_NS,
    ROUNDED_NS,
    Pipeline,
    PipelineSchedule,
    schedule_of,
)
from traceprof.structs import Record
from traceprof.trace.grouping import groups


class Meetings(Record, frozen=True):
    """The m handovers between stages. A handover has one side or several."""

    transfer_ns: Int64  # int64[m], how long each takes once all sides are there
    chains: Int64  # int64[c, 2], which of them must be over before which other one
    inputs: Int64  # int64[k, 2], which pass must be over before which of them
    outputs: Int64  # int64[l, 2], which of them must be over before which pass


def meetings_of(
    pipeline: Pipeline,
    ranks: RankComparison,
    arrivals: Sequence[Arrivals],
    passes: Sequence[RankPasses],
    limits: Int64,
    *,
    are_in_order: bool = False,
) -> Meetings:
    """Handovers between a pipeline's stages; `are_in_order`: a group's collectives are in a row."""
    offset = dict(zip(pipeline.members, limits.tolist(), strict=False))
    nothing = np.empty((0, 2), np.int64)
    transfer, inputs, outputs = [nothing[:, 0]], [nothing], [nothing]
    chains = [nothing, *_chains(pipeline)]
    num, num_messages = 0, sum(map(len, pipeline.messages.values()))
    for took, before, after in (
        *_messages(pipeline),
        *_collectives(pipeline, ranks, arrivals, passes),
    ):
        numbers = np.arange(num, num + len(took))
        transfer.append(took)
        if are_in_order and num >= num_messages:
            chains.append(np.stack((numbers[:-1], numbers[1:]), axis=1))
        for member, last in before:
            known = last >= 0
            inputs.append(np.stack((offset[member] + last[known], numbers[known]), axis=1))
        for member, following in after:
            known = following >= 0
            outputs.append(np.stack((numbers[known], offset[member] + following[known]), axis=1))
        num += len(took)
    return Meetings(*map(np.concatenate, (transfer, chains, inputs, outputs)))


_Side: TypeAlias = "tuple[int, Int64]"  # index of a rank, and its passes; -1 for none
_Handovers: TypeAlias = "tuple[Int64, Sequence[_Side], Sequence[_Side]]"
"""How long handovers take, and the passes before and after them on each side."""


def _messages(pipeline: Pipeline) -> Iterator[_Handovers]:
    for (source, destination), way in pipeline.messages.items():
        before = (source, way.producer), (destination, way.follows)
        yield way.transfer_ns, before, ((destination, way.consumer), (source, way.holds))


def _chains(pipeline: Pipeline) -> Iterator[Int64]:
    """Pairs of messages that follow each other, int64[n, 2] each.

    Messages from one stage to another move one after the other, and so do those that one stream
    receives. A GPU whose copies never overlap makes them one after the other, whatever their end.
    """
    ways = list(pipeline.messages.values())
    for low, high in pairwise(np.cumsum([0, *map(len, ways)]).tolist()):
        yield np.stack((np.arange(low, high - 1), np.arange(low + 1, high)), axis=1)
    if not ways:
        return
    columns = [
        (
            np.full(len(way), way.source if way.are_copies else way.destination),
            way.stream,  # -1 of copies
            way.start_ns if way.are_copies else way.came_ns,
            way.end_ns,
        )
        for way in ways
    ]
    owner, stream, start, end = map(np.concatenate, zip(*columns, strict=True))
    for rows in groups(owner, stream):
        in_time = rows[np.argsort(start[rows], kind="stable")]
        if (start[in_time][1:] >= end[in_time][:-1]).all():
            yield np.stack((in_time[:-1], in_time[1:]), axis=1)


def _collectives(
    pipeline: Pipeline,
    ranks: RankComparison,
    arrivals: Sequence[Arrivals],
    passes: Sequence[RankPasses],
) -> Iterator[_Handovers]:
    for waits in ranks.waits:
        group = waits.group
        columns = [at for at, member in enumerate(group.members) if member in pipeline.members]
        if len(columns) < 2 or group.source == "mpi" or group.is_one_of(BETWEEN_TWO).any():
            continue
        rows = np.flatnonzero((group.place[:, columns] >= 0).all(axis=1))
        before, after, took = [], [], []
        for column in columns:
            member = group.members[column]
            arrival, stage = arrivals[member], passes[member]
            at = group.place[rows, column]
            following = np.searchsorted(stage.launched_ns, arrival.called_ns[at])
            starts = np.append(stage.start_ns, 0)[following]
            waits_for = starts >= arrival.end_ns[at] - ROUNDED_NS
            before.append((member, following - 1))
            after.append((member, np.where(waits_for, following, -1)))
            took.append(arrival.end_ns[at] - arrival.start_ns[at])
        if len(rows):
            yield np.min(took, axis=0), before, after


class Walk:
    """Topological walk over passes and handovers.

    It loops over passes, not events: a pass has tens to thousands of kernels. `is_possible` says
    that nothing waits for itself.
    """

    def __init__(self, limits: Int64, meetings: Meetings) -> None:
        """Order passes and meetings; `limits`: int64[stages + 1], the first pass of each stage."""
        self._num_passes, self._meetings = int(limits[-1]), meetings
        num = self._num_passes + len(meetings.transfer_ns)
        is_first = np.zeros(self._num_passes, np.bool_)
        is_first[limits[:-1]] = True
        following = np.flatnonzero(~is_first)
        edges = np.concatenate(
            (
                np.stack((following - 1, following), axis=1),
                meetings.inputs + np.array([0, self._num_passes]),
                meetings.outputs + np.array([self._num_passes, 0]),
                meetings.chains + self._num_passes,
            )
        )
        edges = edges[np.argsort(edges[:, 0], kind="stable")]
        first = np.searchsorted(edges[:, 0], np.arange(num + 1)).tolist()
        targets = edges[:, 1].tolist()
        self._after = [targets[low:high] for low, high in pairwise(first)]
        left = np.bincount(edges[:, 1], minlength=num).tolist()
        order = [node for node, count in enumerate(left) if not count]
        for node in order:  # grows
            for target in self._after[node]:
                left[target] -= 1
                if not left[target]:
                    order.append(target)
        self._order, self.is_possible = order, len(order) == num

    def starts(self, took_ns: Int64, *, moves: bool) -> Int64:
        """Start of each pass since the first one, int64[passes], given their lengths."""
        transfer = self._meetings.transfer_ns * moves
        took = np.concatenate((took_ns, transfer)).tolist()
        start = [0] * len(took)
        for node in self._order:
            over = start[node] + took[node]
            for target in self._after[node]:
                start[target] = max(start[target], over)
        return np.array(start[: self._num_passes], np.int64)


_NUM_PARTS = 4


class StageGaps(Record, frozen=True):
    """A stage: its n passes, and the n + 1 gaps before and after them, in the run's time."""

    member: int  # index of the rank
    start_ns: Int64  # int64[n], of its passes
    end_ns: Int64
    kind: Int64  # int64[n], as `RankPasses` has it
    step: Int64  # int64[n], index of the step of each, -1 for none
    gap_start_ns: Int64  # int64[n + 1], when the stage had nothing to do
    gap_end_ns: Int64  # int64[n + 1]
    parts_ns: Int64  # int64[n + 1, 4], the bubble in each gap by part, 0 if it waits for no stage
    communicating_ns: int  # how much of its bubble it spent in sends and receives
    # int64[n], starts of its passes if stages were equal and messages free
    ideal_start_ns: Int64
    ideal_end_ns: Int64
    shift_ns: int  # to be added to its times so that they compare with the first stage's

    @property
    def bubble_ns(self) -> int:
        """How long it waits for other stages."""
        return int(self.parts_ns.sum())

    @property
    def waits(self) -> tuple[Int64, Int64, Int64]:
        """Waits of the stage, cut into parts: start, end and number of the part, int64[k] each.

        The length of each part is measured, its place within the wait is not. Parts are put one
        after the other, so that the last ends where the next pass starts.
        """
        last = self.gap_end_ns - self.parts_ns.sum(axis=1)
        ends = last[:, np.newaxis] + self.parts_ns.cumsum(axis=1)
        gap, part = np.nonzero(self.parts_ns)
        end = ends[gap, part]
        return end - self.parts_ns[gap, part], end, part


class PipelineBubbles(Record, frozen=True):
    """A pipeline and its bubbles."""

    stages: tuple[StageGaps, ...]  # in order
    schedule: PipelineSchedule  # of its passes
    start_ns: int  # when the first pass of all stages starts, in the run's time of the first stage
    end_ns: int  # when the last one is over
    num_missing: int = 0  # stages next to these that were not recorded


def bubbles_of(
    pipeline: Pipeline,
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
) -> PipelineBubbles | None:
    """Bubbles of a pipeline; None if its messages contradict each other."""
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
    starts = [
        walk.starts(took, moves=moves)
        for took, moves in ((equal, False), (own, False), (own, True))
    ]
    ends = [start + took for start, took in zip(starts, (equal, own, own), strict=True)]
    shifts = _shifts(pipeline, ranks)
    begin = min(int(start[0]) + first for (start, _), (first, _) in zip(spans, shifts, strict=True))
    finish = max(int(end[-1]) + last for (_, end), (_, last) in zip(spans, shifts, strict=True))
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
        expected = [
            np.append(start[chosen], end.max()) - np.append(0, end[chosen])
            for start, end in zip(starts, ends, strict=True)
        ]
        of_rank = arrivals[member]
        sent = intervals.union(
            *(
                ranks.clocks.to_run(of_rank.report, times[~of_rank.is_mpi])
                for times in (of_rank.start_ns, of_rank.end_ns)
            )
        )
        gaps.append(
            StageGaps(
                member,
                start,
                end,
                stages[place].kind,
                stages[place].step,
                gap_start,
                gap_end,
                _parts(expected, lengths),
                int(np.minimum(intervals.covered_within(sent, gap_start, gap_end), lengths).sum()),
                starts[0][chosen],
                ends[0][chosen],
                sum(shifts[place]) // 2,
            )
        )
    schedule = schedule_of(pipeline, passes)
    return PipelineBubbles(tuple(gaps), schedule, begin, finish, pipeline.num_missing)


def _shifts(pipeline: Pipeline, ranks: RankComparison) -> list[tuple[int, int]]:
    """Offsets that put each stage's times on the first stage's clock.

    Where clocks of machines are uncertain, the offsets follow from the first and the last message
    between neighbours, since both sides of a message end together. Each stage has one offset at the
    first message and one at the last.
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
    """How much of each gap every walk explains beyond the walks before it, int64[n, 4]."""
    parts = np.zeros((len(lengths), _NUM_PARTS), np.int64)
    done = np.zeros(len(lengths), np.int64)
    for place, level in enumerate((*expected, lengths)):
        reached = np.maximum(done, np.minimum(level, lengths))
        parts[:, place] = reached - done
        done = reached
    return parts


def _others(
    member: int, ranks: RankComparison, arrivals: Sequence[Arrivals], members: set[int]
) -> Intervals:
    arrival = arrivals[member]
    chosen = ~arrival.is_exchange & ~arrival.is_mpi
    for group in ranks.waits:
        if member in group.group.members and len(members & {*group.group.members}) > 1:
            place = group.group.place[:, group.group.members.index(member)]
            chosen[place[place >= 0]] = False
    return intervals.union(
        ranks.clocks.to_run(arrival.report, arrival.start_ns[chosen]),
        ranks.clocks.to_run(arrival.report, arrival.end_ns[chosen]),
    )


def _equal(stages: Sequence[RankPasses], pipeline: Pipeline, own: Int64) -> Int64:
    """Length of each pass if all stages are equal, int64[passes].

    Passes of a kind take their mean over the stages, step by step. Where no kinds are known, a pass
    takes the mean of its stage's passes with the same messages. Passes without a kind are scaled so
    that all stages take the same time with them.
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
    return np.rint(equal).astype(np.int64)


def _roles(stages: Sequence[RankPasses], pipeline: Pipeline) -> Int64:
    """Number of each pass by the directions of its messages, int64[passes]."""
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
    _, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    return (np.bincount(inverse, values) / np.bincount(inverse))[inverse]
