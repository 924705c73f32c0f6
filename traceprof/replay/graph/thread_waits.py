"""Waits between threads: for the driver's lock, for hand-overs, and for unseen loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.host_code import OVER_BY_ITSELF
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE
from traceprof.replay.graph.hidden_waits import numbered
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, without
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind

if TYPE_CHECKING:
    from traceprof.host.thread_evidence import HostEvidence
    from traceprof.intervals import Float64, Int64, Intervals
    from traceprof.replay.graph.columns import Recorded
    from traceprof.replay.graph.host_waits import HostWaits
    from traceprof.trace.model.trace import Trace

# Autograd's hand-over: a thread that made no call for longer than this waited for the other one.
MIN_HAND_OVER_NS = 50_000
MIN_LOCKED_NS = 50_000
MIN_OF_A_PLACE = 6
"""With fewer silences at a place, their variances say nothing."""
# The time from the return of the call that held the driver's lock to the return of the one that
# waited (measured: 4 to 90 us, seldom more).
MAX_UNLOCKING_NS = 250_000
MIN_UNSEEN = 0.01
"""Share of the time: if training threads sleep less until another wakes them, it paces none."""
_MIN_SILENCE_NS, _MUCH = 1_000_000, 0.05  # Python between two calls takes less
_MIN_BRINGING = 0.25  # of the steps: who copies less often brings no batches
_MAX_SLEEPS = 500  # the longest ones


class LockWaits(Record, frozen=True):
    """The m waits of calls for the driver's lock, which a call of another thread holds."""

    call: Int64  # int64[m], outer calls, indices into `HostCalls`
    after: Int64  # int64[m], the other thread's call


class HandOvers(Record, frozen=True):
    """The m places at which a thread resumes after a call of another thread has returned."""

    call: Int64  # int64[m], the call that the thread makes then; ascending
    after: Int64  # int64[m], the other thread's call
    # int64[k], calls before which a thread slept or worked by itself: another thread's call
    # returned meanwhile, and was not what it waited for
    own: Int64


def hand_overs(process: Recorded, begin_ns: int) -> HandOvers:
    """Return where threads that launch wait for each other.

    A thread that sleeps or works by itself takes as long whenever another one's call returns
    meanwhile: of a place where the time since the thread's own call varies less than that since the
    other one's return, none is a hand-over. A thread that makes its first call after `begin_ns`,
    when what is replayed begins, waited as one does that made a call before.
    """
    calls, name = process.calls, process.call_names
    launches = process.launching_threads
    chosen = np.flatnonzero(is_in(calls.thread, launches) & calls.is_outer)
    nothing = np.empty(0, np.int64)
    if len(launches) < 2:
        return HandOvers(nothing, nothing, nothing)
    is_first = np.append(True, calls.thread[chosen[1:]] != calls.thread[chosen[:-1]])
    since_ns = np.where(is_first, begin_ns, np.append(0, calls.end_ns[chosen[:-1]]))
    is_long = calls.start_ns[chosen] - since_ns > MIN_HAND_OVER_NS
    after, since_ns = chosen[is_long], since_ns[is_long]
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    last = np.searchsorted(calls.end_ns[by_end], calls.start_ns[after], side="right") - 1
    other = by_end[np.maximum(last, 0)]
    is_other = (last >= 0) & (calls.thread[other] != calls.thread[after])
    is_other &= calls.end_ns[other] > since_ns
    before = np.append(chosen[:1], chosen[:-1])[is_long]
    place = numbered(
        calls.thread[after], np.where(is_first[is_long], -1, name[before]), name[after]
    )
    rows = np.flatnonzero(is_other)
    own_ns = (calls.start_ns[after] - since_ns)[rows]
    handed_ns = (calls.start_ns[after] - calls.end_ns[other])[rows]
    is_own = _variance(handed_ns, place[rows]) > _variance(own_ns, place[rows])
    call, given_by = after[rows[~is_own]], other[rows[~is_own]]
    order = np.argsort(call, kind="stable")
    return HandOvers(call[order], given_by[order], after[rows[is_own]])


def _variance(values: Int64, place: Int64) -> Float64:
    """Return the variance of values of the same place, float64[n]; 0 if there are too few."""
    if not len(values):
        return values.astype(np.float64)
    num = np.bincount(place)
    mean = np.bincount(place, values) / np.maximum(num, 1)
    square = np.bincount(place, (values - mean[place]) ** 2) / np.maximum(num, 1)
    of_places = np.where(num >= MIN_OF_A_PLACE, square, 0.0)
    return of_places[place]


def training_threads(process: Recorded) -> Int64:
    """Return the threads that launch to the stream which computes most: a loader's do not."""
    calls, work = process.calls, process.work
    computes = (work.kind == COMPUTE) & (work.call >= 0)
    if not computes.any():
        return distinct_values(calls.thread)
    spent = np.bincount(work.chain[computes], work.length_ns[computes])
    busiest = computes & (work.chain == int(np.argmax(spent)))
    return distinct_values(calls.thread[work.call[busiest]])


def loading_threads(process: Recorded, limits_ns: Int64 | None = None) -> Int64:
    """Return the threads that bring batches: they copy to the GPU, and neither train nor send.

    When such a thread waits for room in its queue, and which batch a step takes, is not recorded.
    With the limits of steps, int64[s + 1], none brings batches that copies in under a quarter of
    them.
    """
    calls, work = process.calls, process.work
    copying = work.call[(work.call >= 0) & work.is_to_device]
    communicating = work.call[(work.call >= 0) & (work.kind == COMMUNICATION)]
    others = np.append(training_threads(process), calls.thread[communicating])
    copying = copying[~is_in(calls.thread[copying], others)]
    threads = distinct_values(calls.thread[copying])
    if limits_ns is None:
        return threads
    step = np.searchsorted(limits_ns, calls.start_ns[copying], side="right")
    num = len(limits_ns) - 1
    num_with = len(distinct_values(step[(step > 0) & (step <= num)]))
    return threads if num_with >= max(_MIN_BRINGING * num, 1) else threads[:0]


def unseen_pace_ns(
    process: Recorded, training: Int64, overs: HandOvers, limits_ns: tuple[int, int]
) -> int:
    """Return how long threads slept until one that launches nothing may have woken them.

    Such a thread, of a loader, may set the pace of all: it makes no calls by which that shows. A
    silence of a thread that trains may be such a sleep, and where such threads wait for others that
    launch, a silence of these. If thread switches were recorded, somebody else was on a CPU right
    before the sleep was over; else the thread was in a system call that waits for others. If
    neither was, each long silence may be one, where they make much of the time.
    """
    calls, evidence = process.calls, process.evidence
    call, since = calls.silences(process.launching_threads)
    if not len(call):
        return 0
    is_training = is_in(calls.thread[call], training)
    brought = overs.call[~is_in(calls.thread[overs.after], training)]
    waiting = is_training & is_in(call, brought)
    waited = intervals.union(since[waiting], calls.start_ns[call[waiting]])
    enough = MIN_UNSEEN * (limits_ns[1] - limits_ns[0])
    if intervals.clip(waited, *limits_ns).measure_ns <= enough:
        call, since = call[is_training], since[is_training]
    # What a thread is known to have waited for was over before.
    handed = np.full(len(calls), limits_ns[0])
    np.maximum.at(handed, overs.call, calls.end_ns[overs.after])
    since, until = np.maximum(since, handed[call]), np.minimum(calls.start_ns[call], limits_ns[1])
    starts, ends = [], []
    for thread in distinct_values(calls.thread[call]).tolist():
        rows = np.flatnonzero((calls.thread[call] == thread) & (until > since))
        if len(rows):
            number = int(evidence.calls.packed_thread.at(calls.index[call[rows[:1]]])[0])
            silent = intervals.union(since[rows] - process.shift_ns, until[rows] - process.shift_ns)
            asleep = _waiting(evidence, number, silent, limits_ns[1] - limits_ns[0])
            starts.append(asleep.start_ns)
            ends.append(asleep.end_ns)
    start, end = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (starts, ends))
    longest = np.argsort(start - end, kind="stable")[:_MAX_SLEEPS]
    length, woken = (end - start)[longest], end[longest]
    if length.sum() <= enough:
        return 0
    trace = process.rank.trace
    ran = trace.others_ran(woken, _launching_threads(trace))
    return int(length.sum() if ran is None else length[ran].sum())


def loading_share(process: Recorded, training: Int64, overs: HandOvers, limits_ns: Int64) -> float:
    """Return an upper bound of the share of time in which a thread without calls loads data.

    It may do that if a thread that trains, or one that hands over to such a thread, slept until it
    had run, as for the first batch, and if it goes on in about every step. A queue may hide for a
    whole recording whether it keeps up. Its time is its own but for sleeps that ended where the
    training takes a batch: then it waited for room. `limits_ns`: int64[s + 1], of the steps.
    """
    calls, evidence, shift_ns = process.calls, process.evidence, process.shift_ns
    quiet = process.rank.trace.quiet_switches(process.rank.process)
    if not len(quiet.thread):
        return 0.0
    name, limits_ns = process.call_names, limits_ns - shift_ns
    to_training = is_in(calls.thread[overs.call], training)
    givers = calls.thread[overs.after[to_training]]
    woken, following = [], []
    for thread in distinct_values(np.append(training, givers)).tolist():
        outer = np.flatnonzero((calls.thread == thread) & calls.is_outer)
        start, end = calls.start_ns[outer] - shift_ns, calls.end_ns[outer] - shift_ns
        of_thread = evidence.thread(int(evidence.calls.packed_thread.at(calls.index[outer[:1]])[0]))
        known = (of_thread.mpi, of_thread.setup, of_thread.allocation)
        active = intervals.merge(intervals.union(start, end), *known)
        until = _longer(intervals.subtract(of_thread.sleep.asleep, active), MIN_HAND_OVER_NS).end_ns
        until = until[until <= min(int(limits_ns[-1]), int(start[-1]))]
        woken.append(until)
        next_call = outer[np.searchsorted(start, until)]
        following.append(np.where(is_in(thread, training), name[next_call], -1))
    until, called = np.concatenate(woken), np.concatenate(following)
    outer = np.flatnonzero(is_in(calls.thread, training) & calls.is_outer)
    outer = outer[np.argsort(calls.start_ns[outer], kind="stable")]
    start, num = calls.start_ns[outer] - shift_ns, len(limits_ns) - 1
    longest = 0.0
    for thread in distinct_values(quiet.thread).tolist():
        switches = quiet.chosen(quiet.thread == thread)
        ran, (slept_ns, woke_ns) = switches.ran_before(until), switches.sleeps()
        is_inside = (woke_ns > limits_ns[0]) & (woke_ns <= limits_ns[-1])
        if not ran.any() or 2 * is_inside.sum() < num:
            continue
        places = np.append(name[overs.call[to_training]], called[ran])
        at = np.minimum(np.searchsorted(start, woke_ns), len(outer) - 1)
        waited = is_in(name[outer[at]], places) & (woke_ns <= start[at])
        waiting = intervals.union(slept_ns[waited], woke_ns[waited])
        own = 1 - np.diff(intervals.covered_before(waiting, limits_ns)) / np.diff(limits_ns)
        longest = max(longest, float(own.mean() + 2 * own.std() / num**0.5))
    return min(longest, 1.0)


def _waiting(evidence: HostEvidence, thread: int, silent: Intervals, span_ns: int) -> Intervals:
    """Return when a thread slept until another one may have woken it.

    `silent`: its time without calls, of the `span_ns` of all its time.
    """
    of_thread, activity = evidence.thread(thread), evidence.activity
    asleep, known = of_thread.sleep.asleep, (of_thread.mpi, of_thread.setup, of_thread.allocation)
    if not len(asleep) and not len(of_thread.sleep.awake):
        long = _longer(intervals.subtract(silent, intervals.merge(*known)), _MIN_SILENCE_NS)
        return long if long.measure_ns > _MUCH * span_ns else intervals.empty()
    if not (activity.switches.thread == thread).any():
        spans = activity.system_calls
        by_itself = [bool(OVER_BY_ITSELF.match(name)) for name in spans.names]
        own = np.array(by_itself, np.bool_)[spans.name] & (spans.thread == thread)
        asleep = intervals.subtract(asleep, intervals.union(spans.start_ns[own], spans.end_ns[own]))
    waiting = intervals.subtract(intervals.intersect(asleep, silent), intervals.merge(*known))
    return _longer(waiting, MIN_HAND_OVER_NS)


def _longer(spans: Intervals, than_ns: int) -> Intervals:
    is_long = spans.length_ns > than_ns
    return intervals.Intervals(spans.start_ns[is_long], spans.end_ns[is_long])


def _launching_threads(trace: Trace) -> Int64:
    """Return the threads that launch work to any GPU of a report, by their numbers there."""
    launches = [
        key
        for key, name in trace.api_names.items()
        if api_call_kind(name) in (ApiCallKind.LAUNCH, ApiCallKind.COPY, ApiCallKind.MEMORY_SET)
    ]
    threads = [np.empty(0, np.int64)]
    for process in {key.process for key in trace.operations}:
        calls = trace.api_calls(process)
        if calls is not None:
            rows = np.flatnonzero(calls.packed_name.isin(launches))
            threads.append(distinct_values(calls.packed_thread.at(rows)))
    return distinct_values(np.concatenate(threads))


def lock_waits(process: Recorded, waits: HostWaits) -> LockWaits:
    """Return which calls waited until another thread's long call had returned.

    CUDA's driver lets one thread at a time change a context. Seen on A100: a loader's thread enters
    `cudaMemcpyAsync` while the main thread's copy of four bytes to pageable memory waits for the
    step to be over, and returns 10 to 60 us after it. Calls that wait for the GPU are left out.
    """
    calls = process.calls
    launches = process.launching_threads
    is_long = calls.length_ns > MIN_LOCKED_NS
    chosen = np.flatnonzero(is_long & calls.is_outer & is_in(calls.thread, launches))
    nothing = np.empty(0, np.int64)
    if len(launches) < 2 or len(chosen) < 2:
        return LockWaits(nothing, nothing)
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    call = without(chosen, waits.call)
    at = np.searchsorted(calls.end_ns[by_end], calls.end_ns[call], side="left") - 1
    holder = by_end[np.maximum(at, 0)]
    waited = (at >= 0) & (calls.thread[holder] != calls.thread[call])
    waited &= calls.start_ns[holder] < calls.start_ns[call]
    waited &= calls.end_ns[holder] > calls.start_ns[call]
    waited &= calls.end_ns[call] - calls.end_ns[holder] <= MAX_UNLOCKING_NS
    return LockWaits(call[waited], holder[waited])
