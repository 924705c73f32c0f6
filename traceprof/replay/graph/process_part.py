"""The part of one process in the graph of a run, weighed."""

from __future__ import annotations

import copyreg
import pickle
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from traceprof.replay.graph.graph_edges import GraphEdges
from traceprof.replay.graph.longest_path import ROOT
from traceprof.replay.graph.matched import Matched
from traceprof.replay.graph.process_facts import facts_of
from traceprof.replay.graph.process_graph import edges_of, in_pieces, observe
from traceprof.replay.graph.rank_steps import begun_together, rank_steps_of, step_operations
from traceprof.replay.graph.remaining_work import RemainingWork
from traceprof.replay.graph.weight_sets import WeightSets, difference, different, or_known, packed
from traceprof.replay.graph.weights import Weigher, as_measured
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.host.launch_stalls import Stalls
    from traceprof.intervals import Int64
    from traceprof.replay.graph.process_facts import ProcessFacts
    from traceprof.replay.graph.process_graph import Edges, Process
    from traceprof.replay.graph.rank_steps import RankSteps
    from traceprof.replay.graph.sample import Sample
    from traceprof.replay.graph.weight_sets import Difference
    from traceprof.replay.graph.weights import Durations, Weighing
    from traceprof.run.opening import Rank

FIRST_NODE = ROOT + 1
_MIN_NARROWED_BYTES = 512


class Kept(Record, frozen=True):
    """A process with its edges, to be weighed again: its nodes are those of the part.

    Attributes:
        process: with its pieces.
        edges: of the process.
        operations: by group in which the process is matched with others, its operations.
        places: the group and the member of each of these.
    """

    process: Process
    edges: Sequence[Edges]
    operations: Sequence[Int64]
    places: Sequence[tuple[int, int]]

    def packed(self) -> PackedProcess:
        """Return the same in fewer bytes, without its ranks."""
        data = BytesIO()
        pickler = pickle.Pickler(data, 5)
        pickler.dispatch_table = {**copyreg.dispatch_table, np.ndarray: _narrowed}
        pickler.dump(replace(self, process=replace(self.process, ranks=())))
        return PackedProcess(zlib.compress(data.getvalue(), 1), ())


class PackedProcess(Record, frozen=True):
    """A process with its edges, packed.

    Attributes:
        data: the rest of it, compressed.
        ranks: of the process, each with its index among those of the run.
    """

    data: bytes
    ranks: Sequence[tuple[int, Rank]]

    @property
    def unpacked(self) -> Kept:
        """The process, unpacked anew at each use."""
        kept: Kept = pickle.loads(zlib.decompress(self.data))  # noqa: S301  (our own)
        return replace(kept, process=replace(kept.process, ranks=tuple(self.ranks)))


def _narrowed(array: np.ndarray[Any, Any]) -> str | tuple[Any, ...]:
    """Reduce an array, those of many integers to the least type that holds what is above a base."""
    if array.dtype != np.int64 or array.ndim != 1 or array.nbytes < _MIN_NARROWED_BYTES:
        return array.__reduce__()
    base, highest = int(array.min()), int(array.max())
    kind = np.min_scalar_type(highest - base)
    return _widened, ((array - base).astype(kind).tobytes(), kind, base)


def _widened(data: bytes, kind: np.dtype[Any], base: int) -> Int64:
    widened: Int64 = np.frombuffer(data, kind).astype(np.int64)
    widened += base
    return widened


class ProcessPart(Record, frozen=True):
    """The part of a process in the graph, its nodes numbered as if it were the first of the run.

    Attributes:
        edges: of the process.
        weights: of these edges.
        places: the groups in which it is matched with others, each with the member that it is.
        matched: its operations in each of these groups.
        scales: by what the transfers of each group are multiplied.
        steps: of its ranks.
        facts: of the process.
        remaining: the work that remains in each step.
        kept: what is needed to weigh its edges again, without its ranks; None if not asked for.
    """

    edges: GraphEdges
    weights: WeightSets
    places: Sequence[tuple[int, int]]
    matched: Sequence[Matched]
    scales: Sequence[WeightSets]
    steps: Sequence[RankSteps]
    facts: ProcessFacts
    remaining: RemainingWork
    kept: PackedProcess | None

    def moved(self, by: int) -> ProcessPart:
        """Return the same part with `by` nodes of other processes before its own."""
        if by == 0:
            return self
        steps_by_rank = [
            replace(
                rank_steps,
                nodes=rank_steps.nodes + by,
                last=rank_steps.last + by,
                others=rank_steps.others + by,
            )
            for rank_steps in self.steps
        ]
        facts = replace(
            self.facts,
            host_node=self.facts.host_node + by,
            gpu_node=self.facts.gpu_node + by,
            end_node=self.facts.end_node + by,
        )
        matched = [replace(group, node=group.node + by) for group in self.matched]
        return replace(
            self, edges=self.edges.moved(by), matched=matched, steps=steps_by_rank, facts=facts
        )


def process_part(
    ranks: Sequence[tuple[int, Rank]],
    shift: int,
    stalls: Stalls,
    number: int,
    matched_places: Sequence[Int64],
    members: Sequence[Sequence[int]],
    variants: Sequence[Weighing],
    sample: Sample | None,
    left_out: Int64,
    *,
    is_kept: bool,
) -> ProcessPart:
    """Read one process, cut it into pieces and weigh it.

    Args:
        ranks: of the process, each with its index among those of the run.
        shift: what to add to times of the report, ns.
        stalls: launches of the process that a full queue blocked.
        number: the index of the process.
        matched_places: by group, the operations in which its members wait for each other.
        members: by group, the indices of its members.
        variants: the ways to weigh the process.
        sample: the steps to replay; all where None.
        left_out: int64[l], the numbers of steps of its first rank that are not steady.
        is_kept: whether it will be weighed again.
    """
    span = None if sample is None else sample.span_of(ranks[0][1])
    observed = observe(ranks, shift, stalls, span)
    rows = {index: observed.work.rows_of_kernels(index, rank) for index, rank in ranks}
    of_ranks = [step_operations(rank, index, observed, shift, sample) for index, rank in ranks]
    places = [
        (group, column)
        for group, of_group in enumerate(members)
        for column, member in enumerate(of_group)
        if member in rows
    ]
    kernels = {index: np.flatnonzero(rank.is_communication_kernel) for index, rank in ranks}
    operations = []
    for group, column in places:
        index = members[group][column]
        operations.append(rows[index][kernels[index][matched_places[group][:, column]]])
    is_member = np.zeros(len(observed.work), np.bool_)
    for of_group in operations:
        is_member[of_group] = True
    alone = [np.flatnonzero(is_member)]
    for steps in of_ranks:
        alone += [steps.limits, steps.last, steps.others]
    limits_ns, is_steady = of_ranks[0].limits_ns, ~is_in(of_ranks[0].number, left_out)
    process = in_pieces(observed, np.concatenate(alone), FIRST_NODE, limits_ns, is_steady)
    del observed
    for _, rank in ranks:
        rank.operations.release()
    edges = edges_of(number, process, is_member)
    steps_by_rank = [
        rank_steps_of(rank, process, steps)
        for (_, rank), steps in zip(ranks, of_ranks, strict=True)
    ]
    if sample is not None:
        steps_by_rank = [rank_steps.compared(sample) for rank_steps in steps_by_rank]
    elif all(len(rank_steps.others) for rank_steps in steps_by_rank):
        steps_by_rank = begun_together(steps_by_rank)
    remaining = RemainingWork(steps_by_rank[0].number, steps_by_rank[0].limits_ns)
    weights, scales, remaining = weighed(process, edges, operations, variants, remaining)
    launched_ns = min(int(rank_steps.launched_ns[0]) for rank_steps in steps_by_rank)
    facts = facts_of(process, steps_by_rank[0].limits_ns, launched_ns, shift)
    for _, rank in ranks:
        rank.release()
    work = process.work
    return ProcessPart(
        edges=GraphEdges.of(edges),
        weights=weights,
        places=places,
        matched=[
            Matched(work.start_ns[rows], work.end_ns[rows], process.start_node(rows))
            for rows in operations
        ],
        scales=scales,
        steps=steps_by_rank,
        facts=facts,
        remaining=remaining,
        kept=Kept(process, edges, operations, places).packed() if is_kept else None,
    )


def weighed(
    process: Process,
    edges: Sequence[Edges],
    matched: Sequence[Int64],
    variants: Sequence[Weighing],
    remaining: RemainingWork,
) -> tuple[WeightSets, list[WeightSets], RemainingWork]:
    """Return the weights of edges, the factors of transfers, and remaining work, by variant.

    Args:
        process: with its pieces.
        edges: of the process.
        matched: by group of ranks, the operations that are matched with others.
        variants: the ways to weigh them.
        remaining: the steps of the process.
    """
    sets: list[Durations] = []
    measured = as_measured(process)
    weigher = Weigher(process, measured)
    full = [weigher.of(part) for part in edges]
    begins = np.cumsum([0, *map(len, full)]).tolist()
    factors = [measured.transfer[operations] for operations in matched]
    others: list[Difference] = []
    scales: list[list[Difference]] = [[] for _ in matched]
    assumed, assumption, share = measured, None, 0.0
    hosts = {share: measured}
    latest, weights = weigher, full
    known: dict[tuple[object, ...], Difference] = {}
    for variant in variants:
        if variant.assumption is not assumption or variant.quick_host != share:
            assumption, share = variant.assumption, variant.quick_host
            if share not in hosts:
                hosts[share] = variant.on_quick_host(process, measured)
            assumed = variant.assumed(process, hosts[share])
        durations = variant.durations(assumed)
        sets.append(durations)
        key = durations.of_edges
        if key not in known:
            # Most assumptions only remove waits: what takes as long as before is not weighed again.
            if weigher.takes_as_long(durations):
                latest, weights = weigher, full
            elif not latest.takes_as_long(durations):
                latest = Weigher(process, durations)
                weights = [latest.of(part) for part in edges]
            columns = latest.switched(durations, edges, weights)
            changes = [
                (edge + np.int32(begin), weight)
                for begin, before, column in zip(begins[:-1], full, columns, strict=True)
                if column is not before
                for edge, weight in (different(before, column),)
            ]
            change = packed(*map(np.concatenate, zip(*changes, strict=True))) if changes else b""
            known[key] = or_known((change,), others)
        others.append(known[key])
        for scale, factor, operations in zip(scales, factors, matched, strict=True):
            of_variant = difference(factor, durations.transfer[operations])
            scale.append(or_known(of_variant, scale))
    return (
        WeightSets(np.concatenate(full), tuple(others)),
        [WeightSets(*pair) for pair in zip(factors, map(tuple, scales), strict=True)],
        remaining.under(process, measured, sets),
    )
