"""Operations of several ranks in which they wait for each other, matched between the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses import breakdown
from traceprof.communication.messages import BETWEEN_TWO
from traceprof.replay.graph.longest_path import (
    SAME,
    EdgeKind,
    GraphEdges,
    WeightSets,
    difference,
    or_known,
)
from traceprof.structs import Record
from traceprof.trace.grouping import median_of
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Int64, Mask
    from traceprof.ranks.waits import GroupWaits
    from traceprof.replay.graph.longest_path import Difference
    from traceprof.replay.graph.steps import Sample

# If clocks may be off by more than this share of a step, only operations count for which a rank
# waited longer than that: to leave out shorter waits is the smaller error.
_MAX_UNCERTAINTY = 0.01


class Matched(Record, frozen=True):
    """The m matched operations of a group of r ranks as recorded; of one rank, without r."""

    start_ns: Int64  # int64[m, r], when each rank arrived
    end_ns: Int64  # int64[m, r], when each rank left
    node: Int64  # int64[m, r], the nodes of the graph at which the ranks arrive

    def edges(self, release: int) -> GraphEdges:
        """Return the edges between the ranks: each operation begins when the last rank has come.

        Its data begin to move at one of m nodes, of which the first is `release`.
        """
        node, num = self.node.ravel(), len(self.node)
        of_node = np.repeat(np.arange(release, release + num), self.node.shape[1])
        kinds = np.array([EdgeKind.ARRIVAL, EdgeKind.TRANSFER], np.uint8)
        return GraphEdges(
            np.repeat(kinds, len(node)),
            np.concatenate((node, of_node), dtype=np.int32, casting="same_kind"),
            np.concatenate((of_node, node + 1), dtype=np.int32, casting="same_kind"),
        )


class SynchronizingGroup(Record, frozen=True):
    """A group of ranks that wait for each other."""

    waits: GroupWaits  # of all their operations
    together: Mask  # bool[operations], in which they do
    members: list[int]  # their indices among the ranks of the run


def synchronizing_groups(analysis: OpenAnalysis) -> list[SynchronizingGroup]:
    """Return the groups whose ranks wait for each other, each with its waiting operations."""
    ranks = analysis.measured.ranks
    starts = [
        [step.measures.window_start_ns for step in result.steps]
        for result in analysis.measured.of(breakdown)
    ]
    lengths = [float(median_of(np.diff(of_rank))) for of_rank in starts if len(of_rank) > 1]
    step = int(median_of(lengths)) if lengths else ranks.window_ns
    index = {rank.rank: place for place, rank in enumerate(analysis.run.ranks)}
    groups = []
    for waits in ranks.waits:
        if len(waits) == 0 or waits.group.is_mpi:  # the replay takes these as the host's own time
            continue
        group, uncertainty = waits.group, waits.uncertainty_ns.max()
        together = waits.is_known & (group.leaves_together | group.is_one_of(BETWEEN_TWO))
        together &= group.is_whole
        if uncertainty > _MAX_UNCERTAINTY * step:
            together &= waits.wait_ns.max(axis=1) > uncertainty
        if together.any():
            members = [index[ranks.ranks[member]] for member in group.members]
            groups.append(SynchronizingGroup(waits, together, members))
    return groups


def matched_places(analysis: OpenAnalysis, sample: Sample | None) -> list[Int64]:
    """Return for each group the operations of a sample in which its ranks wait for each other.

    Rows of `Group.place`, int64[m, r] for each group.
    """
    places = []
    for group in synchronizing_groups(analysis):
        waits, together = group.waits, group.together
        place, called = waits.group.place[together], waits.called_ns[together]
        if sample is not None:
            spans = [sample.span_of(analysis.run.ranks[member]) for member in group.members]
            begin, end = np.array(spans, np.int64).T
            inside = (called != UNKNOWN) & (called >= begin) & (called < end)
            place = place[inside.all(axis=1)]
        places.append(place)
    return places


def transfer_weights(
    matched: Sequence[Matched], scales: Sequence[Mapping[int, WeightSets]]
) -> list[WeightSets]:
    """Return the weights of the edges of matched operations: of arrivals, and of transfers.

    `scales`: by group of ranks and by column, the factors on the transfers.
    """
    weights: list[WeightSets] = []
    for operations, of_columns in zip(matched, scales, strict=True):
        last_start_ns = operations.start_ns.max(axis=1, keepdims=True)
        transfer = (operations.end_ns - last_start_ns).astype(np.float64)
        width = transfer.shape[1]
        full = transfer.ravel()
        others: list[Difference] = []
        for number in range(of_columns[0].num):
            scaled = full.copy()
            for column in range(width):
                scaled[column::width] *= of_columns[column].of(number)
            others.append(or_known(difference(full, scaled), others))
        nothing = np.zeros(len(full))
        weights.append(WeightSets(nothing, (SAME,) * len(others)))
        weights.append(WeightSets(full, tuple(others)))
    return weights
