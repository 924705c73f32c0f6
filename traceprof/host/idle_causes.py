"""Causes of a GPU's idle time: every nanosecond of it has one.

Let a gap be [s, e). The operation that ends it (`traceprof.host.idle_gaps`) was launched by the
call [a, b) of thread T on stream X. U stands in for T where U is another thread that made the
process's last call before a, and launches to X, too.

1. No such call is known, a comes after e, or the clocks of host and GPU disagree: all of the gap is
   *unknown*, if it does not end with an access to unified memory (3).
2. b <= s: the operation was in the queue when the gap began. The first `MAX_TURNAROUND_NS` are
   *turn-around*, the rest is *queued*: it waited for something else than the host. But from a usual
   turn-around after s to a launch's shortest latency after b it is *launch-bound*: it came too late
   (`traceprof.host.idle_gaps`).
3. Else, from `MAX_TURNAROUND_NS` after b on it is in the queue, too: what then is neither *set-up*
   nor *allocation* is *queued*. Before, the first of these that holds for T or U decides
   (`traceprof.host.thread_evidence`): *MPI*; *set-up*; *allocation*; *data loading* (a range);
   *stalled* (`traceprof.host.stalls`); any other CUDA call, then it is *launch-bound*;
   asleep, both T and U: *data loading* if the gap ends with the copy of a batch, else *waiting*;
   from a on, or between two markers less than 0.5 ms apart: *launch-bound*; awake: *host code*;
   else *unknown*.
   Before a page of unified memory moves to the host, which no call launches but a thread that
   accesses it, T is the thread of the process's last call, nothing is *launch-bound*, and its time
   in other CUDA calls is *unknown*. If T is asleep just before e, another thread accesses the page:
   all of the gap is *unknown*.
4. Launch-bound time, and short stretches of host code and unknown time, are *sync* as far as they
   are attributed to an earlier wait of the host (`traceprof.host.host_waits`). An optimizer that
   runs on the host is not: it needs the gradients that the host waited for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host import host_code as names
from traceprof.host.host_code import (
    NamedSpans,
    code_of_threads,
    code_within,
    functions_named,
    spans_named,
)
from traceprof.host.host_waits import (
    NO_SYNC_COSTS,
    AttributableIdle,
    SyncIdle,
    since_other_launches,
    sync_costs,
)
from traceprof.host.idle_gaps import (
    MAX_TURNAROUND_NS,
    IdleGaps,
    LaunchingThreads,
    are_batches,
    idle_gaps,
    launching_threads,
    starting_at,
    streams_by_thread,
)
from traceprof.host.places import OPTIMIZED, PlaceKind, place_ranges, places
from traceprof.host.stalls import HostStalls, host_stalls
from traceprof.host.thread_evidence import HostEvidence, host_evidence
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.kernel_names import function_name
from traceprof.run.host_clock import clocks_disagree
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_in_mean
from traceprof.run.step_ranges import OPTIMIZER_RANGES
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, named_sums, reached_before, sums
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.parts import Part

MAX_STRETCH_NS = 10_000_000
"""Longer stretches of host code, or of unknown time, are no consequence of a wait."""


_OPTIMIZER_STEP = re.compile(f"{OPTIMIZER_RANGES.pattern}|{OPTIMIZED}")


class IdleCause(Enum):
    """A cause of a GPU's idle time."""

    LAUNCH_BOUND = "launch_bound"
    TURNAROUND = "turnaround"
    QUEUED = "queued"
    SYNC = "sync"
    DATA_LOADING = "data_loading"
    MPI = "mpi"
    SETUP = "setup"
    ALLOCATION = "allocation"
    STALLED = "stalled"
    WAITING = "waiting"
    HOST_CODE = "host_code"
    UNKNOWN = "unknown"


_MAY_BE_SYNC = (IdleCause.LAUNCH_BOUND, IdleCause.HOST_CODE, IdleCause.UNKNOWN)


class IdleCauses(Record, frozen=True):
    """The idle time of a rank by cause, from its first operation to its last."""

    gaps: IdleGaps  # the gaps between its operations
    # the threads that launched the operations which end its late gaps, then those that are taken
    # for its accesses to unified memory
    threads: LaunchingThreads
    by_cause: Mapping[IdleCause, Intervals]  # all idle time but turn-around, by cause
    # launch-bound time, host code, and unknown time of late gaps, before a part of them was
    # attributed to waits
    before_sync: Mapping[IdleCause, Intervals]
    unlaunched: Intervals  # the unknown time of gaps whose launch is not known
    sync: SyncIdle  # the sync time, with the waits that it is attributed to
    # the time that may be attributed to waits, and the costs of the waits
    attributable: AttributableIdle
    # time without a cause, since an operation that was not recorded may have run
    lost: Intervals = intervals.empty()

    def of(self, cause: IdleCause) -> Intervals:
        """Return the idle time of a cause."""
        if cause is IdleCause.TURNAROUND:
            return self._turnaround(slice(None))
        return self.by_cause.get(cause, intervals.empty())

    @property
    def host_is_slower(self) -> Intervals:
        """Idle time that fewer launches on the host would shorten, after host waits too."""
        return intervals.merge(*(self.of(cause) for cause in (*_MAY_BE_SYNC, IdleCause.SYNC)))

    def within(self, window: Window) -> dict[IdleCause, int]:
        """Time of each cause in a window, ns."""
        low, high = window.start_ns, window.end_ns
        gaps = self.gaps.gaps
        # There are many gaps, and most windows overlap few of them.
        first = int(np.searchsorted(gaps.end_ns, low, side="right"))
        stop = int(np.searchsorted(gaps.start_ns, high, side="left"))
        by_cause = {**self.by_cause, IdleCause.TURNAROUND: self._turnaround(slice(first, stop))}
        times = dict.fromkeys(IdleCause, 0)
        return times | {
            cause: intervals.clip(idle, low, high).measure_ns for cause, idle in by_cause.items()
        }

    def host_code_before_pages_ns(self, window: Window) -> int:
        """Time in a window in which host code ran before pages that it accesses, ns."""
        before = self.gaps.gaps.at(self.gaps.accesses)
        both = intervals.intersect(self.of(IdleCause.HOST_CODE), before)
        return intervals.clip(both, window.start_ns, window.end_ns).measure_ns

    def coverage(self, window: Window) -> float:
        """Share of a window's idle time whose next operation has a known launch."""
        low, high = window.start_ns, window.end_ns
        idle = intervals.clip(self.gaps.gaps, low, high).measure_ns
        unlaunched = intervals.clip(self.unlaunched, low, high).measure_ns
        return 1 - unlaunched / idle if idle else 1.0

    def sync_ns_without(self, window: Window, calls: Int64) -> int:
        """Reduction of a window's sync time if some calls, int64[n], did not wait."""
        others = ~is_in(self.attributable.costs.call, calls)
        left = self.attributable.attributed(others)
        return int(self.sync.within(window).sum()) - int(left.within(window).sum())

    def _turnaround(self, some: slice) -> Intervals:
        """GPU overhead between an operation and the next one, which was queued already."""
        is_queued = self.gaps.is_queued[some]
        start = self.gaps.gaps.start_ns[some].compress(is_queued)
        end = self.gaps.gaps.end_ns[some].compress(is_queued)
        whole = Intervals(start, np.minimum(start + MAX_TURNAROUND_NS, end, out=end))
        return intervals.subtract(whole, intervals.merge(self.gaps.launching, self.lost))


class UnknownCause(Record, frozen=True):
    """The reason why idle time of a rank cannot be explained."""

    reason: str  # what is missing or wrong
    how_to_collect: str  # what to record for a report in which it can be


def why_unknown(rank: Rank) -> UnknownCause | None:
    """Why the idle time of a rank cannot be explained, None if it can."""
    return rank.cache.get(_why_unknown, rank)


def _why_unknown(rank: Rank) -> UnknownCause | None:
    if rank.calls is None:
        return UnknownCause(
            "the report has no CUDA API calls: what the host did is not known",
            rank.trace.how_to_collect(Part.RANGES),  # ranges also name what the host did
        )
    if clocks_disagree(rank):
        return UnknownCause(
            "the clocks of host and GPU disagree in this report: operations end after the host has"
            " read their results, or start before they are launched",
            f"record again, with a newer {rank.trace.how_to_collect.format_name}",
        )
    return None


def idle_causes(rank: Rank) -> IdleCauses:
    """Return the causes of all idle time of a rank's GPU; kept until the rank is released."""
    return rank.cache.get(_without_lost, rank)


def _without_lost(rank: Rank) -> IdleCauses:
    """Idle causes, without the time in which lost operations may have run."""
    causes, lost = _explain(rank), rank.lost
    return replace(
        causes,
        by_cause={cause: intervals.subtract(some, lost) for cause, some in causes.by_cause.items()},
        unlaunched=intervals.subtract(causes.unlaunched, lost),
        lost=lost,
    )


def _explain(rank: Rank) -> IdleCauses:
    stalls = host_stalls(rank)  # first: it takes much memory
    idle, calls, evidence = idle_gaps(rank), rank.calls, host_evidence(rank)
    if calls is None or evidence is None:
        return _unexplained(idle)
    streams_of = streams_by_thread(rank, calls)
    threads = launching_threads(calls, idle.launch, idle.stream, streams_of)
    late = idle.gaps.at(idle.late)
    since = np.maximum(calls.start_ns[idle.launch], late.start_ns)
    until = np.minimum(calls.ends(idle.launch) + MAX_TURNAROUND_NS, late.end_ns)
    is_batch = are_batches(rank, calls, idle, threads, streams_of)
    parts: dict[IdleCause, list[Intervals]] = {cause: [] for cause in IdleCause}
    parts[IdleCause.LAUNCH_BOUND].append(idle.launching)
    spans = [idle.launching]
    silent: list[Intervals] = []
    on_host = _optimizers_on_host(rank, calls.start_ns[idle.launch])
    for numbers, rows in threads.groups():
        group = Intervals(late.start_ns[rows], until[rows])
        known = _ThreadPair(evidence, stalls, calls, numbers)
        launching = intervals.union(since[rows], group.end_ns)
        pieces = known.split(group, launching, is_batch[rows])
        for cause, piece in pieces.items():
            parts[cause].append(piece)
        stretches = intervals.merge(pieces[IdleCause.HOST_CODE], pieces[IdleCause.UNKNOWN])
        short = stretches.length_ns <= MAX_STRETCH_NS
        spans.append(pieces[IdleCause.LAUNCH_BOUND])
        spans.append(intervals.subtract(stretches.at(short), on_host))
        is_held = until[rows] < late.end_ns[rows]
        queued = Intervals(until[rows][is_held], late.end_ns[rows][is_held])
        for cause, piece in known.split_queued(queued).items():
            parts[cause].append(piece)
    accessing = calls.packed_thread.at(idle.last_call)
    accessed = idle.gaps.at(idle.accesses)
    for number in distinct_values(accessing).tolist():
        known = _ThreadPair(evidence, stalls, calls, (number,))
        for cause, piece in known.split_accessed(accessed.at(accessing == number)).items():
            (silent if cause is IdleCause.UNKNOWN else parts[cause]).append(piece)
    before = _unexplained(idle)
    parts[IdleCause.QUEUED].append(before.of(IdleCause.QUEUED))
    costs = sync_costs(rank, calls) if len(idle.late) else NO_SYNC_COSTS
    all_spans = intervals.merge(*spans)
    begun = np.concatenate((late.start_ns, idle.launching.start_ns))
    order = np.argsort(begun, kind="stable")
    place = order[np.searchsorted(begun[order], all_spans.start_ns, side="right") - 1]
    stream = np.concatenate((idle.stream, idle.launching_stream))[place]
    attributable = AttributableIdle(all_spans, stream, costs, streams_of)
    sync = attributable.attributed()
    by_cause = {cause: intervals.merge(*some) for cause, some in parts.items()}
    before_sync = {cause: by_cause[cause] for cause in _MAY_BE_SYNC}
    by_cause[IdleCause.SYNC] = sync.covered
    for cause, span in before_sync.items():
        by_cause[cause] = intervals.subtract(span, by_cause[IdleCause.SYNC])
    unlaunched = intervals.subtract(before.unlaunched, accessed)
    unknown = by_cause[IdleCause.UNKNOWN], unlaunched, *silent
    by_cause[IdleCause.UNKNOWN] = intervals.merge(*unknown)
    threads = threads.and_alone(accessing)
    return IdleCauses(idle, threads, by_cause, before_sync, unlaunched, sync, attributable)


def _optimizers_on_host(rank: Rank, launched_ns: Int64) -> Intervals:
    """Return when optimizers took a step and launched none of the operations that end gaps."""
    ranges = place_ranges(rank)
    steps = [bool(_OPTIMIZER_STEP.search(name)) for name in ranges.names]
    rows = np.flatnonzero(np.array(steps, np.bool_)[ranges.name])
    span = ranges.start_ns[rows], ranges.end_ns[rows]
    first, stop = np.searchsorted(np.sort(launched_ns), span)
    return ranges.intervals_of(rows[first == stop])


def _unexplained(idle: IdleGaps) -> IdleCauses:
    gaps, no_launch, is_queued = idle.gaps, ~idle.has_launch, idle.is_queued
    queued = intervals.union(gaps.start_ns[is_queued] + MAX_TURNAROUND_NS, gaps.end_ns[is_queued])
    unlaunched = gaps.at(no_launch)
    nothing = np.empty(0, np.int64)
    return IdleCauses(
        idle,
        LaunchingThreads(nothing, nothing),
        {
            IdleCause.LAUNCH_BOUND: idle.launching,
            IdleCause.QUEUED: queued,
            IdleCause.UNKNOWN: unlaunched,
        },
        {},
        unlaunched,
        SyncIdle(nothing, nothing, nothing),
        AttributableIdle(intervals.empty(), nothing, NO_SYNC_COSTS, {}),
    )


class _ThreadPair:
    def __init__(
        self, evidence: HostEvidence, stalls: HostStalls, calls: ApiCalls, numbers: tuple[int, ...]
    ) -> None:
        self._evidence, self._calls, self._numbers = evidence, calls, numbers
        threads = self._threads = [evidence.thread(number) for number in numbers]
        self._layers = {
            IdleCause.MPI: [thread.mpi for thread in threads],
            IdleCause.SETUP: [thread.setup for thread in threads],
            IdleCause.ALLOCATION: [thread.allocation for thread in threads],
            IdleCause.DATA_LOADING: [thread.loading for thread in threads],
            IdleCause.STALLED: [stalls.of_thread(number) for number in numbers],
        }

    def split(
        self, gaps: Intervals, launching: Intervals, is_batch: Mask
    ) -> dict[IdleCause, Intervals]:
        """Split gaps by cause, before any of their time is attributed to waits.

        `launching`: the time from the launch of each gap, or its start, to its end. `is_batch`:
        bool[n], whether each ends with the copy of a batch.
        """
        threads = self._threads
        pieces, left = self._of_layers(gaps)
        asleep = left
        for thread in threads:
            asleep = intervals.intersect(asleep, thread.sleep.asleep)
        asleep = intervals.subtract(asleep, self._calls_within(asleep))
        left = intervals.subtract(left, asleep)
        of_batch = is_batch[np.searchsorted(gaps.start_ns, asleep.start_ns, side="right") - 1]
        loading = pieces[IdleCause.DATA_LOADING], asleep.at(of_batch)
        pieces[IdleCause.DATA_LOADING] = intervals.merge(*loading)
        pieces[IdleCause.WAITING] = asleep.at(~of_batch)
        runs = self._evidence.runs(self._numbers)
        launches = intervals.merge(intervals.union(runs.start_ns, runs.end_ns), launching)
        pieces[IdleCause.LAUNCH_BOUND] = intervals.intersect(left, launches)
        left = intervals.subtract(left, launches)
        awake = intervals.merge(*(thread.sleep.awake for thread in threads))
        pieces[IdleCause.HOST_CODE] = intervals.intersect(left, awake)
        pieces[IdleCause.UNKNOWN] = intervals.subtract(left, awake)
        return pieces

    def split_accessed(self, gaps: Intervals) -> dict[IdleCause, Intervals]:
        """Split gaps that end with an access to unified memory by cause; none is launch-bound."""
        sleep = self._threads[0].sleep
        asleep = sleep.asleep
        sleeps = intervals.holder(asleep.start_ns, asleep.end_ns, gaps.end_ns - 1) >= 0
        pieces, left = self._of_layers(gaps.at(~sleeps))
        calling = self._calls_within(left)
        outside = intervals.subtract(left, calling)
        pieces[IdleCause.WAITING] = intervals.intersect(outside, sleep.asleep)
        outside = intervals.subtract(outside, sleep.asleep)
        pieces[IdleCause.HOST_CODE] = intervals.intersect(outside, sleep.awake)
        silent = intervals.subtract(outside, sleep.awake)
        unsure = intervals.intersect(left, calling)
        pieces[IdleCause.UNKNOWN] = intervals.merge(unsure, silent, gaps.at(sleeps))
        return pieces

    def split_queued(self, spans: Intervals) -> dict[IdleCause, Intervals]:
        """Split time in which the queue held the operation that ends a gap by cause."""
        pieces, left = self._of_layers(spans, (IdleCause.SETUP, IdleCause.ALLOCATION))
        return {**pieces, IdleCause.QUEUED: left}

    def _of_layers(
        self, left: Intervals, causes: Iterable[IdleCause] | None = None
    ) -> tuple[dict[IdleCause, Intervals], Intervals]:
        pieces = {}
        for cause in causes or self._layers:
            layer = intervals.merge(*self._layers[cause])
            pieces[cause] = intervals.intersect(left, layer)
            left = intervals.subtract(left, layer)
        return pieces, left

    def _calls_within(self, spans: Intervals) -> Intervals:
        if not len(spans):
            return spans
        calls = self._calls
        rows = np.flatnonzero(calls.packed_thread.isin(self._numbers))
        start, end = calls.start_ns[rows], calls.ends(rows)
        place = np.searchsorted(spans.end_ns, start, side="right")
        place[place == len(spans)] = 0  # that span is over by then
        overlaps = (spans.start_ns[place] < end) & (spans.end_ns[place] > start)
        return intervals.union(start[overlaps], end[overlaps])


class WaitIdle(Record, frozen=True):
    """Idle time in a window, by the host call that causes it."""

    call: Int64  # int64[n], indices into the calls of the process, ascending
    idle_ns: Int64  # int64[n]; without one wait, a part may be caused by another one

    def by_outermost(self, calls: ApiCalls, candidates: Int64) -> WaitIdle:
        """The same by outermost calls: a copy has the wait inside it.

        `candidates`: int64[k], ascending, these calls and others that may contain them.
        """
        outer = outermost(calls, candidates)[np.searchsorted(candidates, self.call)]
        return WaitIdle(*sums(outer, self.idle_ns))


def may_idle_after(rank: Rank, calls: ApiCalls) -> Mask:
    """Mask of the calls of the process that may cause idle time of its rank, bool[calls]."""
    chosen = np.zeros(len(calls), np.bool_)
    chosen[idle_causes(rank).attributable.costs.call] = True
    return chosen


def wait_idle(rank: Rank, window: Window, chosen: Mask | None = None) -> WaitIdle:
    """Idle time in a window by causing call, even one that began before the window.

    `chosen`: bool[calls], the calls that count; all where not given.
    """
    causes = idle_causes(rank)
    inside = causes.sync.within(window)
    call = causes.attributable.costs.call[causes.sync.wait]
    counts = inside > 0 if chosen is None else (inside > 0) & chosen[call]
    return WaitIdle(*sums(call[counts], inside[counts]))


def by_api(rank: Rank, calls: ApiCalls, chosen: Int64, times_ns: Int64) -> dict[str, int]:
    """Times of calls, both int64[n], summed by the name of the API, longest first."""
    names = rank.trace.api_names
    spent = named_sums(
        calls.packed_name.at(chosen), times_ns, lambda key: names.get(key, "unnamed call")
    )
    return dict(sorted(spent.items(), key=lambda item: (-item[1], item[0])))


def outermost(calls: ApiCalls, rows: Int64) -> Int64:
    """Outermost call around each of some calls, or itself: int64[n] indices.

    A runtime call may be recorded together with the driver call inside it: that is one call.
    """
    start, end, thread = calls.start_ns[rows], calls.ends(rows), calls.packed_thread.at(rows)
    order = np.lexsort((rows, -end, start, thread))
    is_outer = end[order] > reached_before(end[order], thread[order])
    outer = np.maximum.accumulate(np.where(is_outer, np.arange(len(rows)), 0))
    outer_rows = np.empty(len(rows), np.int64)
    outer_rows[order] = rows[order[outer]]
    return outer_rows


def around_ns(rank: Rank, window: Window, kernels: Int64, waiting_ns: int) -> int:
    """Upper bound on the gain of a mean steady step without some kernels, besides their own time.

    It is the GPU overhead before each, and the host time of launching them. The latter counts up to
    the time in which the GPU idles because the host is slower, or waits for another rank.
    """
    begin, busy = rank.operations.kernels.start_ns[kernels], rank.busy
    slower = idle_causes(rank).host_is_slower
    after = np.flatnonzero(is_in(busy.start_ns[1:], begin))
    turn = intervals.union(busy.end_ns[after], busy.start_ns[after + 1])
    turn_ns, calls = covered_in_mean(rank, window, intervals.subtract(turn, slower)), rank.calls
    if calls is None:
        return turn_ns
    chosen, called = np.zeros(len(calls), np.bool_), rank.launched_by[0][kernels]
    chosen[called[called >= 0]] = True
    launching_ns = covered_in_mean(rank, window, since_other_launches(rank, calls, chosen))
    return turn_ns + min(launching_ns, covered_in_mean(rank, window, slower) + waiting_ns)


MAX_DETAILS = 3
_OWN = (PlaceKind.CHECKPOINT, PlaceKind.COLLECTION, PlaceKind.EVALUATION, PlaceKind.LOGGING)
_SPANS_OF = {
    IdleCause.MPI: HostEvidence.mpi,
    IdleCause.SETUP: HostEvidence.setup,
    IdleCause.ALLOCATION: HostEvidence.allocation,
    IdleCause.DATA_LOADING: HostEvidence.loading,
}


class IdleDetail(Record, frozen=True):
    """A call, range or function, and the idle time of a cause during which the host was in it."""

    name: str
    ns: int


def details(rank: Rank, window: Window, cause: IdleCause) -> tuple[IdleDetail, ...]:
    """Host activity during the idle time of a cause, longest first.

    Nested ranges count in full. Host code is named by ranges of garbage collection and checkpoints,
    else by operators and lines of Python, else by the innermost functions of CPU samples, whose
    share of the samples is taken as their share of the time.
    """
    if cause is IdleCause.TURNAROUND:  # it is the GPU's own time
        return ()
    evidence = host_evidence(rank)
    idle = intervals.clip(idle_causes(rank).of(cause), window.start_ns, window.end_ns)
    if evidence is None or not len(idle):
        return ()
    if cause is IdleCause.SYNC:
        waits = wait_idle(rank, window)
        return _longest(by_api(rank, evidence.calls, waits.call, waits.idle_ns))
    if cause is IdleCause.QUEUED:
        return _queued(rank, evidence.calls, idle)
    if cause in {IdleCause.HOST_CODE, IdleCause.LAUNCH_BOUND}:
        return _code(rank, cause, idle)
    spent: Counter[str] = Counter()
    for spans in _spans(rank, evidence, cause):
        covered = intervals.covered_within(idle, spans.start_ns, spans.end_ns)
        spent += named_sums(spans.name, covered, spans.names.__getitem__)
    return _longest(spent)


def _spans(rank: Rank, evidence: HostEvidence, cause: IdleCause) -> Iterator[NamedSpans]:
    known = idle_causes(rank).threads
    launching = distinct_values(known.thread).tolist()
    threads = distinct_values(np.append(known.thread, known.stand_in)).tolist()
    if cause in {IdleCause.WAITING, IdleCause.DATA_LOADING}:
        yield spans_named(evidence.activity.system_calls, launching)
    if cause is IdleCause.WAITING:
        yield functions_named(rank.trace, rank.process, names.PYTHON_SLEEP, threads)
    if cause is IdleCause.STALLED:
        stalls = host_stalls(rank)
        rows = np.flatnonzero(is_in(stalls.thread[stalls.piece], threads))
        texts = dict(enumerate(stalls.names))
        yield NamedSpans(stalls.begin_ns[rows], stalls.stop_ns[rows], stalls.piece[rows], texts)
    if cause in _SPANS_OF:
        yield from _SPANS_OF[cause](evidence, threads)


def _queued(rank: Rank, calls: ApiCalls, idle: Intervals) -> tuple[IdleDetail, ...]:
    """Operations that were launched and did not start, then what the launching host sat in."""
    gaps = idle_causes(rank).gaps.gaps
    # Of several parts of a gap, all are the same operation's.
    ended, of_part = np.unique(np.searchsorted(gaps.end_ns, idle.end_ns), return_inverse=True)
    place, call = starting_at(rank, calls, gaps.end_ns[ended])
    stream, place = rank.operations.streams_of(place)[of_part], place[of_part]
    spent: Counter[str] = Counter()
    for number, which, rows in rank.operations.parts(place):
        for on in distinct_values(stream[which]).tolist():
            here = stream[which] == on
            times = rank.time_by_operation(number, rows[here], idle.length_ns[which[here]])
            spent.update({f"{name} on stream {on}": ns for name, ns in times.items()})
    threads: list[int] = distinct_values(calls.packed_thread.at(call[call >= 0])).tolist()
    sat = dict(code_within(rank.trace, rank.process, threads, idle))
    if not any(sat.values()):
        rows = np.flatnonzero(calls.packed_thread.isin(tuple(threads)))
        covered = intervals.covered_within(idle, calls.start_ns[rows], calls.ends(rows))
        sat = by_api(rank, calls, rows, covered)
    host = (IdleDetail(f"the host in {detail.name}", detail.ns) for detail in _longest(sat)[:1])
    return (*_longest(spent)[: MAX_DETAILS - 1], *host)


def _code(rank: Rank, cause: IdleCause, idle: Intervals) -> tuple[IdleDetail, ...]:
    threads = idle_causes(rank).threads
    launching = distinct_values(np.append(threads.thread, threads.stand_in))
    threads_of: list[int] = launching.tolist()
    spent = {**code_within(rank.trace, rank.process, threads_of, idle)}
    if cause is IdleCause.HOST_CODE:
        known = places(rank)
        is_own = dict(zip(known.names, (kind in _OWN for kind in known.kinds), strict=True))
        # Of the time in operators only work of its own kind has ranges, too.
        silent = intervals.subtract(idle, code_of_threads(rank.trace, rank.process, threads_of))
        for part, counts in ((idle, True), (silent, False)):
            for name, ns in known.within(threads_of, part).items():
                if is_own[name] is counts:
                    spent[name] = max(spent.get(name, 0), ns)
    if cause is IdleCause.HOST_CODE and not any(spent.values()):
        return _functions(rank, idle)
    return _longest(spent)


def _functions(rank: Rank, idle: Intervals) -> tuple[IdleDetail, ...]:
    samples, threads = rank.trace.samples(rank.process), idle_causes(rank).threads
    inside = intervals.holder(idle.start_ns, idle.end_ns, samples.time_ns) >= 0
    inside &= is_in(samples.thread, distinct_values(threads.thread))
    functions, number = np.unique(samples.function[inside], return_counts=True)
    per_sample = idle.measure_ns / max(int(number.sum()), 1)
    spent: dict[str, int] = {}
    for function, count in zip(functions.tolist(), number.tolist(), strict=True):
        name = samples.names[function]
        if ("<" in name or "(" in name) and "operator" not in name:  # a function of C++
            name = function_name(name)
        spent[name] = spent.get(name, 0) + round(count * per_sample)
    return _longest(spent)


def _longest(spent: dict[str, int]) -> tuple[IdleDetail, ...]:
    ordered: Iterable[tuple[str, int]] = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return tuple(IdleDetail(name, ns) for name, ns in ordered if ns and name)[:MAX_DETAILS]
