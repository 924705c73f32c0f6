"""The graph of a whole run: its processes, and the collectives in which they meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from traceprof.analyses import breakdown
from traceprof.communication.messages import BETWEEN_TWO, messages
from traceprof.replay.graph.columns import COMPUTE
from traceprof.replay.graph.longest_path import ROOT, schedule
from traceprof.replay.graph.process_facts import facts_of
from traceprof.replay.graph.process_graph import EdgeKind, edges_of, in_pieces, observe
from traceprof.replay.graph.weight_sets import WeightSets, difference
from traceprof.replay.graph.weights import Weigher, as_measured
from traceprof.run.training import training_of
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.intervals import Int64
    from traceprof.ranks.waits import GroupWaits
    from traceprof.replay.graph.longest_path import Float64, Schedule
    from traceprof.replay.graph.process_facts import ProcessFacts
    from traceprof.replay.graph.process_graph import Edges, Observed, Process
    from traceprof.replay.graph.sample import Sample
    from traceprof.replay.graph.weight_sets import Int32
    from traceprof.replay.graph.weights import Weighing
    from traceprof.run.opening import Mask, Rank
    from traceprof.run.steps import StepWindows

# Where clocks may be off by more than this share of a step, ranks meet only in operations for which
# somebody waited longer than that: to leave out shorter waits is the smaller error.
_MAX_UNCERTAINTY = 0.01
_FIRST_NODE = ROOT + 1

Item = TypeVar("Item")
Made = TypeVar("Made")


class Share(Protocol):
    """Shares work on the items of a list among processes; one process gives the same."""

    def __call__(
        self,
        work: Callable[[Item], Made],
        items: Sequence[Item],
        prepare: Callable[[], None],
        num_operations: int,
        /,
    ) -> list[Made]:
        """Return what `work` makes of each item.

        Args:
            work: makes the same in every process.
            items: the items.
            prepare: called in another process before its work.
            num_operations: how many GPU operations the work is about.
        """


def in_this_process(work: Callable[[Item], Made], items: Sequence[Item], *_: object) -> list[Made]:
    """Do all work in this process: a `Share` of one."""
    return [work(item) for item in items]


@dataclass(frozen=True)
class Marks:
    """Where the steps of one rank begin and end; without steps, its training.

    Attributes:
        rank: the rank's number.
        number: int64[s], of the steps.
        nodes: int64[s + 1], where each begins, and where the last one ends.
        last: int64[s], where the work that was launched within each is over.
        limits_ns: int64[s + 1], when steps began and the last ended, on the run's clock.
        launched_ns: int64[s + 1], when the host was there: when it launched these operations.
        is_marked: whether the report tells steps.
        others: int64[o], where the work of each stream is over, without steps: the training ends
            with the last of them, whichever that is then.
    """

    rank: int
    number: Int64
    nodes: Int64
    last: Int64
    limits_ns: Int64
    launched_ns: Int64
    is_marked: bool
    others: Int64

    def compared(self, sample: Sample) -> Marks:
        """Return the marks of the steps of a sample that are compared."""
        inner = sample.compares(self.number)
        limits = slice(inner.start, inner.stop + 1)
        return replace(
            self, number=self.number[inner], nodes=self.nodes[limits], last=self.last[inner],
            limits_ns=self.limits_ns[limits], launched_ns=self.launched_ns[limits],
        )  # fmt: skip


@dataclass(frozen=True)
class EdgeList:
    """Edges of one kind; n of them.

    Attributes:
        kind: what they are.
        process: index of the process; -1 between processes.
        source: int64[n], nodes.
        target: int64[n], nodes.
    """

    kind: EdgeKind
    process: int
    source: Int64
    target: Int64


@dataclass(frozen=True)
class RunGraph:
    """A run as a graph, weighed.

    Attributes:
        edges: all of them, without what they are about.
        plan: in which order they are taken.
        weights: of each variant.
        marks: of each rank.
        facts: of each process.
        meetings: the collectives in which ranks meet.
        kept: what weighs the edges of each process anew; nothing where that is not asked for.
    """

    edges: tuple[EdgeList, ...]
    plan: Schedule
    weights: WeightSets
    marks: tuple[Marks, ...]
    facts: tuple[ProcessFacts, ...]
    meetings: tuple[_Meeting, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def has_event_records(self) -> bool:
        """Whether what streams waited for is told of all processes."""
        return all(facts.has_event_records for facts in self.facts)


class _Meeting(NamedTuple):
    """The m collectives of a group of r members, as they were; or of one member, without r.

    Attributes:
        start_ns: int64[m, r], when each member came.
        end_ns: int64[m, r], when each left.
        node: int64[m, r], where each comes in the graph.
    """

    start_ns: Int64
    end_ns: Int64
    node: Int64


class Kept(NamedTuple):
    """What weighs the edges of a process anew.

    Attributes:
        process: with its pieces.
        edges: of it.
        met: of each group in which it meets others, its operations.
        places: of each, the group and the member.
    """

    process: Process
    edges: Sequence[Edges]
    met: Sequence[Int64]
    places: Sequence[tuple[int, int]]


def run_graph(
    analysis: OpenAnalysis,
    variants: Sequence[Weighing],
    sample: Sample | None = None,
    *,
    keeps_processes: bool = False,
    share: Share = in_this_process,
) -> RunGraph:
    """Return the graph of a run whose reports are open.

    One process after the other is looked at; what is kept of it grows with how often somebody
    waited, not with how much was done.

    Args:
        analysis: of the run; all its ranks have a GPU and API calls.
        variants: how to weigh it.
        sample: the steps that matter; all where not given.
        keeps_processes: whether it is to be weighed anew; then it grows with what was done.
        share: shares the processes of the run among processes of this machine.

    Raises:
        CircularError: calls or operations seem to wait for each other.
    """
    owners: dict[tuple[int, int], list[tuple[int, Rank]]] = {}
    for index, rank in enumerate(analysis.run.ranks):
        owners.setdefault((rank.report, rank.process), []).append((index, rank))
    rows = _meetings(analysis, sample)
    meetings = tuple(_Meeting(*(np.zeros_like(place) for _ in range(3))) for place in rows)
    members = meeting_members(analysis)

    def part_of(process: tuple[int, list[tuple[int, Rank]]]) -> _Part:
        number, ranks = process
        shift = clock_shift(analysis, ranks[0][1])
        part = _part(ranks, shift, number, rows, members, variants, sample)
        return part if keeps_processes else part._replace(kept=None)

    node = 1
    edges: list[EdgeList] = []
    marks: list[Marks] = []
    weights, facts, kept = [], [], []
    scales: list[dict[int, WeightSets]] = [{} for _ in rows]
    num_operations = sum(len(rank.operations) for rank in analysis.run.ranks)
    processes = list(enumerate(owners.values()))
    parts = share(part_of, processes, partial(_reopen, analysis), num_operations)
    for ranks in owners.values():
        part = parts.pop(0).moved(node - _FIRST_NODE)  # one at a time is there twice
        facts.append(part.facts)
        node = part.facts.end_node
        edges += part.edges
        weights.append(part.weights)
        marks += part.marks
        for (meeting, column), met, scale in zip(part.places, part.met, part.scales, strict=True):
            meetings[meeting].start_ns[:, column] = met.start_ns
            meetings[meeting].end_ns[:, column] = met.end_ns
            meetings[meeting].node[:, column] = met.node
            scales[meeting][column] = scale
        if part.kept is not None:
            process = replace(part.kept.process, ranks=tuple(ranks))
            kept.append(part.kept._replace(process=process))
    for met in meetings:
        release = node + np.repeat(np.arange(len(met.node)), met.node.shape[1])
        node += len(met.node)
        edges.append(EdgeList(EdgeKind.ARRIVAL, -1, met.node.ravel(), release))
        edges.append(EdgeList(EdgeKind.TRANSFER, -1, release, met.node.ravel() + 1))
    plan = schedule(
        node,
        np.concatenate([part.source for part in edges]),
        np.concatenate([part.target for part in edges]),
    )
    weighed = WeightSets.joined([*weights, *_transfers(meetings, scales)])
    return RunGraph(tuple(edges), plan, weighed, tuple(marks), tuple(facts), meetings, tuple(kept))


def _reopen(analysis: OpenAnalysis) -> None:
    for trace in analysis.run.traces:
        trace.reopen()


def reweighed(graph: RunGraph, variants: Sequence[Weighing]) -> RunGraph:
    """Return a graph with other weights.

    Args:
        graph: whose processes are kept.
        variants: how to weigh it.
    """
    scales: list[dict[int, WeightSets]] = [{} for _ in graph.meetings]
    weights = []
    for part in graph.kept:
        weighed, of_part = _weighed(part.process, part.edges, part.met, variants)
        weights.append(weighed)
        for (meeting, column), scale in zip(part.places, of_part, strict=True):
            scales[meeting][column] = scale
    weighed = WeightSets.joined([*weights, *_transfers(graph.meetings, scales)])
    return replace(graph, weights=weighed)


def _transfers(
    meetings: Sequence[_Meeting], scales: Sequence[Mapping[int, WeightSets]]
) -> list[WeightSets]:
    """Return the weights of the edges of collectives: of arrivals, and of transfers.

    Args:
        meetings: of the run.
        scales: of each, by column, by what its transfers are multiplied.
    """
    weights: list[WeightSets] = []
    for met, of_columns in zip(meetings, scales, strict=True):
        transfer = (met.end_ns - met.start_ns.max(axis=1, keepdims=True)).astype(np.float64)
        width = transfer.shape[1]
        full = transfer.ravel()
        others: list[tuple[Int32, Float64]] = []
        for number in range(of_columns[0].num):
            scaled = full.copy()
            for column in range(width):
                scaled[column::width] *= of_columns[column].of(number)
            others.append(_or_last(difference(full, scaled), others))
        nothing = np.zeros(len(full))
        weights.append(WeightSets(nothing, tuple(difference(nothing, nothing) for _ in others)))
        weights.append(WeightSets(full, tuple(others)))
    return weights


class _Part(NamedTuple):
    """What is known of a process: nodes are counted as if it were the first of the run.

    Attributes:
        edges: of it.
        weights: of these edges.
        places: of each group in which it meets others, the group and the member.
        met: of each, the collectives.
        scales: of each, what becomes of transfers.
        marks: of its ranks.
        facts: what else is kept.
        kept: what weighs its edges anew, but for its ranks; None where that is not asked for.
    """

    edges: Sequence[EdgeList]
    weights: WeightSets
    places: Sequence[tuple[int, int]]
    met: Sequence[_Meeting]
    scales: Sequence[WeightSets]
    marks: Sequence[Marks]
    facts: ProcessFacts
    kept: Kept | None

    def moved(self, by: int) -> _Part:
        """Return the same behind so many nodes of others."""
        if by == 0:
            return self
        edges = [
            replace(one, source=_moved(one.source, by), target=one.target + by)
            for one in self.edges
        ]
        marks = [
            replace(mark, nodes=mark.nodes + by, last=mark.last + by, others=mark.others + by)
            for mark in self.marks
        ]
        facts = replace(
            self.facts,
            host_node=self.facts.host_node + by,
            gpu_node=self.facts.gpu_node + by,
            end_node=self.facts.end_node + by,
        )
        kept = self.kept
        if kept is not None:
            process = replace(
                kept.process,
                host_node=kept.process.host_node + by,
                gpu_node=kept.process.gpu_node + by,
            )
            again = [
                replace(one, source=moved.source, target=moved.target)
                for one, moved in zip(kept.edges, edges, strict=True)
            ]
            kept = kept._replace(process=process, edges=again)
        met = [one._replace(node=one.node + by) for one in self.met]
        return self._replace(edges=edges, met=met, marks=marks, facts=facts, kept=kept)


def _moved(nodes: Int64, by: int) -> Int64:
    """Return nodes behind so many others; the root stays where it is."""
    return np.where(nodes == ROOT, ROOT, nodes + by)


def _part(
    ranks: Sequence[tuple[int, Rank]],
    shift: int,
    number: int,
    meetings: Sequence[Int64],
    members: Sequence[Sequence[int]],
    variants: Sequence[Weighing],
    sample: Sample | None,
) -> _Part:
    """Look at one process, cut it into pieces and weigh it."""
    observed = observe(ranks, shift, None if sample is None else sample.span_of(ranks[0][1]))
    rows = {index: observed.work.rows_of_kernels(index, rank) for index, rank in ranks}
    of_ranks = [_step_operations(rank, index, observed, shift, sample) for index, rank in ranks]
    places = [
        (meeting, column)
        for meeting, of_group in enumerate(members)
        for column, member in enumerate(of_group)
        if member in rows
    ]
    kernels = {index: messages(rank).kernel for index, rank in ranks} if places else {}
    met = []
    for meeting, column in places:
        index = members[meeting][column]
        met.append(rows[index][kernels[index][meetings[meeting][:, column]]])
    is_member = np.zeros(len(observed.work), np.bool_)
    for operations in met:
        is_member[operations] = True
    alone = [np.flatnonzero(is_member)]
    for begin, last, _, _, others in of_ranks:
        alone += [begin, last, others]
    process = in_pieces(observed, np.concatenate(alone), _FIRST_NODE)
    del observed
    edges = edges_of(number, process, is_member)
    weighed, scales = _weighed(process, edges, met, variants)
    marks = [
        _marks(rank, process, *of_rank) for (_, rank), of_rank in zip(ranks, of_ranks, strict=True)
    ]
    if sample is not None:
        marks = [mark.compared(sample) for mark in marks]
    elif all(len(mark.others) for mark in marks):
        marks = _begun_together(marks)
    for _, rank in ranks:
        rank.release()
    work = process.work
    return _Part(
        edges=[EdgeList(one.kind, number, one.source, one.target) for one in edges],
        weights=weighed,
        places=places,
        met=[_Meeting(work.start_ns[at], work.end_ns[at], process.start_node(at)) for at in met],
        scales=scales,
        marks=marks,
        facts=facts_of(process),
        kept=Kept(replace(process, ranks=()), edges, met, places),
    )


def _weighed(
    process: Process,
    edges: Sequence[Edges],
    met: Sequence[Int64],
    variants: Sequence[Weighing],
) -> tuple[WeightSets, list[WeightSets]]:
    """Return the weights of edges, and the factors of transfers, by variant."""
    measured = as_measured(process)
    weigher = Weigher(process, measured)
    full = [weigher.of(part) for part in edges]
    begins = np.cumsum([0, *map(len, full)]).tolist()
    factors = [measured.transfer[operations] for operations in met]
    others: list[tuple[Int32, Float64]] = []
    scales: list[list[tuple[Int32, Float64]]] = [[] for _ in met]
    assumed, assumption = measured, None
    latest, weights = weigher, full
    for variant in variants:
        if variant.assumption is not assumption:
            assumption = variant.assumption
            assumed = variant.assumed(process, measured)
        durations = variant.durations(assumed)
        # What takes as long as it did is not weighed again: most assumptions switch waits off.
        if weigher.takes_as_long(durations):
            latest, weights = weigher, full
        elif not latest.takes_as_long(durations):
            latest = Weigher(process, durations)
            weights = [latest.of(part) for part in edges]
        columns = [
            latest.switched(durations, part, column)
            for part, column in zip(edges, weights, strict=True)
        ]
        parts = [difference(*pair) for pair in zip(full, columns, strict=True)]
        edge = [at + np.int32(begin) for (at, _), begin in zip(parts, begins[:-1], strict=True)]
        found = np.concatenate(edge), np.concatenate([weight for _, weight in parts])
        others.append(_or_last(found, others))
        for scale, factor, operations in zip(scales, factors, met, strict=True):
            of_variant = difference(factor, durations.transfer[operations])
            scale.append(_or_last(of_variant, scale))
    return (
        WeightSets(np.concatenate(full), tuple(others)),
        [WeightSets(*pair) for pair in zip(factors, map(tuple, scales), strict=True)],
    )


def _or_last(
    found: tuple[Int32, Float64], before: Sequence[tuple[Int32, Float64]]
) -> tuple[Int32, Float64]:
    """Return the last one of those before if it is the same: then it is kept once."""
    if not before:
        return found
    is_same = np.array_equal(found[0], before[-1][0]) and np.array_equal(found[1], before[-1][1])
    return before[-1] if is_same else found


def _marks(
    rank: Rank,
    process: Process,
    operations: Int64,
    last: Int64,
    limits: Int64,
    numbers: Int64,
    others: Int64,
) -> Marks:
    begin, end = process.start_node(operations[:-1]), process.end_node(operations[-1:])
    return Marks(
        rank=rank.rank,
        number=numbers,
        nodes=np.append(begin, end),
        last=process.end_node(last),
        limits_ns=limits,
        launched_ns=_launched(process, operations, limits),
        is_marked=rank.step_ranges is not None,
        others=process.end_node(others),
    )


def _begun_together(marks: Sequence[Marks]) -> list[Marks]:
    """Return the marks of ranks without steps, all beginning when the first of them does.

    One host launches for all: where an assumption lets it reach a later GPU sooner, that one's
    training would seem to become longer.
    """
    first = min(marks, key=lambda mark: int(mark.limits_ns[0]))
    return [
        replace(
            mark, nodes=np.append(first.nodes[:1], mark.nodes[1:]),
            limits_ns=np.append(first.limits_ns[:1], mark.limits_ns[1:]),
            launched_ns=np.append(first.launched_ns[:1], mark.launched_ns[1:]),
        )
        for mark in marks
    ]  # fmt: skip


def _launched(process: Process, operations: Int64, limits: Int64) -> Int64:
    """Return when the host launched operations; where that is not known, when they ran."""
    call = process.work.call[operations]
    starts = process.calls.start_ns[call]
    starts[-1] = process.calls.end_ns[call[-1]]
    return np.where(call >= 0, starts, limits)


def clock_shift(analysis: OpenAnalysis, rank: Rank) -> int:
    """Return what brings times of a rank's report onto the run's clock."""
    begin = np.array([rank.window.start_ns], np.int64)
    return int(analysis.measured.ranks.clocks.to_run(rank.report, begin)[0] - begin[0])


def _step_operations(
    rank: Rank, index: int, observed: Observed, shift: int, sample: Sample | None
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Return where steps begin, and the last ends; where each ends; when that was; numbers.

    And without steps, the last operation of each stream.
    """
    work = observed.work
    own = np.flatnonzero(work.rank == index)
    steps: StepWindows | None
    if sample is not None:
        steps = sample.steps[rank.rank]
        end_ns = int(steps.end_ns[-1])
    else:
        training, steps = training_of(rank), rank.steps
        end_ns = training.end_ns
        if steps is not None:
            steps = steps.chosen(steps.start_ns >= training.start_ns)
    if steps is not None and len(steps) > 0:
        limits = np.append(steps.start_ns, end_ns) + shift
        numbers = steps.number
    else:
        limits = np.array([training.start_ns, end_ns]) + shift
        numbers = np.zeros(1, np.int64)
    by_start = own[np.argsort(work.start_ns[own], kind="stable")]
    begin = by_start[np.searchsorted(work.start_ns[by_start], limits[:-1])]
    ended = own[work.end_ns[own] <= limits[-1]]
    last = ended[np.argmax(work.end_ns[ended])]
    if steps is None or len(steps) == 0:
        chain = work.chain[ended]
        latest = ended[np.lexsort((work.end_ns[ended], chain))]
        is_last = np.append(np.diff(work.chain[latest]) != 0, True)
        return np.append(begin, last), np.array([last]), limits, numbers, latest[is_last]
    of_steps = _last_of_steps(rank, observed, own, steps.source, shift)
    return np.append(begin, last), of_steps, limits, numbers, np.empty(0, np.int64)


def _last_of_steps(rank: Rank, observed: Observed, own: Int64, source: Int64, shift: int) -> Int64:
    """Return the operation that ends last of those launched within each step.

    Of those on the stream that computes most, where a step has some: a loader runs ahead.
    """
    ranges, work = rank.step_ranges, observed.work
    assert ranges is not None  # noqa: S101  (there are steps)
    launched = own[work.call[own] >= 0]
    computes = launched[work.kind[launched] == COMPUTE]
    if len(computes):
        spent = np.bincount(work.chain[computes], work.length_ns[computes])
        busiest = launched[work.chain[launched] == int(np.argmax(spent))]
        asked = np.sort(observed.calls.start_ns[work.call[busiest]] - shift)
        low, high = (
            np.searchsorted(asked, times[source]) for times in (ranges.start_ns, ranges.end_ns)
        )
        launched = busiest if (high > low).all() else launched
    asked = observed.calls.start_ns[work.call[launched]] - shift
    order = np.argsort(asked, kind="stable")
    launched, asked = launched[order], asked[order]
    low = np.searchsorted(asked, ranges.start_ns[source])
    high = np.searchsorted(asked, ranges.end_ns[source])
    ends = work.end_ns[launched]
    # reduceat reduces between each index and the next: every other result is between two steps.
    slices = np.stack((low, high), axis=1).ravel()
    latest = np.maximum.reduceat(np.append(ends, 0), slices)[::2]
    step_of = np.repeat(np.arange(len(low)), high - low)
    inside = np.concatenate([np.arange(*limits) for limits in zip(low, high, strict=True)])
    is_latest = ends[inside] == latest[step_of]
    chosen = np.empty(len(low), np.int64)
    chosen[step_of[is_latest]] = launched[inside[is_latest]]
    return chosen


def groups_that_meet(analysis: OpenAnalysis) -> list[tuple[GroupWaits, Mask]]:
    """Return the groups in which ranks hold each other, and the operations that do."""
    starts = [
        [step.measures.window_start_ns for step in result.steps]
        for result in analysis.measured.of(breakdown)
    ]
    lengths = [float(np.median(np.diff(of_rank))) for of_rank in starts if len(of_rank) > 1]
    step = int(np.median(lengths)) if lengths else analysis.measured.ranks.window_ns
    told = []
    for waits in analysis.measured.ranks.waits:
        if len(waits) == 0:
            continue
        group, uncertainty = waits.group, waits.uncertainty_ns.max()
        together = waits.is_known & (group.leaves_together | group.is_one_of(BETWEEN_TWO))
        together &= group.is_whole
        if uncertainty > _MAX_UNCERTAINTY * step:
            together &= waits.wait_ns.max(axis=1) > uncertainty
        if together.any():
            told.append((waits, together))
    return told


def meeting_members(analysis: OpenAnalysis) -> list[list[int]]:
    """Return for each group the indices of its members among the ranks of the run."""
    index = {rank.rank: place for place, rank in enumerate(analysis.run.ranks)}
    return [
        [index[analysis.measured.ranks.ranks[member]] for member in waits.group.members]
        for waits, _ in groups_that_meet(analysis)
    ]


def _meetings(analysis: OpenAnalysis, sample: Sample | None) -> list[Int64]:
    """Return for each group the operations in which its members meet, as `Group.place`."""
    meetings = []
    for (waits, together), members in zip(
        groups_that_meet(analysis), meeting_members(analysis), strict=True
    ):
        place, called = waits.group.place[together], waits.called_ns[together]
        if sample is not None:
            spans = [sample.span_of(analysis.run.ranks[member]) for member in members]
            begin, end = np.array(spans, np.int64).T
            inside = (called != UNKNOWN) & (called >= begin) & (called < end)
            place = place[inside.all(axis=1)]
        meetings.append(place)
    return meetings
