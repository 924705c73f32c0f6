"""Weights: the delay that each edge imposes on its target, as measured or as assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from traceprof.host.host_waits import OWN_WAIT_NS
from traceprof.intervals import Float64, Int64, Mask
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE, COPY
from traceprof.replay.graph.longest_path import UNCONSTRAINED, EdgeKind, Edges
from traceprof.replay.graph.process_graph import MAX_LATENCY_NS, Latencies, Process
from traceprof.structs import Record
from traceprof.trace.grouping import numbered_rows, reached_before


def halves(start_ns: Int64, limits_ns: Int64, is_steady: Mask) -> Int64:
    """Return the half, 0 or 1, of the steady step at each time, int64[n]; -1 outside of these.

    Halves alternate as in the sequence of Thue and Morse: no period of the steps is in one half.
    """
    step = np.searchsorted(limits_ns, start_ns, side="right") - 1
    is_inside = np.append(is_steady, False)[step] & (step >= 0)
    half, rest = np.zeros(len(step), np.int64), np.where(is_inside, step, 0)
    while rest.any():
        half ^= rest & 1
        rest >>= 1
    return np.where(is_inside, half, -1)


def held_out_latencies(process: Process) -> Latencies:
    """Return delays for cross-validation: of operations of the same name and stream in other steps.

    An operation without any such keeps its own, and so does one that found the GPU full.
    """
    latencies, work = process.latencies, process.work
    half = halves(work.start_ns, process.limits_ns, process.is_steady)
    like = numbered_rows(work.chain, process.operation_names)
    consumer = process.stream_waits.consumer
    return replace(
        latencies,
        after_launch_ns=_delays_of_others(latencies.after_launch_ns, like, half),
        after_previous_ns=_delays_of_others(latencies.after_previous_ns, like, half),
        after_wait_ns=_delays_of_others(latencies.after_wait_ns, like[consumer], half[consumer]),
        unexplained_ns=_of_others(latencies.unexplained_ns, like, half),
    )


def held_out_tails(process: Process) -> Float64:
    """Return the time from the awaited end to the return, from the other half, float64[m].

    A call that has worked or slept since, or waited for nothing, keeps its own.
    """
    waits = process.host_waits
    operation, tail = waits.operation, waits.tail_ns
    half = halves(process.work.start_ns[operation], process.limits_ns, process.is_steady)
    has_waited = process.work.end_ns[operation] > process.calls.start_ns[waits.call]
    is_delay = has_waited & (tail <= MAX_LATENCY_NS)
    half = np.where(is_delay, half, -1)
    like = numbered_rows(process.operation_names[operation], waits.is_stall.astype(np.int64))
    return _of_others(tail, like, half).astype(np.float64)


def _delays_of_others(values: Int64, like: Int64, half: Int64) -> Int64:
    return _of_others(values, like, np.where(values >= 0, half, -1))


def _of_others(values: Int64, like: Int64, half: Int64) -> Int64:
    """Return the mean of similar values in the other half, int64[n], or the value without any."""
    rows = np.flatnonzero(half >= 0)
    own, other = 2 * like[rows] + half[rows], 2 * like[rows] + 1 - half[rows]
    num = 2 * int(like.max(initial=0)) + 2
    count = np.bincount(own, minlength=num)
    mean = np.rint(np.bincount(own, values[rows], num) / np.maximum(count, 1)).astype(np.int64)
    held_out = values.copy()
    held_out[rows] = np.where(count[other] > 0, mean[other], values[rows])
    return held_out


class Durations(Record, frozen=True):
    """Times and switches under an assumption, from which the edges of a process get weights."""

    length_ns: Float64  # float64[operations], of the GPU's work
    saved_before_call_ns: Float64  # float64[calls], host time removed before each call
    saved_in_call_ns: Float64  # float64[calls], time removed from each call, waits apart
    transfer: Float64  # float64[operations], factor on the transfers of collectives
    skips_stream_order: Mask  # bool[operations], whether each ignores the one before on its stream
    skips_host_wait: Mask  # bool[calls], which hold the host for no operation
    is_loading: Mask  # bool[calls], those of threads for which no other waits any more
    is_removed: Mask  # bool[operations], without a launch and the GPU's delays
    # float64[operations], slowdown beside communication that is removed, once
    removed_slowdown_ns: Float64
    waits_for_gpu: bool = True  # whether waits hold the host, but for what it uses at once
    waits_for_kernels: bool = True  # whether those for kernels do; others are for copies
    stalls: bool = True  # whether a full queue holds the host
    # whether waits between streams are as quick as any, if none was measured
    has_quick_waits: bool = False
    independent_if_unknown: bool = False  # whether unknown communicators are independent ones


class Reading(Record, frozen=True):
    """One reading of what is not known of a run."""

    keeps_unexplained: bool = True  # whether delays without a known reason stay
    has_gpu_time: bool = True  # whether the GPU takes any time
    # whether streams wait for all that they may, without event records
    has_possible_waits: bool = True
    # whether waits for communication are for all before it on its stream
    has_whole_streams: bool = False
    has_hidden_waits: bool = False  # whether silences that may be waits for the GPU are
    # whether hidden waits, and calls that wait, go with recorded ones
    frees_hidden_waits: bool = False
    is_held_out: bool = False  # whether delays are those of the other half of the steps


AS_RECORDED = Reading()


class Variant(Record, frozen=True):
    """One variant of a run: an assumption with one reading of what is not known."""

    # changes durations by an assumption; None: as measured
    change: Callable[[Process, Durations], Durations] | None = None
    reading: Reading = AS_RECORDED


def as_measured(process: Process) -> Durations:
    """Return the measured durations of a process."""
    num_calls, num_operations = len(process.calls), len(process.work)
    return Durations(
        length_ns=process.work.length_ns.astype(np.float64),
        saved_before_call_ns=np.zeros(num_calls),
        saved_in_call_ns=np.zeros(num_calls),
        transfer=np.ones(num_operations),
        skips_stream_order=np.zeros(num_operations, np.bool_),
        skips_host_wait=np.zeros(num_calls, np.bool_),
        is_loading=np.zeros(num_calls, np.bool_),
        is_removed=np.zeros(num_operations, np.bool_),
        removed_slowdown_ns=np.zeros(num_operations),
    )


class Weigher:
    """Weighs the edges of one process for one set of durations."""

    def __init__(
        self, process: Process, durations: Durations, reading: Reading = AS_RECORDED
    ) -> None:
        self._process, self._durations, self._reading = process, durations, reading
        self._length_ns = durations.length_ns * reading.has_gpu_time
        calls, work = process.calls, process.work
        before, inside = durations.saved_before_call_ns, durations.saved_in_call_ns
        self._saved_at_start = np.cumsum(before) + np.cumsum(inside) - inside
        self._saved_at_end = self._saved_at_start + inside
        first = process.first_call
        self._segment_start = calls.start_ns[first]
        latencies = held_out_latencies(process) if reading.is_held_out else process.latencies
        scale = np.float64(reading.has_gpu_time)
        self._after_wait = latencies.after_wait_ns * scale
        if durations.has_quick_waits:
            self._after_wait -= latencies.assumed_wait_ns * scale
        self._late = latencies.unexplained_ns * np.float64(reading.keeps_unexplained)
        self._late += latencies.crowded_ns * scale
        self._after_previous = self._unless_gone(latencies.after_previous_ns * scale) + self._late
        after_launch = self._unless_gone(latencies.after_launch_ns * scale) + self._late
        launched = process.latencies.launched_ns.astype(np.float64)
        has_call = np.flatnonzero(work.call >= 0)
        call, launched = work.call.take(has_call), launched.take(has_call)
        saved = np.where(
            work.blocks[has_call], self._saved_at_start[call], self._saved_at_end[call]
        )
        # Nothing is handed over before its call begins, however short that is then.
        rows = np.flatnonzero(work.begins_in_call[has_call])
        since_begin = launched[rows] - calls.start_ns[call[rows]]
        saved[rows] -= np.maximum(inside[call[rows]] - since_begin, 0)
        segment = process.segment_of_call[call]
        on_return = process.is_launched_on_return[has_call]
        since = (
            launched - self._segment_start[segment] - (saved - self._saved_at_start[first[segment]])
        )
        since = np.where(on_return, launched - calls.end_ns.take(calls.outer.take(call)), since)
        self._launch = np.full(len(work), UNCONSTRAINED)
        self._launch[has_call] = since + after_launch[has_call]

    def of(self, edges: Sequence[Edges]) -> Float64:
        """Return the weights of edges of this process, one after the other, float64[n]."""
        return np.concatenate([self._WAYS[part.kind](self, part) for part in edges])

    def _captured(self, edges: Edges) -> Float64:
        process, at = self._process, edges.at
        is_host = edges.target < process.gpu_node
        times = np.empty(len(at))
        times[is_host] = process.calls.start_ns[at[is_host]]
        times[~is_host] = process.work.start_ns[at[~is_host]]
        return times

    def _between_calls(self, edges: Edges) -> Float64:
        calls, at = self._process.calls, edges.at
        return (
            calls.start_ns[at]
            - calls.end_ns[calls.outer[at - 1]]
            - self._durations.saved_before_call_ns[at]
        )

    def _silent(self, edges: Edges) -> Float64:
        gap = self._between_calls(edges)
        if not self._reading.has_hidden_waits:
            return gap
        return np.maximum(gap - self._process.hidden_waits.waited_ns, 0)

    def _hidden(self, edges: Edges) -> Float64:
        durations, reading = self._durations, self._reading
        frees = not (durations.waits_for_gpu and durations.waits_for_kernels)
        if reading.has_hidden_waits and not (reading.frees_hidden_waits and frees):
            return self._silent(edges)
        return np.full(len(edges.at), UNCONSTRAINED)

    def _unless_gone(self, delay_ns: Float64, operation: Int64 | slice = slice(None)) -> Float64:
        """Return the delays of some operations, or none where nobody launches them, float64[n]."""
        gone = self._durations.is_removed[operation]
        return np.where(gone, np.minimum(delay_ns, 0), delay_ns)

    def _waited(self, edges: Edges) -> Float64:
        durations, waits = self._durations, self._process.host_waits
        tails = held_out_tails(self._process) if self._reading.is_held_out else waits.tail_ns
        tails = tails[edges.at].astype(np.float64)
        if edges.kind is EdgeKind.FULL_QUEUE:
            return tails if durations.stalls else np.full(len(tails), UNCONSTRAINED)
        call, operation = waits.call[edges.at], waits.operation[edges.at]
        is_over = self._is_skipped(edges.at) | durations.skips_host_wait[call]
        is_over |= self._is_there(call, self._process.work.call[operation])
        return np.where(is_over, UNCONSTRAINED, self._unless_gone(tails, operation))

    def _is_skipped(self, rows: Int64) -> Mask:
        """Say which host waits are skipped, although a program may need their data."""
        durations, waits, work = self._durations, self._process.host_waits, self._process.work
        if durations.waits_for_gpu and durations.waits_for_kernels:
            return np.zeros(len(rows), np.bool_)
        is_kept = waits.is_needed | waits.is_stall
        if durations.waits_for_gpu:  # those for copies stay
            awaits_copy = np.zeros(len(self._process.calls), np.bool_)
            awaits_copy[waits.call[work.kind[waits.operation] == COPY]] = True
            is_kept = is_kept | awaits_copy[waits.call]
        return ~is_kept[rows]

    def _locked(self, edges: Edges) -> Float64:
        end_ns = self._process.calls.end_ns
        later = end_ns[edges.at] - end_ns[edges.other] + self._until_return(edges.other)
        return np.where(self._is_there(edges.at, edges.other), UNCONSTRAINED, later)

    def _waited_for_event(self, edges: Edges) -> Float64:
        waits, call = self._process.stream_waits, self._process.work.call
        consumer, is_sure = waits.consumer[edges.at], waits.is_sure[edges.at]
        after = self._unless_gone(self._after_wait[edges.at], consumer)
        # What is only possible is no part of what was seen to hold the operation.
        after += np.where(is_sure, self._late[consumer], 0.0)
        is_over = self._is_there(call[consumer], call[waits.producer[edges.at]])
        if not self._reading.has_possible_waits:
            is_over |= ~is_sure
        return np.where(is_over, UNCONSTRAINED, after)

    def _is_there(self, call: Int64, other: Int64) -> Mask:
        """Say which calls no longer wait for a loader's thread; -1 is no call."""
        loading = np.append(self._durations.is_loading, False)
        return (call >= 0) & loading[other] & ~loading[call]

    def _in_stream(self, edges: Edges) -> Float64:
        """Weigh edges that hold only where operations wait for their stream, or do not."""
        is_free, after = (
            self._durations.skips_stream_order[edges.at],
            self._after_previous[edges.at],
        )
        if edges.kind is EdgeKind.STREAM_ORDER:
            return np.where(is_free, UNCONSTRAINED, after)
        if edges.kind is EdgeKind.INDEPENDENT_ORDER:
            return np.where(is_free, after, UNCONSTRAINED)
        if edges.kind is EdgeKind.STREAM_END:
            is_free = is_free & self._reading.has_whole_streams
        if edges.kind is EdgeKind.INDEPENDENT_UNKNOWN:
            is_free = is_free & (not self._durations.independent_if_unknown)
        return np.where(is_free, 0.0, UNCONSTRAINED)

    def _handed_over(self, edges: Edges) -> Float64:
        calls = self._process.calls
        gap = calls.start_ns[edges.at] - calls.end_ns[edges.other]
        times = (
            gap - self._durations.saved_before_call_ns[edges.at] + self._until_return(edges.other)
        )
        # A thread's first call has nothing else before it.
        follows = calls.thread[edges.at] == calls.thread[edges.at - 1]
        return np.where(self._is_there(edges.at, edges.other) & follows, UNCONSTRAINED, times)

    def _not_handed_over(self, edges: Edges) -> Float64:
        """Return the most that a thread still takes where it no longer waits for another."""
        process, overs, at = self._process, self._process.hand_overs, edges.at
        row = np.searchsorted(overs.call, at)
        other = overs.after[row]
        since = process.calls.start_ns[at] - process.calls.end_ns[other]
        times = np.clip(self._between_calls(edges), 0, since)
        return np.where(self._is_there(at, other), times, UNCONSTRAINED)

    def _until_return(self, call: Int64) -> Float64:
        """Return how long after their node (see `_return_node`) calls return."""
        process = self._process
        segment = process.segment_of_call[call]
        inside = process.calls.end_ns[call] - self._segment_start[segment]
        saved = self._saved_at_end[call] - self._saved_at_start[process.first_call[segment]]
        return np.where(process.is_held[call], 0.0, inside - saved)

    def _own_time(self, edges: Edges) -> Float64:
        """Return the duration of each host segment, waits apart."""
        process, calls, first = self._process, self._process.calls, self._process.first_call
        del edges  # there is one for each segment, in order
        last = calls.outer[np.append(first[1:], len(calls)) - 1]
        own = calls.length_ns[last] - self._durations.saved_in_call_ns[last]
        waits, locked = process.host_waits, process.lock_waits.call
        own_of_call = np.full(len(calls), -1.0)
        own_of_call[locked] = np.minimum(calls.length_ns[locked], OWN_WAIT_NS)
        own_of_call[waits.call] = waits.own_ns
        if self._durations.is_removed.any():
            by_itself = calls.outer[process.work.call[waits.operation]] == waits.call
            copying, awaited = waits.call[by_itself], waits.operation[by_itself]
            own_of_call[copying] = self._unless_gone(own_of_call[copying], awaited)
            freed = waits.call[self._durations.skips_host_wait[waits.call]]  # nobody calls to wait
            own_of_call[freed] = np.maximum(own_of_call[freed] - OWN_WAIT_NS, 0.0)
        if self._reading.frees_hidden_waits:
            is_removed = self._is_skipped(np.arange(len(waits.call)))
            own_of_call[waits.call[is_removed]] = 0.0
            own_of_call[waits.call[~is_removed]] = waits.own_ns[~is_removed]
        own = np.where(own_of_call[last] >= 0, own_of_call[last], own)
        saved = self._saved_at_start[last] - self._saved_at_start[first]
        return calls.start_ns[last] - calls.start_ns[first] - saved + own

    def held_by_launch(self, rows: Int64) -> int:
        """Return the index of the operation of a segment whose own launch delayed it last."""
        done = np.cumsum(self._steps()[rows])  # a segment has an operation
        return int(np.argmax(self._launch[rows] + self._length_ns[rows] - done))

    def _steps(self) -> Float64:
        """Return each operation's time in its segment, with its delay unless it is the first."""
        steps = self._after_previous + self._length_ns
        first = self._process.first_operation
        steps[first] = self._length_ns[first]
        return steps

    def _in_segment(self, edges: Edges) -> Float64:
        """Return how long segments take; `LAUNCHES`: when their launches alone let them end."""
        first = self._process.first_operation
        segment, steps = self._process.segment_of_operation[edges.at], self._steps()
        if edges.kind is EdgeKind.OPERATIONS:
            return np.add.reduceat(steps, first)[segment]
        done = np.cumsum(steps)
        last = np.append(first[1:], len(done)) - 1
        until_end = np.repeat(done[last], np.diff(np.append(first, len(done)))) - done
        latest = self._launch + self._length_ns + until_end
        return np.maximum.reduceat(latest, first)[segment]

    _WAYS: ClassVar[dict[EdgeKind, Callable[[Weigher, Edges], Float64]]] = {
        EdgeKind.CAPTURE: _captured,
        EdgeKind.PROGRAM_ORDER: _between_calls,
        EdgeKind.HAND_OVER: _handed_over,
        EdgeKind.NOT_HANDED_OVER: _not_handed_over,
        EdgeKind.CALLS: _own_time,
        EdgeKind.SYNCHRONIZATION: _waited,
        EdgeKind.FULL_QUEUE: _waited,
        EdgeKind.LOCK: _locked,
        EdgeKind.LAUNCH: lambda self, edges: self._launch[edges.at],
        EdgeKind.LAUNCHES: _in_segment,
        EdgeKind.STREAM_ORDER: _in_stream,
        EdgeKind.EVENT: _waited_for_event,
        EdgeKind.OPERATIONS: _in_segment,
        EdgeKind.INDEPENDENT_BEGIN: _in_stream,
        EdgeKind.INDEPENDENT_END: _in_stream,
        EdgeKind.INDEPENDENT_ORDER: _in_stream,
        EdgeKind.INDEPENDENT_UNKNOWN: _in_stream,
        EdgeKind.STREAM_END: _in_stream,
        EdgeKind.SILENCE: _silent,
        EdgeKind.HIDDEN_WAIT: _hidden,
    }


class RemainingWork(Record, frozen=True):
    """Work of one process that remains in each step, float64[s] for each variant."""

    stream_ns: tuple[Float64, ...]  # what the compute and the copies of the busiest stream take
    removed_ns: tuple[Float64, ...]  # by how much kernels that compute take less than measured


def remaining_work(process: Process, limits_ns: Int64, sets: Sequence[Durations]) -> RemainingWork:
    """Return the work that remains in steps, of one set of durations for each variant.

    `limits_ns`: int64[s + 1], when they began and the last one ended, on the run's clock.
    """
    work, num = process.work, len(limits_ns) - 1
    step = np.searchsorted(limits_ns, work.start_ns, side="right") - 1
    rows = np.flatnonzero((step >= 0) & (step < num) & (work.kind != COMMUNICATION))
    step, chain = step[rows], work.chain[rows]
    computes, length = work.kind[rows] == COMPUTE, work.length_ns[rows]
    alone = length - _beside(work.start_ns, work.end_ns, work.chain)[rows]
    spent = np.bincount(chain, alone)
    on_busiest = chain == (int(spent.argmax()) if len(spent) else -1)
    known: dict[int, tuple[Float64, Float64]] = {}
    for durations in sets:
        if id(durations.length_ns) in known:
            continue
        less = length - durations.length_ns[rows]
        counted = on_busiest & ~durations.skips_stream_order[rows]
        stream = np.bincount(step, np.where(counted, np.maximum(alone - less, 0), 0), num)
        removed = np.bincount(step, np.where(computes, np.maximum(less, 0), 0), num)
        known[id(durations.length_ns)] = stream.astype(float), removed.astype(float)
    return RemainingWork(*zip(*(known[id(one.length_ns)] for one in sets), strict=True))


def _beside(start_ns: Int64, end_ns: Int64, chain: Int64) -> Int64:
    """Return how long each operation ran beside earlier ones of its stream, int64[n]."""
    order = np.lexsort((start_ns, chain))
    start, end = start_ns[order], end_ns[order]
    beside = np.empty(len(order), np.int64)
    beside[order] = np.clip(reached_before(end, chain[order]) - start, 0, end - start)
    return beside
