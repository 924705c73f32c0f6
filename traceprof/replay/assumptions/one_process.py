"""Assumptions about one process: its waits, its launches, its copies, its kernels.

Each function gets a process, what its actions take, and the value of the assumption if it has one;
it returns what the actions take under the assumption. `table` declares the assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import gpu_idle, nccl_serialization, overlap_slowdown, rank_work
from traceprof.analyses.full_precision_matmul import half_precision_shares
from traceprof.analyses.overlap_slowdown import slowed_kernels
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.host.stalls import host_stalls
from traceprof.intervals import Float64, Int64, Mask
from traceprof.kernel_names import function_name
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE, COPY
from traceprof.replay.graph.host_waits import (
    MAX_SCALAR_BYTES,
    MIN_HAND_OVER_NS,
    copied_bytes,
    loading_threads,
    round_trips,
)
from traceprof.replay.graph.process_graph import Process
from traceprof.replay.graph.stream_waits import behind_communication
from traceprof.replay.graph.weights import Durations
from traceprof.replay.results import Refusal
from traceprof.run.opening import Rank
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind
from traceprof.trace.model.parts import Part

Reading = Literal["rate", "least", "most"]
"""Which attribute of `SlowedKernels` is taken for the rate."""

_MAX_UNKNOWN = 0.05  # of the window: idle time without a known cause that may be data loading
_MAY_DEPEND = (
    "the report does not show whether communication needs the operation that it queues behind;"
    " where it does, nothing is gained"
)
_MAX_NAMES = 3
_LAUNCHING = (
    ApiCallKind.LAUNCH,
    ApiCallKind.MEMORY_SET,
    ApiCallKind.EVENT_RECORD,
    ApiCallKind.STREAM_WAIT,
)

_ELSEWHERE = (
    "kernels that were never alone at their place are assumed to lose as much as their like"
)
_UNKNOWN = (
    "kernels whose like never ran alone are assumed to lose all their time beside communication"
)
_ALONE, _BESIDE = 0.05, 0.5  # of its time that communication has compute beside it
_MIN_SEEN = 3


def switched_off(switch: str) -> Callable[[Process, Durations], Durations]:
    """Return a change that turns one kind of waits off: a field of `Durations`."""
    return lambda _, durations: replace(durations, **{switch: False})


def without_stalls(process: Process, durations: Durations) -> Durations:
    """Let no call, operator or silence take longer than usual by a stall."""
    stalls = host_stalls(process.rank)
    before, inside = durations.saved_before_call_ns.copy(), durations.saved_in_call_ns.copy()
    outer = np.flatnonzero(process.calls.is_outer)
    index, columns = process.calls.index[outer], process.api_calls
    start, end = columns.start_ns[index], columns.ends(index)
    threads = columns.packed_thread.at(index)
    for thread in distinct_values(stalls.thread).tolist():
        stalled, rows = stalls.of_thread(thread), np.flatnonzero(threads == thread)
        inside[outer[rows]] += intervals.covered_within(stalled, start[rows], end[rows])
        between = intervals.covered_within(stalled, end[rows][:-1], start[rows][1:])
        before[outer[rows[1:]]] += between
    return replace(durations, saved_before_call_ns=before, saved_in_call_ns=inside)


def without_serialization(
    process: Process, durations: Durations, *, is_apart: bool = False
) -> Durations:
    """Let no communication wait for that of other communicators before it on its stream.

    Where communicators are not known, operations that wait for communication wait for all before
    it, too; `is_apart`: only for itself.
    """
    free = durations.skips_stream_order.copy()
    free[behind_communication(process.work)] = True
    return replace(durations, skips_stream_order=free, independent_if_unknown=is_apart)


def may_be_in_line(analysis: OpenAnalysis) -> str | None:
    """Return why communication may have to wait for the one before it, None if it need not."""
    numbers = [result.metrics for result in analysis.measured.of(nccl_serialization)]
    may_depend = any(of_rank.known_blocked_ns < of_rank.blocked_ns for of_rank in numbers)
    return _MAY_DEPEND if may_depend else None


def without_data_loading(process: Process, durations: Durations) -> Durations:
    """Remove data loading from the threads that it held up, and the time of copies to the GPU.

    Nobody waits for threads that bring batches, and these take no time of the GPU. Other kernels
    may be slower beside theirs, at most by the time in which both run.
    """
    before = durations.saved_before_call_ns.copy()
    calls, work = process.calls, process.work
    is_loading = is_in(calls.thread, loading_threads(process))
    brings = work.is_to_device | ((work.call >= 0) & is_loading[work.call])
    durations = faster(durations, brings, 0.0)
    if is_loading.any():
        beside = np.flatnonzero((work.group == 0) & brings)
        running = intervals.union(work.start_ns[beside], work.end_ns[beside])
        shared = intervals.covered_within(running, work.start_ns, work.end_ns)
        length_ns = np.maximum(durations.length_ns - np.where(brings, 0, shared), 0.0)
        durations = replace(durations, is_loading=is_loading, length_ns=length_ns)
    for _, rank in process.ranks:
        causes = idle_causes(rank)
        gaps = causes.gaps
        late = intervals.Intervals(gaps.gaps.start_ns[gaps.late], gaps.gaps.end_ns[gaps.late])
        loading_ns = intervals.covered_within(
            causes.of(IdleCause.DATA_LOADING), late.start_ns, late.end_ns
        )
        place = calls.place_of(gaps.launch)
        known = place >= 0
        np.maximum.at(before, calls.outer[place[known]], loading_ns[known].astype(np.float64))
    outer, free = np.flatnonzero(calls.is_outer), np.zeros(len(calls), np.int64)
    follows, returned_ns = calls.silences(distinct_values(calls.thread))
    free[follows] = calls.start_ns[follows] - returned_ns
    # Loaders call CUDA themselves, as for pinned memory: what they do lies before several calls.
    in_call = durations.saved_in_call_ns.copy()
    for rows, of_thread in process.by_thread(outer):
        call, loading = outer[rows], of_thread.loading
        begin, end = (times[call] - process.shift_ns for times in (calls.start_ns, calls.end_ns))
        inside = intervals.covered_within(loading, begin, end)
        in_call[call] = np.maximum(in_call[call], inside)
        since = intervals.covered_within(loading, begin - free[call], begin)
        before[call] = np.maximum(before[call], since)
    uploading = copying_meanwhile(process, work.is_to_device)
    in_call[uploading] = calls.length_ns[uploading]
    before = np.maximum(durations.saved_before_call_ns, np.minimum(before, np.maximum(free, 0)))
    freed = free_of(process, durations, work.is_to_device[process.host_waits.operation])
    return replace(
        durations, saved_before_call_ns=before, saved_in_call_ns=in_call, skips_host_wait=freed
    )


def without_silences(process: Process, durations: Durations) -> Durations:
    """Let threads that train take no time between calls where they may have waited for a batch."""
    calls, before = process.calls, durations.saved_before_call_ns.copy()
    call, since_ns = calls.silences(np.setdiff1d(calls.thread, process.loading_threads))
    gap = calls.start_ns[call] - since_ns
    before[call[gap > MIN_HAND_OVER_NS]] = gap[gap > MIN_HAND_OVER_NS]
    return replace(durations, saved_before_call_ns=before)


def unknown_data_loading(analysis: OpenAnalysis) -> Refusal | None:
    """Return why the cost of data loading is not known: most idle time has no known cause."""
    for result in analysis.measured.of(gpu_idle):
        unknown_ns = result.by_cause[IdleCause.UNKNOWN]
        share = unknown_ns / max(result.window_ns, 1)
        if share > _MAX_UNKNOWN and unknown_ns > result.by_cause[IdleCause.DATA_LOADING]:
            return Refusal(
                f"rank {result.rank} was idle for {100 * share:.1f} % of the time for reasons that"
                " are not in the report, which may be data loading",
                analysis.run.ranks[0].trace.how_to_collect(Part.THREAD_SWITCHES),
            )
    return None


def without_launch_time(process: Process, durations: Durations, share: float = 1.0) -> Durations:
    """Let launches, and what a thread runs between them, take no time, or less by a share.

    Data loading, MPI, sleep, unknown time and what is done once, such as loading a kernel, stay.
    Waits between streams that launching hid take as little as they can.
    """
    calls = process.calls
    inside, before = durations.saved_in_call_ns.copy(), durations.saved_before_call_ns.copy()
    launches = process.are_named(lambda name: api_call_kind(name) in _LAUNCHING)
    launches &= calls.is_outer & ~process.is_held & ~process.evidence.is_setup[calls.index]
    inside[launches] = share * calls.length_ns[launches]
    later, launching_ns = _launching_before(process, counts_awake=True)
    before[later] = share * launching_ns
    return replace(
        durations, saved_in_call_ns=inside, saved_before_call_ns=before, has_quick_waits=share == 1
    )


def _launching_before(process: Process, *, counts_awake: bool) -> tuple[Int64, Int64]:
    """Return outer calls that follow others, and how long their thread launched before each, ns.

    `counts_awake`: time far from calls and ranges in which the thread was awake counts as well.
    """
    calls = process.calls
    outer = np.flatnonzero(calls.is_outer)
    since_ns = np.append(0, calls.end_ns[outer[:-1]])
    follows = np.append(False, calls.thread[outer[1:]] == calls.thread[outer[:-1]])
    over = np.searchsorted(outer, process.hand_overs.call)
    np.maximum.at(since_ns, over, calls.end_ns[process.hand_overs.after])
    follows[over] = True
    later, gap = outer[follows], (calls.start_ns[outer] - since_ns)[follows]
    launching, until_ns = np.zeros(len(later), np.int64), calls.start_ns[later] - process.shift_ns
    for rows, of_thread in process.by_thread(later):
        runs = process.evidence.runs((of_thread.thread,))
        ran = intervals.union(runs.start_ns, runs.end_ns)
        if counts_awake:
            ran = intervals.merge(ran, of_thread.sleep.awake)
        other = (of_thread.mpi, of_thread.setup, of_thread.loading, of_thread.sleep.asleep)
        spans = intervals.subtract(ran, intervals.merge(*other))
        since_ns = until_ns[rows] - gap[rows]
        launching[rows] = intervals.covered_within(spans, since_ns, until_ns[rows])
    return later, launching


def without_communication(process: Process, durations: Durations) -> Durations:
    """Let communication take no time, so that it slows nothing down."""
    return with_hidden_communication(process, without_slowdown(process, durations))


def with_hidden_communication(process: Process, durations: Durations) -> Durations:
    """Let communication take no time of its stream; kernels beside it stay as slow as they were."""
    return faster(durations, process.work.kind == COMMUNICATION, 0.0)


def copying_meanwhile(process: Process, copies: Mask) -> Int64:
    """Return the calls that have not returned when the copy that they launch begins."""
    rows = np.flatnonzero(copies & (process.work.call >= 0))
    call = process.work.call[rows]
    return call[process.calls.end_ns[call] > process.work.start_ns[rows]]


def free_of(process: Process, durations: Durations, over: Mask) -> Mask:
    """Return which calls wait for nothing without some host waits, bool[calls].

    `over`: bool[m], the waits that are removed.
    """
    waits, freed = process.host_waits, np.zeros(len(process.calls), np.bool_)
    freed[waits.call[over]] = True
    freed[waits.call[~over]] = False  # these wait for others, too
    return freed | durations.skips_host_wait


def with_faster_links(
    process: Process, durations: Durations, factor: float, reading: Reading = "rate"
) -> Durations:
    """Let communication be `factor` times as fast, and slow kernels down by a reading of it."""
    durations = with_shorter_communication(process, durations, min(1 / factor, 1.0), reading)
    return faster(durations, process.work.kind == COMMUNICATION, 1 / factor)


def no_such_kernel(
    analysis: OpenAnalysis, expression: re.Pattern[str], factor: float
) -> Refusal | None:
    """Return that no kernel of a run matches, with the nearest names; None if one does."""
    del factor
    names = {name for rank in analysis.run.ranks for name in rank.kernel_names.values()}
    if not names:
        return Refusal("the run has no kernels")
    if any(expression.search(name) for name in names):
        return None
    from difflib import SequenceMatcher  # noqa: PLC0415  (only mistakes need it)

    pattern = expression.pattern.lower()
    longest = {
        name: SequenceMatcher(None, pattern, name.lower(), autojunk=False).find_longest_match().size
        for name in sorted({*map(function_name, names)})
    }
    nearest = sorted(longest, key=lambda name: -longest[name])[:_MAX_NAMES]
    return Refusal(f"it matches no kernel; the nearest names are {', '.join(nearest)}")


def with_faster_kernels(
    process: Process,
    durations: Durations,
    expression: re.Pattern[str],
    factor: float,
    *,
    is_slowed_less: bool = False,
) -> Durations:
    """Let kernels whose names match take `factor` times as long.

    They lose as much time to communication as before; `is_slowed_less`: and communication loses
    less to them.
    """
    work = process.work
    chosen = np.zeros(len(work), np.bool_)
    for index, rank in process.ranks:
        ids = [key for key, name in rank.kernel_names.items() if expression.search(name)]
        is_named = rank.operations.kernels.are_named(ids)
        rows = np.flatnonzero((work.rank == index) & (work.group == 0))
        chosen[rows] = is_named[work.place[rows]]
    shorter = faster(durations, chosen, factor)
    if not chosen.any():
        return shorter
    if is_slowed_less:
        # As much less compute as that is at most beside communication.
        lost = max(1 - factor, 0.0) * slowed_by_compute_ns(process)
        return replace(shorter, length_ns=np.maximum(shorter.length_ns - lost, 0.0))
    own = work.length_ns * (work.kind == COMMUNICATION)
    stays = 1 - float(own[chosen].sum() / max(own.sum(), 1.0))
    slowed = np.maximum(_slowed_ns(process, "rate"), 0.0)
    slowed = np.maximum(slowed - durations.removed_slowdown_ns, 0)
    kept = np.minimum(slowed, durations.length_ns) * stays
    length = np.where(chosen, shorter.length_ns + (1 - factor) * kept, shorter.length_ns)
    return replace(shorter, length_ns=length)


def faster(durations: Durations, chosen: Mask, factor: float) -> Durations:
    """Return the durations with some operations taking `factor` times as long."""
    if not chosen.any():
        return durations
    return replace(
        durations,
        length_ns=np.where(chosen, durations.length_ns * factor, durations.length_ns),
        transfer=np.where(chosen, durations.transfer * factor, durations.transfer),
    )


def _is_read(process: Process) -> Mask:
    """Say which waits are for more than a number that the host does not use at once, bool[m]."""
    work, waits = process.work, process.host_waits
    is_more = copied_bytes(process, waits.operation) > MAX_SCALAR_BYTES
    return work.is_to_host[waits.operation] & is_more & ~waits.is_needed


def with_hidden_copies(process: Process, durations: Durations) -> Durations:
    """Let copies, and calls that make one meanwhile or wait for one, take no time.

    Waits for numbers that the host reads stay, and those for results that it uses at once. What is
    copied to the host and back goes directly: what the host does between takes no time.
    """
    durations = faster(durations, process.work.kind == COPY, 0.0)
    calls, waits, work = process.calls, process.host_waits, process.work
    copying = copying_meanwhile(process, work.kind == COPY)
    own, before = _without_launches(process, copying, durations)
    own[copying] = calls.length_ns[copying]
    freed = free_of(process, durations, work.is_to_device[waits.operation] | _is_read(process))
    since, until = round_trips(process, waits)
    freed[since] = True
    # Calls of a thread are in a row: those after the wait, up to the launch of the copy back.
    change = np.zeros(len(calls) + 1, np.int64)
    np.add.at(change, since + 1, 1)
    np.add.at(change, until + 1, -1)
    between = np.flatnonzero((np.cumsum(change)[:-1] > 0) & calls.is_outer)
    own[between] = calls.length_ns[between]
    before[between] = calls.start_ns[between] - calls.end_ns[calls.outer[between - 1]]
    return replace(
        durations,
        skips_host_wait=freed,
        saved_in_call_ns=own,
        saved_before_call_ns=before,
        is_removed=work.kind == COPY,
    )


def _without_launches(
    process: Process, copying: Int64, durations: Durations
) -> tuple[Float64, Float64]:
    """Return how much less calls take, and threads before each, if nobody launches copies.

    A call may wait for something unknown: it counts with at most twice the median of its name. What
    a thread runs between copies of one direction goes, and around copies that it waits for, unless
    it uses them at once; elsewhere at most twice the usual time between two launches. `copying`:
    calls that have not returned when their copy begins.
    """
    calls, work = process.calls, process.work
    inside, before = durations.saved_in_call_ns.copy(), durations.saved_before_call_ns.copy()
    launches, goes = np.zeros((2, len(calls)), np.bool_)
    direction, has_call = np.zeros(len(calls), np.int64), work.call >= 0
    of_work = work.is_to_host + 2 * work.is_to_device
    direction[calls.outer[work.call[has_call]]] = of_work[has_call]
    for launched, copies in ((work.kind != COPY, False), (work.kind == COPY, True)):
        launching = calls.outer[work.call[launched & (work.call >= 0)]]
        goes[launching] = copies & ~launches[launching]
        launches[launching] = True
    if not goes.any():
        return inside, before
    names, returns = process.call_names, goes & ~process.is_held
    returns[copying] = False
    for name in distinct_values(names[returns]).tolist():
        rows = np.flatnonzero(returns & (names == name))
        took_ns = calls.length_ns[rows]
        inside[rows] = np.maximum(inside[rows], np.minimum(took_ns, 2 * median_of(took_ns)))
    launching = np.flatnonzero(launches)
    later, launching_ns = _launching_before(process, counts_awake=False)
    following = np.append(launching, -1)[np.searchsorted(launching, later)]
    previous = launching[np.searchsorted(launching, later) - 1]
    same = calls.thread[previous] == calls.thread[later]
    of_one = goes[previous] & (direction[previous] == direction[following]) & same
    # Who reads results also prepares for them, and looks at them. Copies in a row: waits for one.
    to_host, others = np.zeros((2, len(calls)), np.bool_)
    is_read = _is_read(process)
    for marked, chosen in ((to_host, is_read), (others, ~is_read)):
        awaited = work.call[process.host_waits.operation[chosen]]
        marked[calls.outer[awaited[awaited >= 0]]] = True
    kind = 4 * calls.thread[launching] + np.where(goes, direction, 0)[launching]
    row = np.cumsum(np.append(False, kind[1:] != kind[:-1]))
    to_host[launching] = is_in(row, row[to_host[launching]])
    to_host &= goes & ~others
    is_after = to_host[previous] & same & (direction[following] != 2)
    is_before = goes[following] & (calls.thread[following] == calls.thread[later])
    is_theirs = is_after | (is_before & to_host[following])
    most_ns = 2 * median_of(launching_ns[launches[later]]) if launches[later].any() else 0
    launching_ns = np.where(of_one, launching_ns, np.minimum(launching_ns, most_ns))
    if is_theirs.any():
        _, awake_ns = _launching_before(process, counts_awake=True)
        launching_ns = np.where(is_theirs, awake_ns, launching_ns)
    is_before |= is_after
    later = later[is_before]
    before[later] = np.maximum(before[later], launching_ns[is_before])
    return inside, before


def unlike_kernels(analysis: OpenAnalysis) -> str:
    """Return what is assumed of kernels that were not alone at their place; nothing without any."""
    results = analysis.measured.of(overlap_slowdown)
    parts = (
        _ELSEWHERE if any(result.num_elsewhere for result in results) else "",
        _UNKNOWN if any(result.num_unknown for result in results) else "",
    )
    return "; ".join(filter(None, parts))


def without_slowdown(process: Process, durations: Durations) -> Durations:
    """Remove the largest possible slowdown of kernels beside communication."""
    return with_shorter_communication(process, durations, 0.0, "most")


def with_shorter_communication(
    process: Process, durations: Durations, share: float, reading: Reading = "rate"
) -> Durations:
    """Scale the slowdown of kernels with the communication that remains beside them.

    Each stretch of communication begins when it did, and takes a share of its time.
    """
    work, before = process.work, durations.removed_slowdown_ns
    lost = _slowed_ns(process, reading, share)
    unslowed = np.where(np.abs(lost) > np.abs(before), lost, before)
    # What is faster for another reason loses as much less.
    left = np.maximum(work.length_ns - unslowed, 0.0)
    length = durations.length_ns * (left / np.maximum(work.length_ns - before, 1.0))
    return replace(durations, length_ns=length, removed_slowdown_ns=unslowed)


def slowed_by_compute_ns(process: Process) -> Float64:
    """Return how much compute slowed communication where that was seen, float64[operations], ns."""
    work, names, lost = process.work, process.operation_names, np.zeros(len(process.work))
    for index, _ in process.ranks:
        rows = np.flatnonzero((work.rank == index) & (work.kind == COMMUNICATION))
        length = work.length_ns[rows].astype(np.float64)
        computing = (work.rank == index) & (work.kind == COMPUTE)
        busy = intervals.union(work.start_ns[computing], work.end_ns[computing])
        covered = intervals.covered_within(busy, work.start_ns[rows], work.end_ns[rows])
        beside = covered / np.maximum(length, 1)
        for name in distinct_values(names[rows]).tolist():
            of_name = names[rows] == name
            alone, most = (of_name & which for which in (beside < _ALONE, beside > _BESIDE))
            if min(alone.sum(), most.sum()) >= _MIN_SEEN:
                rate = 1 - median_of(length[alone]) / median_of(length[most])
                lost[rows[of_name]] = (max(rate, 0.0) * beside * length)[of_name]
    return lost


def _slowed_ns(process: Process, reading: Reading, share: float = 0.0) -> Float64:
    """Return the slowdown that ends if only a share of communication is left, float64[n], ns."""
    lost_ns = np.zeros(len(process.work))
    for index, rank in process.ranks:
        slowed = slowed_kernels(rank)
        row = process.work.rows_of_kernels(index, rank)[slowed.kernel]
        known = row >= 0
        lost = getattr(slowed, reading) * slowed.beside_ns
        if share:
            lost *= 1 - _still_beside(rank, slowed.kernel, share)
        lost_ns[row[known]] = lost[known]
    return lost_ns


def _still_beside(rank: Rank, kernel: Int64, share: float) -> Float64:
    """Return the share of the communication beside each kernel that is left, float64[n]."""
    kernels, whole = rank.operations.kernels, rank.communication
    start, end = kernels.start_ns[kernel], kernels.ends(kernel)
    shorter = np.rint(share * (whole.end_ns - whole.start_ns)).astype(np.int64)
    left = intervals.union(whole.start_ns, whole.start_ns + shorter)
    before = intervals.covered_within(whole, start, end)
    after = intervals.covered_within(left, start, end)
    return after / np.maximum(before, 1)


def with_half_precision(process: Process, durations: Durations) -> Durations:
    """Scale kernels by the lowest factor that autocast can reach."""
    work = process.work
    length = durations.length_ns.copy()
    for index, rank in process.ranks:
        shares = half_precision_shares(rank) or {}
        names = rank.operations.kernels.name_of_signature
        of_name = np.array([shares.get(id_, 1.0) for id_ in names.tolist()])
        rows = np.flatnonzero((work.rank == index) & (work.group == 0))
        if len(rows):
            signature = rank.operations.kernels.packed_signature.at(work.place[rows])
            length[rows] *= of_name[signature]
    return replace(durations, length_ns=length)


def not_in_full_precision(analysis: OpenAnalysis) -> Refusal | None:
    """Return why half precision cannot be assumed; None if it can of a rank."""
    shares = [half_precision_shares(rank) for rank in analysis.run.ranks]
    if any(shares):
        return None
    if all(of_rank is None for of_rank in shares):
        return Refusal("whether the GPUs have tensor cores is not in the report")
    return Refusal("no kernel is known to multiply matrices of FP32 numbers")


def slower_ranks(analysis: OpenAnalysis) -> tuple[Mapping[int, float]]:
    """Return by which factor ranks are slower than their peers, by index of the rank in the run."""
    slower = rank_work.run(analysis.measured).slower
    return ({i: slower.get(rank.rank, 1.0) for i, rank in enumerate(analysis.run.ranks)},)


def with_equal_kernels(
    process: Process, durations: Durations, slower: Mapping[int, float]
) -> Durations:
    """Let the kernels of slower ranks take as long as those of their peers."""
    work, length = process.work, durations.length_ns.copy()
    for index, _ in process.ranks:
        length[(work.rank == index) & (work.kind == COMPUTE)] /= slower[index]
    return replace(durations, length_ns=length)


def not_uneven(analysis: OpenAnalysis) -> Refusal | None:
    """Return why kernels cannot be made equal; None if the same ranks are always slower."""
    work = rank_work.run(analysis.measured)
    if all(row.peers is None for row in work.ranks):
        return Refusal("no two ranks do the same work")
    if not work.excesses:
        return Refusal("no rank's kernels take significantly longer than those of the others")
    if work.is_changing:
        return Refusal("another rank is the longest each time")
    return None
