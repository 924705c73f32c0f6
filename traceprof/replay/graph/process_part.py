"""One process's part of the run's graph, with weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host.host_code import LOADER_STAGE
from traceprof.host.launch_stalls import Stalls
from traceprof.intervals import Int64, Intervals
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE, COPY, recorded
from traceprof.replay.graph.hidden_waits import covered_ns, hidden_stream_ns, seen_ns
from traceprof.replay.graph.host_waits import (
    MIN_UNSEEN,
    loading_share,
    training_threads,
    unseen_pace_ns,
)
from traceprof.replay.graph.longest_path import EdgeKind, Edges, GraphEdges, WeightSets
from traceprof.replay.graph.process_graph import FIRST_NODE, Process, edges_of, in_segments
from traceprof.replay.graph.steps import RankSteps, Sample, begun_together, step_operations
from traceprof.replay.graph.weights import (
    Durations,
    Reading,
    RemainingWork,
    Variant,
    Weigher,
    as_measured,
    remaining_work,
)
from traceprof.run.opening import Rank
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

LOADING = (
    "threads or processes that launch nothing run alongside: if they load the data, a step takes"
    " at least as long as they need for it"
)
_UNSEEN = (
    "a thread that launches nothing, such as a data loader's, may have woken the threads that"
    " train: if it sets the pace, nothing is gained"
)
BRINGING = (
    "a thread that trains nothing copies batches to the GPU, and nothing shows when it waits for"
    " room in its queue: it may set the pace"
)
_MAX_AHEAD = 4  # batches, of a loader of two stages with two in each queue, as DALI's by default
_MIN_WORK = 0.1  # of what the busiest does; what does less loads nothing


class ProcessFacts(Record, frozen=True):
    """Facts about a process."""

    ranks: tuple[int, ...]  # the numbers of its ranks
    host_node: int  # where its nodes begin
    gpu_node: int  # where those of its GPU operations begin
    end_node: int  # one past its last
    by_kind_ns: Int64  # int64[segments, 3], compute, communication and copies in each segment
    num_unlaunched: int  # operations without a launch that were not over at the first step's launch
    num_operations: int  # all that were not over then
    has_event_records: bool  # whether the report shows which streams waited for which
    host_waits: Intervals  # waits of threads that train for the GPU, or for room in its queue
    lost_records: float  # as in `Process`
    span_ns: int  # how long the steps of the process take together
    hidden_host_ns: int  # how much of that its threads waited for the GPU by no call that is shown
    hidden_stream_ns: int  # how much its streams waited for each other by none
    brings_batches: bool  # whether other threads than those that train copy batches to the GPU
    # a loader's time for a batch by its ranges, the least a step takes; 0 if unknown
    loader_ns: float
    late_ns: Mapping[int, int]  # by rank, how much operations began late for no known reason
    unseen_pace_ns: int  # how long its threads slept until one not seen may have woken them
    # mean share of time on a CPU of processes that may load its data; 0 if unknown
    workers_ran: float
    may_load: float  # largest share of a step in which a thread without calls may load data


def unseen_pace(facts: Collection[ProcessFacts]) -> str | None:
    """Return why an unseen loader may set the pace, so that nothing is gained; None if none may."""
    is_unseen = any(process.unseen_pace_ns > MIN_UNSEEN * process.span_ns for process in facts)
    return _UNSEEN if is_unseen else None


def facts_of(process: Process, step_limits_ns: Int64, launched_ns: int) -> ProcessFacts:
    """Return the facts about a process whose ranks are open, in the steps that are compared.

    `launched_ns`: when the host launched the first of these: what was over by then holds up none.
    """
    limits_ns, shift_ns = (int(step_limits_ns[0]), int(step_limits_ns[-1])), process.shift_ns
    work, calls, first = process.work, process.calls, process.first_operation
    by_kind = [
        np.add.reduceat(np.where(work.kind == kind, work.length_ns, 0), first)
        for kind in (COMPUTE, COMMUNICATION, COPY)
    ]
    hidden = hidden_stream_ns(process, process.latencies.launched_ns, process.stream_waits)
    late, late_ns = process.latencies.unexplained_ns, {}
    for index, rank in process.ranks:
        rows = np.flatnonzero((work.rank == index) & (late > 0))
        start = work.start_ns[rows]
        late_ns[rank.rank] = covered_ns(start - late[rows], start, limits_ns)
    waits, training = process.host_waits, training_threads(process)
    waiting = np.flatnonzero(is_in(calls.thread[waits.call], training))
    call, overs = waits.call[waiting], process.hand_overs
    in_steps = (work.end_ns > launched_ns) & (work.start_ns < limits_ns[1])
    is_unlaunched = in_steps & (work.call < 0) & ~work.is_cut
    brings_batches = len(process.loading_threads) > 0
    # Equally many batches need as much CPU time: its share of a step is a lower bound of that.
    rank = process.rank
    ran_ns = rank.trace.workers_ran(rank.process, *(limit - shift_ns for limit in limits_ns))
    ran_ns = ran_ns[ran_ns > _MIN_WORK * ran_ns.max(initial=0)]
    return ProcessFacts(
        ranks=tuple(rank.rank for _, rank in process.ranks),
        host_node=FIRST_NODE,
        gpu_node=process.gpu_node,
        end_node=process.gpu_node + 2 * len(first),
        by_kind_ns=np.stack(by_kind, axis=1),
        num_unlaunched=int(is_unlaunched.sum()),
        num_operations=int(in_steps.sum()),
        has_event_records=process.stream_waits.is_recorded,
        host_waits=intervals.union(
            calls.start_ns[call] + waits.own_ns[waiting], calls.end_ns[call]
        ),
        lost_records=process.lost_records,
        span_ns=max(limits_ns[1] - limits_ns[0], 1),
        hidden_host_ns=seen_ns(process.hidden_waits, calls, limits_ns),
        hidden_stream_ns=covered_ns(*hidden, limits_ns),
        brings_batches=brings_batches,
        loader_ns=_loader_ns(process, step_limits_ns - shift_ns) if brings_batches else 0.0,
        late_ns=late_ns,
        unseen_pace_ns=0
        if process.rank.program.uses_dali  # its threads are known
        else unseen_pace_ns(process, training, overs, limits_ns),
        workers_ran=float(ran_ns.mean()) / (limits_ns[1] - limits_ns[0]) if len(ran_ns) else 0.0,
        may_load=0.0 if brings_batches else loading_share(process, training, overs, step_limits_ns),
    )


def _loader_ns(process: Process, limits_ns: Int64) -> float:
    """Return a loader's mean first stage per step, less what it may be ahead."""
    rank = process.rank
    ranges = rank.trace.ranges(LOADER_STAGE, rank.process).get(rank.process)
    if ranges is None:
        return 0.0
    kinds = [LOADER_STAGE.search(name) for name in ranges.names]
    is_of_cpu = np.array([kind is not None and kind[1] == "CPU" for kind in kinds], np.bool_)
    is_first = is_of_cpu[ranges.name]
    num, longest = max(len(limits_ns) - 1, 1), 0
    for thread in distinct_values(ranges.end_thread[is_first]).tolist():
        own = is_first & (ranges.end_thread == thread) & (ranges.end_ns < intervals.BEYOND_NS)
        busy = intervals.union(ranges.start_ns[own], ranges.end_ns[own])
        longest = max(
            longest, intervals.clip(busy, int(limits_ns[0]), int(limits_ns[-1])).measure_ns
        )
    return longest / num * max(1 - _MAX_AHEAD / num, 0.0)


class Matched(Record, frozen=True):
    """The m matched operations of a group of r ranks as recorded; of one rank, without r."""

    start_ns: Int64  # int64[m, r], when each rank arrived
    end_ns: Int64  # int64[m, r], when each rank left
    node: Int64  # int64[m, r], the nodes of the graph at which the ranks arrive

    def edges(self, release: int) -> GraphEdges:
        """Return the edges between the ranks: each operation begins when the last rank has come.

        Its data begin to move at one of m nodes from `release` on.
        """
        node, num = self.node.ravel(), len(self.node)
        of_node = np.repeat(np.arange(release, release + num), self.node.shape[1])
        kinds = np.array([EdgeKind.ARRIVAL, EdgeKind.TRANSFER], np.uint8)
        return GraphEdges(
            np.repeat(kinds, len(node)),
            np.concatenate((node, of_node), dtype=np.int32, casting="same_kind"),
            np.concatenate((of_node, node + 1), dtype=np.int32, casting="same_kind"),
        )


class Kept(Record, frozen=True):
    """A process with its edges: its nodes are those of the part."""

    process: Process  # with its segments
    edges: Sequence[Edges]  # of the process


class ProcessPart(Record, frozen=True):
    """The part of a process in the graph, its nodes numbered as if it were the first of the run."""

    edges: GraphEdges  # of the process
    weights: WeightSets  # of these edges
    # the groups in which it is matched with others, and its member in each
    places: Sequence[tuple[int, int]]
    matched: Sequence[Matched]  # its operations in each of these groups
    scales: Sequence[WeightSets]  # factors of the transfers of each group
    steps: Sequence[RankSteps]  # of its ranks
    facts: ProcessFacts  # of the process
    remaining: RemainingWork  # the work that remains in each step
    kept: Kept | None  # None if not asked for

    def moved(self, by: int) -> ProcessPart:
        """Return the same part with `by` nodes of other processes before its own."""
        steps_by_rank = [
            replace(
                rank_steps,
                limits=rank_steps.limits + by,
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
    matched_places: Sequence[Int64],
    members: Sequence[Sequence[int]],
    variants: Sequence[Variant],
    sample: Sample | None,
    left_out: Int64,
    *,
    is_kept: bool,
) -> ProcessPart:
    """Read one process, cut it into segments and weigh it.

    `matched_places`: by group of ranks, operations in which its `members` wait for each other.
    `left_out`: int64[l], numbers of its first rank's steps that are not steady.
    """
    span = None if sample is None else sample.span_of(ranks[0][1])
    read = recorded(ranks, shift, span)
    rows = {index: read.work.rows_of_kernels(index, rank) for index, rank in ranks}
    of_ranks = [step_operations(rank, index, read, sample) for index, rank in ranks]
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
    is_member = np.zeros(len(read.work), np.bool_)
    for of_group in operations:
        is_member[of_group] = True
    alone = [np.flatnonzero(is_member)]
    for steps in of_ranks:
        alone += [steps.limits, steps.last, steps.others]
    limits_ns, is_steady = of_ranks[0].limits_ns, ~is_in(of_ranks[0].number, left_out)
    process = in_segments(read, stalls, np.concatenate(alone), limits_ns, is_steady)
    for _, rank in ranks:
        rank.operations.release()
    edges = edges_of(process, is_member)
    steps_by_rank = [steps.as_nodes(process) for steps in of_ranks]
    if sample is not None:
        steps_by_rank = [rank_steps.compared(sample) for rank_steps in steps_by_rank]
    elif all(len(rank_steps.others) for rank_steps in steps_by_rank):
        steps_by_rank = begun_together(steps_by_rank)
    weights, scales, sets = weighed(process, edges, operations, variants)
    remaining = remaining_work(process, steps_by_rank[0].limits_ns, sets)
    launched_ns = min(int(rank_steps.launched_ns[0]) for rank_steps in steps_by_rank)
    facts = facts_of(process, steps_by_rank[0].limits_ns, launched_ns)
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
        kept=Kept(process, edges) if is_kept else None,
    )


def weighed(
    process: Process, edges: Sequence[Edges], matched: Sequence[Int64], variants: Sequence[Variant]
) -> tuple[WeightSets, list[WeightSets], list[Durations]]:
    """Return the weights of edges, the factors of transfers, and durations, by variant.

    `matched`: by group of ranks, the operations that are matched with others'.
    """
    measured = as_measured(process)
    under = {id(None): measured}
    for change in (variant.change for variant in variants):
        if change is not None and id(change) not in under:
            under[id(change)] = change(process, measured)
    pairs = [(under[id(variant.change)], variant.reading) for variant in variants]
    known: dict[tuple[int, Reading], int] = {}
    numbers = [known.setdefault((id(one), reading), len(known)) for one, reading in pairs]
    distinct = [pairs[numbers.index(number)] for number in range(len(known))]
    columns = (Weigher(process, *pair).of(edges) for pair in distinct)
    weights = WeightSets.of_columns(Weigher(process, measured).of(edges), columns)
    scales = [
        WeightSets.of_columns(
            measured.transfer[rows],
            (one.transfer[rows] * reading.has_gpu_time for one, reading in distinct),
        ).chosen(numbers)
        for rows in matched
    ]
    return weights.chosen(numbers), scales, [one for one, _ in pairs]
