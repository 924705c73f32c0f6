"""Facts about a process that are kept when its graph has been weighed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.evidence_names import LOADER_STAGE
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE, COPY
from traceprof.replay.graph.hidden_host_waits import seen_ns
from traceprof.replay.graph.hidden_stream_waits import covered_ns, hidden_stream_ns
from traceprof.replay.graph.thread_waits import (
    MIN_UNSEEN,
    loading_share,
    training_threads,
    unseen_pace_ns,
)
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of, without

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from traceprof.intervals import Int64, Intervals
    from traceprof.replay.graph.process_graph import Process
    from traceprof.run.opening import Rank

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
    """Facts about a process.

    Attributes:
        ranks: the numbers of its ranks.
        host_node: where its nodes begin.
        gpu_node: where those of its GPU operations begin.
        end_node: one past its last.
        by_kind_ns: int64[pieces, 3], what compute, communication and copies take in each piece of
            its streams.
        num_unlaunched: how many operations were launched before the capture began, of those that
            were not over when the host launched the first step.
        num_operations: how many were not over then.
        has_event_records: whether the report shows which streams waited for which.
        host_waits: when a thread that launches to the busiest stream waited for the GPU, or for
            room in the launch queue.
        lost_records: the share of calls that record an event whose record is lost; 0 if no stream
            waits for one.
        span_ns: how long the steps of the process take together.
        hidden_host_ns: how much of that its threads waited for the GPU by no call that is shown.
        hidden_stream_ns: how much its streams waited for each other by none.
        paced_ns: how long by itself a thread takes for what it hands over in a step to one that
            trains, the longest of them; 0 if none is known to.
        brings_batches: whether other threads than those that train copy batches to the GPU.
        loader_ns: how long a loader works on the CPU for a batch, as its ranges show, less what it
            may be ahead: no step takes less in the mean; 0 if that is unknown.
        late_ns: by rank, how much operations began late for no known reason.
        unseen_pace_ns: how long its threads slept until one not seen may have woken them.
        workers_ran: for which share of the time processes that may load its data were on a CPU, the
            mean; 0 if none are known.
        may_load: for which share of it a thread without calls may load data, at most.
    """

    ranks: tuple[int, ...]
    host_node: int
    gpu_node: int
    end_node: int
    by_kind_ns: Int64
    num_unlaunched: int
    num_operations: int
    has_event_records: bool
    host_waits: Intervals
    lost_records: float
    span_ns: int
    hidden_host_ns: int
    hidden_stream_ns: int
    paced_ns: float
    brings_batches: bool
    loader_ns: float
    late_ns: Mapping[int, int]
    unseen_pace_ns: int
    workers_ran: float
    may_load: float


def unseen_pace(facts: Collection[ProcessFacts]) -> str | None:
    """Return why nothing may be gained, whatever changes; None if the run shows what paces it.

    Args:
        facts: about the run's processes.
    """
    is_unseen = any(process.unseen_pace_ns > MIN_UNSEEN * process.span_ns for process in facts)
    return _UNSEEN if is_unseen else None


def facts_of(
    process: Process, step_limits_ns: Int64, launched_ns: int, shift_ns: int
) -> ProcessFacts:
    """Return the facts about a process.

    Args:
        process: its ranks are open.
        step_limits_ns: int64[s + 1], when its steps begin that are compared, and the last one
            ends, on the run's clock.
        launched_ns: when the host launched the first of them: what was over by then holds up none.
        shift_ns: what was added to times of the report.
    """
    limits_ns = int(step_limits_ns[0]), int(step_limits_ns[-1])
    work, calls, first = process.work, process.calls, process.first_operation
    by_kind = [
        np.add.reduceat(np.where(work.kind == kind, work.length_ns, 0), first)
        if len(first)
        else np.empty(0, np.int64)
        for kind in (COMPUTE, COMMUNICATION, COPY)
    ]
    between = process.stream_waits
    hidden = hidden_stream_ns(calls, work, process.latencies.launched_ns, between)
    late, late_ns = process.latencies.unexplained_ns, {}
    for index, rank in process.ranks:
        rows = np.flatnonzero((work.rank == index) & (late > 0))
        start = work.start_ns[rows]
        late_ns[rank.rank] = covered_ns(start - late[rows], start, limits_ns)
    waits, training = process.host_waits, training_threads(calls, work)
    waiting = np.flatnonzero(is_in(calls.thread[waits.call], training))
    call, overs = waits.call[waiting], process.hand_overs
    in_steps = (work.end_ns > launched_ns) & (work.start_ns < limits_ns[1])
    is_unlaunched = in_steps & (work.call < 0)
    is_unlaunched[work.cut] = False
    brings_batches = len(process.loading_threads) > 0
    return ProcessFacts(
        ranks=tuple(rank.rank for _, rank in process.ranks),
        host_node=process.host_node,
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
        paced_ns=_paced_ns(process, training, step_limits_ns),
        brings_batches=brings_batches,
        loader_ns=_loader_ns(process, step_limits_ns - shift_ns) if brings_batches else 0.0,
        late_ns=late_ns,
        unseen_pace_ns=0
        if process.ranks[0][1].program.uses_dali  # its threads are known
        else unseen_pace_ns(process.ranks, calls, work, training, overs, shift_ns, limits_ns),
        workers_ran=_workers_ran(
            process.ranks[0][1], limits_ns[0] - shift_ns, limits_ns[1] - shift_ns
        ),
        may_load=0.0
        if brings_batches
        else loading_share(process.ranks[0][1], calls, training, overs, step_limits_ns, shift_ns),
    )


def _workers_ran(rank: Rank, start_ns: int, end_ns: int) -> float:
    """Return which share of a time the workers of a process were on a CPU, their mean.

    They have as much to do for as many batches: steps that do not wait for the GPU any more take at
    least this share of what they took.
    """
    ran_ns = rank.trace.workers_ran(rank.process, start_ns, end_ns)
    ran_ns = ran_ns[ran_ns > _MIN_WORK * ran_ns.max(initial=0)]
    return float(ran_ns.mean()) / (end_ns - start_ns) if len(ran_ns) and end_ns > start_ns else 0.0


def _loader_ns(process: Process, limits_ns: Int64) -> float:
    """Return how long the first stage of a loader works in a mean step, less what it may be ahead.

    Args:
        process: its ranks are open.
        limits_ns: int64[s + 1], when steps begin, and the last one ends, in the report's own time.
    """
    rank = process.ranks[0][1]
    ranges = rank.trace.ranges(LOADER_STAGE, rank.process).get(rank.process)
    if ranges is None:
        return 0.0
    kinds = [LOADER_STAGE.search(name) for name in ranges.names]
    is_first = np.array([kind is not None and kind[1] == "CPU" for kind in kinds], np.bool_)
    num, longest = max(len(limits_ns) - 1, 1), 0
    for thread in distinct_values(ranges.end_thread[is_first]).tolist():
        own = is_first & (ranges.end_thread == thread) & (ranges.end_ns < intervals.BEYOND_NS)
        busy = intervals.union(ranges.start_ns[own], ranges.end_ns[own])
        longest = max(
            longest, intervals.clip(busy, int(limits_ns[0]), int(limits_ns[-1])).measure_ns
        )
    return longest / num * max(1 - _MAX_AHEAD / num, 0.0)


def _paced_ns(process: Process, training: Int64, limits_ns: Int64) -> float:
    """Return a thread's own time for the work that it hands over in the median step."""
    calls, overs, waits = process.calls, process.hand_overs, process.host_waits
    to_training = is_in(calls.thread[overs.call], training)
    giver = calls.thread[overs.after]
    longest = 0.0
    for thread in without(giver[to_training], training).tolist():
        own = overs.own[calls.thread[overs.own] == thread]
        slept = intervals.union(calls.end_ns[calls.outer[own - 1]], calls.start_ns[own])
        rows = np.flatnonzero(calls.is_outer & (calls.thread == thread))
        called = intervals.union(calls.start_ns[rows], calls.end_ns[rows])
        waiting = calls.thread[waits.call] == thread
        waited = intervals.union(
            (calls.start_ns[waits.call] + waits.own_ns)[waiting], calls.end_ns[waits.call[waiting]]
        )
        busy = intervals.subtract(intervals.merge(slept, called), waited)
        # From what it handed over last in one step to that in the next one that has any.
        given = np.sort(calls.end_ns[overs.after[to_training & (giver == thread)]])
        step = np.searchsorted(limits_ns, given, side="right")
        is_last = np.append(step[1:] != step[:-1], True)
        given, step = given[is_last], step[is_last]
        if len(given) > 1:
            of_steps = np.diff(intervals.covered_before(busy, given)) / np.diff(step)
            longest = max(longest, float(median_of(of_steps)))
    return longest
