"""The graph of a pipeline: its passes, and the meetings at which stages hand something over."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.messages import BETWEEN_TWO
from traceprof.ranks.pipelines import ROUNDED_NS
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.passes import RankPasses
    from traceprof.ranks.pipelines import Pipeline


class Meetings(Record, frozen=True):
    """The m moments at which stages hand something over, of which each has one side or several.

    Attributes:
        transfer_ns: int64[m], how long each takes once all sides are there.
        chains: int64[c, 2], which of them must be over before which other one.
        inputs: int64[k, 2], which pass must be over before which of them.
        outputs: int64[l, 2], which of them must be over before which pass.
    """

    transfer_ns: Int64
    chains: Int64
    inputs: Int64
    outputs: Int64


def meetings_of(
    pipeline: Pipeline,
    ranks: RankComparison,
    arrivals: Sequence[Arrivals],
    passes: Sequence[RankPasses],
    limits: Int64,
) -> Meetings:
    """Return the moments at which the stages of a pipeline hand something over."""
    offset = dict(zip(pipeline.members, limits.tolist(), strict=False))
    transfer, inputs, outputs = [], [], []
    num = 0
    for (source, destination), messages in pipeline.messages.items():
        numbers = np.arange(num, num + len(messages))
        num += len(messages)
        transfer.append(messages.transfer_ns)
        for place, ends in ((source, messages.producer), (destination, messages.follows)):
            known = ends >= 0
            inputs.append(np.stack((offset[place] + ends[known], numbers[known]), axis=1))
        for place, ends in ((destination, messages.consumer), (source, messages.holds)):
            known = ends >= 0
            outputs.append(np.stack((numbers[known], offset[place] + ends[known]), axis=1))
    for took, sides in _collectives(pipeline, ranks, arrivals, passes):
        numbers = np.arange(num, num + len(took))
        num += len(took)
        transfer.append(took)
        for member, last, following in sides:
            known = last >= 0
            inputs.append(np.stack((offset[member] + last[known], numbers[known]), axis=1))
            known = following >= 0
            outputs.append(np.stack((numbers[known], offset[member] + following[known]), axis=1))
    return Meetings(
        np.concatenate(transfer), _chains(pipeline), np.concatenate(inputs), np.concatenate(outputs)
    )


def _chains(pipeline: Pipeline) -> Int64:
    """Return which messages are over before others begin, int64[n, 2].

    Those of one way move one after the other, and so do those that one stream receives. A GPU whose
    copies never overlap makes them one after the other, wherever they go.
    """
    ways = list(pipeline.messages.values())
    first = np.cumsum([0, *map(len, ways)])
    numbers = [np.arange(low, high) for low, high in pairwise(first)]
    chains = [np.stack((of_way[:-1], of_way[1:]), axis=1) for of_way in numbers]
    for member in pipeline.members:
        copies = [at for at, way in enumerate(ways) if way.are_copies and way.source == member]
        came = [
            at for at, way in enumerate(ways) if not way.are_copies and way.destination == member
        ]
        streams = distinct_values(np.concatenate([ways[at].stream for at in came] or [first[:0]]))
        queues = [(copies, None), *((came, stream) for stream in streams.tolist())]
        for chosen, stream in queues:
            if len(chosen) < 2:
                continue
            rows = np.concatenate([numbers[at] for at in chosen])
            start, end = (
                np.concatenate([getattr(ways[at], name) for at in chosen])
                for name in ("start_ns" if stream is None else "came_ns", "end_ns")
            )
            if stream is not None:
                of_stream = np.concatenate([ways[at].stream for at in chosen]) == stream
                rows, start, end = rows[of_stream], start[of_stream], end[of_stream]
            order = np.argsort(start, kind="stable")
            if (start[order][1:] >= end[order][:-1]).all():
                chains.append(np.stack((rows[order][:-1], rows[order][1:]), axis=1))
    return np.concatenate(chains)


def _collectives(
    pipeline: Pipeline,
    ranks: RankComparison,
    arrivals: Sequence[Arrivals],
    passes: Sequence[RankPasses],
) -> Iterator[tuple[Int64, list[tuple[int, Int64, Int64]]]]:
    """Yield the times of operations of several stages, with the passes before and after them."""
    for waits in ranks.waits:
        group = waits.group
        columns = [at for at, member in enumerate(group.members) if member in pipeline.members]
        if len(columns) < 2 or group.source == "mpi" or group.is_one_of(BETWEEN_TWO).any():
            continue
        rows = np.flatnonzero((group.place[:, columns] >= 0).all(axis=1))
        sides, took = [], []
        for column in columns:
            member = group.members[column]
            arrival, stage = arrivals[member], passes[member]
            at = group.place[rows, column]
            following = np.searchsorted(stage.launched_ns, arrival.called_ns[at])
            starts = np.append(stage.start_ns, 0)[following]
            waits_for = starts >= arrival.end_ns[at] - ROUNDED_NS
            sides.append((member, following - 1, np.where(waits_for, following, -1)))
            took.append(arrival.end_ns[at] - arrival.start_ns[at])
        if len(rows):
            yield np.min(took, axis=0), sides


class Walk:
    """Walks over passes and meetings, each after what it waits for.

    It loops over passes, not over events: a pass has tens to thousands of kernels.

    Attributes:
        is_possible: whether nothing waits for itself.
    """

    def __init__(self, limits: Int64, meetings: Meetings) -> None:
        """Order passes and meetings.

        Args:
            limits: int64[stages + 1], the first pass of each stage.
            meetings: between the passes.
        """
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
        """Return when each pass starts, since the start of the first, int64[passes].

        Args:
            took_ns: int64[passes], how long each pass takes.
            moves: whether messages take their time; else they take none.
        """
        transfer = self._meetings.transfer_ns * moves
        took = np.concatenate((took_ns, transfer)).tolist()
        start = [0] * len(took)
        for node in self._order:
            over = start[node] + took[node]
            for target in self._after[node]:
                start[target] = max(start[target], over)
        return np.array(start[: self._num_passes], np.int64)
