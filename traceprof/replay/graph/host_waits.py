"""Waits of the host: for the GPU, and of its threads for each other.

The host waits for the GPU in synchronizing calls, in blocking copies, and where the launch queue is
full. A program needs a wait if its result is used at once: sent, written or worked on. Threads wait
for the driver's lock, for hand-overs, and for loaders that are not seen.
"""

from __future__ import annotations

import numpy as np

from traceprof import intervals
from traceprof.communication.readiness import last_record
from traceprof.host.host_code import OVER_BY_ITSELF
from traceprof.host.host_waits import OWN_WAIT_NS
from traceprof.host.idle_causes import MAX_STRETCH_NS
from traceprof.host.launch_stalls import Stalls
from traceprof.host.thread_evidence import HostEvidence, ThreadEvidence
from traceprof.intervals import Float64, Int64, Intervals, Mask
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE, HostCalls, Recorded
from traceprof.replay.graph.stream_waits import TOLERANCE_NS, EventWaits
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, numbered_rows
from traceprof.trace.model.kinds import (
    ApiCallKind,
    SynchronizationKind,
    api_call_kind,
    waits_for_gpu,
)
from traceprof.trace.model.special_values import NULL
from traceprof.trace.model.trace import Trace

MIN_SLEEP_NS = 1_000_000
"""A thread that sleeps so long after a copy came is taken to write or send it, not to be held up
by the scheduler."""
MAX_SCALAR_BYTES = 16
"""A complex number: it is looked at, and not worked on for long."""


def needed_at_once(process: Recorded, waiting: Int64, awaited: Int64) -> Mask:
    """Say which waits are blocking dependencies: their data is used at once, bool[m].

    Before a call of MPI (or Gloo) that is likely what MPI sends. A copy to the host is used if
    then, data loading apart, the thread sleeps for long (it writes or sends), launches nothing for
    longer than a wait explains (it works, but for a scalar), or first copies as many bytes to the
    GPU (they go back). `waiting`: int64[m], outer calls; `awaited`: the operation of each.
    """
    calls, work = process.calls, process.work
    is_needed = np.zeros(len(waiting), np.bool_)
    following = _launched_next(process, waiting)
    has_next = following >= 0
    until_ns = np.full(len(waiting), intervals.BEYOND_NS)
    until_ns[has_next] = (
        calls.start_ns[calls.outer[work.call[following[has_next]]]] - process.shift_ns
    )
    since_ns = calls.end_ns[waiting] - process.shift_ns
    copied = np.where(work.is_to_host[awaited], copied_bytes(process, awaited), 0)
    is_for_copy = _of_call(calls, waiting, copied > 0)
    is_for_data = _of_call(calls, waiting, copied > MAX_SCALAR_BYTES) & has_next
    for rows, of_thread in process.by_thread(waiting):
        gap = since_ns[rows], until_ns[rows]
        asleep = intervals.subtract(of_thread.sleep.asleep, of_thread.loading)
        sleeps = asleep.start_ns[asleep.length_ns >= MIN_SLEEP_NS]
        uses = _begins_within(of_thread.mpi.start_ns, *gap)
        uses |= is_for_copy[rows] & _begins_within(sleeps, *gap)
        works = is_for_data[rows] & (gap[1] - gap[0] > MAX_STRETCH_NS)
        uses[works] |= _awake_ns(of_thread, gap[0][works], gap[1][works]) > MAX_STRETCH_NS
        is_needed[rows] = uses
    goes_back = _goes_back(process, (waiting, awaited), following)
    return is_needed | _of_call(calls, waiting, goes_back)


def round_trips(process: Recorded, waits: HostWaits) -> tuple[Int64, Int64]:
    """Return the calls that wait for data that goes straight back to a GPU, each with that launch.

    Where the thread works for longer between them, what it copies to the GPU is its result.
    """
    calls, own = process.calls, process.api_calls
    following = _launched_next(process, waits.call)
    rows = np.flatnonzero(_goes_back(process, (waits.call, waits.operation), following))
    since, until = waits.call[rows], calls.outer[process.work.call[following[rows]]]
    low, high = own.ends(calls.index[since]), own.start_ns[calls.index[until]]
    worked = np.zeros(len(rows), np.int64)
    for chosen, of_thread in process.by_thread(since):
        worked[chosen] = _awake_ns(of_thread, low[chosen], high[chosen], of_thread.mpi)
    return since[worked <= MAX_STRETCH_NS], until[worked <= MAX_STRETCH_NS]


def _launched_next(process: Recorded, waiting: Int64) -> Int64:
    """Return the next launch of each call's thread, int64[m]; -1 for none."""
    calls, work = process.calls, process.work
    launch, operation = process.launches
    following = np.append(operation, -1)[np.searchsorted(launch, waiting, side="right")]
    is_own = calls.thread[work.call[following]] == calls.thread[waiting]
    return np.where((following >= 0) & is_own, following, -1)


def copied_bytes(process: Recorded, operations: Int64) -> Int64:
    """Return the bytes that operations copy, int64[n]; 0 if they copy nothing."""
    work, copied = process.work, np.zeros(len(operations), np.int64)
    for index, rank in process.ranks:
        of_rank = (work.rank[operations] == index) & (work.group[operations] == 1)
        rows = np.flatnonzero(of_rank & (operations >= 0))
        copied[rows] = rank.operations.copies.bytes[work.place[operations[rows]]]
    return copied


def _goes_back(process: Recorded, waits: tuple[Int64, Int64], following: Int64) -> Mask:
    """Say which copies to the host are followed by one of as many bytes to the GPU, bool[m].

    Of copies in a row the first or the last one; none where the thread loads data between.
    """
    calls, work, own, (waiting, awaited) = process.calls, process.work, process.api_calls, waits
    begins = np.append(True, ~work.is_to_host[:-1] | (np.diff(work.chain) != 0))
    first = np.maximum.accumulate(np.where(begins, np.arange(len(work)), 0))[awaited]
    size = copied_bytes(process, following)
    is_same = (copied_bytes(process, awaited) == size) | (copied_bytes(process, first) == size)
    to_device = (following >= 0) & work.is_to_device[following]
    same: Mask = work.is_to_host[awaited] & to_device & is_same & (size > 0)
    rows = np.flatnonzero(same)
    low = own.ends(calls.index[waiting[rows]])
    high = own.start_ns[calls.index[calls.outer[work.call[following[rows]]]]]
    for chosen, of_thread in process.by_thread(waiting[rows]):
        loaded_ns = intervals.covered_within(of_thread.loading, low[chosen], high[chosen])
        same[rows[chosen]] = loaded_ns == 0
    return same


def _of_call(calls: HostCalls, waiting: Int64, chosen: Mask) -> Mask:
    """Say which rows share their call with one of some rows, bool[m]."""
    of_call = np.zeros(len(calls), np.bool_)
    of_call[waiting[chosen]] = True
    return of_call[waiting]


def _awake_ns(thread: ThreadEvidence, low_ns: Int64, high_ns: Int64, *others: Intervals) -> Int64:
    """Return the time from low to high without sleep, data loading and others, int64[n]."""
    other = intervals.merge(thread.sleep.asleep, thread.loading, *others)
    return high_ns - low_ns - intervals.covered_within(other, low_ns, high_ns)


def _begins_within(start_ns: Int64, low_ns: Int64, high_ns: Int64) -> Mask:
    """Return whether one of some spans begins from each low time to the high one, bool[n]."""
    at = np.searchsorted(start_ns, low_ns, side="left")
    return np.append(start_ns, intervals.BEYOND_NS)[at] < high_ns


class HostWaits(Record, frozen=True):
    """The m waits of calls that return only after an operation is over; some calls have several."""

    call: Int64  # int64[m], outer calls, indices into `HostCalls`
    operation: Int64  # int64[m], indices into `GpuWork`
    own_ns: Int64  # int64[m], what the call takes by itself
    tail_ns: Int64  # int64[m], how long after the operation it returns
    is_stall: Mask  # bool[m], whether the launch queue was full
    is_needed: Mask  # bool[m], whether the host uses the result at once, or CUDA waits by itself


def host_waits(process: Recorded, events: EventWaits | None, stalls: Stalls) -> HostWaits:
    """Return the waits of a process's host: synchronizing calls, copies, full queues.

    A call whose operation is not known takes as long as it took. `stalls`: launches that a full
    queue blocked.
    """
    calls, work = process.calls, process.work
    chains = _Chains(process)
    call, operation = _synchronized(process, events, chains)
    blocked = np.flatnonzero(work.blocks)
    frees = process.are_named(
        lambda name: (
            api_call_kind(name) is ApiCallKind.ALLOCATE and "Free" in name and waits_for_gpu(name)
        )
    )
    free_call, freed_after = chains.all_before(distinct_values(calls.outer[frees]))
    # Launches that a full queue blocked wait for the operation that makes room.
    place = calls.place_of(stalls.call)
    stalled_ns = (stalls.end_ns - stalls.start_ns)[place >= 0]
    stall_call = calls.outer[place[place >= 0]]
    stall_operation = _ended_in(stall_call, process)
    known = stall_operation >= 0
    stall_call, stall_operation = stall_call[known], stall_operation[known]
    counts = [len(call) + len(blocked), len(free_call), len(stall_call)]
    is_freeing = np.repeat([False, True, False], counts)
    is_stall = np.repeat([False, False, True], counts)
    call = np.concatenate((call, calls.outer[work.call[blocked]], free_call, stall_call))
    operation = np.concatenate((operation, blocked, freed_after, stall_operation))
    length = calls.length_ns[call]
    own = np.minimum(length, OWN_WAIT_NS)
    own[is_stall] = np.maximum(length[is_stall] - stalled_ns[known], 0)
    tail = calls.end_ns[call] - work.end_ns[operation]
    # What was over before the call began did not hold it: then it took what it takes.
    latest = np.full(len(calls), NULL)
    np.maximum.at(latest, call, work.end_ns[operation])
    # To free memory takes what it takes, after the wait.
    waited = np.clip(latest[call] - calls.start_ns[call], 0, length)
    own[is_freeing] = (length - waited)[is_freeing]
    is_free = latest[call] <= calls.start_ns[call]
    own = np.where(is_free, length, own)
    tail = np.where(is_free | (tail > length), 0, tail)
    possible = tail >= -TOLERANCE_NS
    # Another operation than the one that the call waited for ends earlier: it may end as late.
    is_last = work.end_ns[operation] == latest[call]
    shortest = np.full(len(calls), np.iinfo(np.int64).max)
    np.minimum.at(shortest, call[is_last], tail[is_last])
    tail = np.minimum(tail, shortest[call])
    call, operation = call[possible], operation[possible]
    is_needed = needed_at_once(process, call, operation)
    is_needed |= is_freeing[possible]
    return HostWaits(call, operation, own[possible], tail[possible], is_stall[possible], is_needed)


class _Chains:
    """Operations of a process by stream, in the order in which they were put there."""

    def __init__(self, process: Recorded) -> None:
        self._in_time, self._stream = process.calls.in_time, process.work.stream
        self._streams, number = np.unique(self._stream, return_inverse=True)
        self._span = len(process.calls) + 2
        key = number * self._span + process.launched_at + 1
        self._order = np.argsort(key, kind="stable")
        self._key = key[self._order]

    def last_before(self, stream: Int64, time: Int64) -> Int64:
        """Return the operation last put on each stream before a place in host order, or -1."""
        key = np.searchsorted(self._streams, stream) * self._span + time + 1
        at = np.searchsorted(self._key, key) - 1
        last = self._order[at]
        return np.where((at >= 0) & (self._stream[last] == stream), last, -1)

    def all_before(self, call: Int64) -> tuple[Int64, Int64]:
        """Return calls and the last operation on every stream before each, int64[k] both."""
        waiting = np.tile(call, len(self._streams))
        stream = np.repeat(self._streams, len(call))
        last = self.last_before(stream, self._in_time[waiting])
        return waiting[last >= 0], last[last >= 0]


def _synchronized(
    process: Recorded, events: EventWaits | None, chains: _Chains
) -> tuple[Int64, Int64]:
    """Return the synchronizing calls, each with the operations that it waited for."""
    calls, rank = process.calls, process.rank
    is_wait = process.are_named(lambda name: api_call_kind(name) is ApiCallKind.SYNCHRONIZE)
    # A driver's call inside the runtime's one is the same wait.
    waiting = distinct_values(calls.outer[is_wait])
    stream, event, device = (np.full(len(calls), NULL) for _ in range(3))
    is_device_wide = np.zeros(len(calls), np.bool_)
    rows = rank.trace.synchronizations(rank.process)
    if rows is not None:
        place = process.calls_of(rows)
        place[place >= 0] = calls.outer[place[place >= 0]]
        of_stream = (rows.kind == SynchronizationKind.HOST_FOR_STREAM) & (place >= 0)
        stream[place[of_stream]] = rows.stream[of_stream]
        of_event = (rows.kind == SynchronizationKind.HOST_FOR_EVENT) & (place >= 0)
        event[place[of_event]] = rows.event[of_event]
        device[place[of_stream | of_event]] = rows.device[of_stream | of_event]
        of_device = (rows.kind == SynchronizationKind.HOST_FOR_DEVICE) & (place >= 0)
        is_device_wide[place[of_device]] = True
    waits = [chains.all_before(waiting[is_device_wide[waiting]])]
    rest = waiting[~is_device_wide[waiting]]
    if events is not None:
        waits.append(_behind_events(rest, stream, event, device, calls, events))
        rest = np.setdiff1d(rest, waits[-1][0])
    by_stream = rest[stream[rest] != NULL]
    last = chains.last_before(stream[by_stream], calls.in_time[by_stream])
    waits.append((by_stream[last >= 0], last[last >= 0]))
    if events is None:
        waits.append(_behind_others(by_stream, last, process))
    rest = rest[stream[rest] == NULL]
    last = _ended_in(rest, process)
    waits.append((rest[last >= 0], last[last >= 0]))
    call, operation = map(np.concatenate, zip(*waits, strict=True))
    return call, operation


def _behind_others(waiting: Int64, last: Int64, process: Recorded) -> tuple[Int64, Int64]:
    """Return waits for a stream that were for another one, too: they returned after that one."""
    calls, work = process.calls, process.work
    own_end_ns = np.where(last >= 0, work.end_ns[last], np.iinfo(np.int64).min // 2)
    other = _ended_in(waiting, process)
    is_late = calls.end_ns[waiting] - own_end_ns > TOLERANCE_NS
    is_near = calls.end_ns[waiting] - work.end_ns[other] <= TOLERANCE_NS
    fits = (other >= 0) & is_late & is_near
    return waiting[fits], other[fits]


def _behind_events(
    waiting: Int64, stream: Int64, event: Int64, device: Int64, calls: HostCalls, events: EventWaits
) -> tuple[Int64, Int64]:
    """Return the waits for a stream or an event, and the operations that end each.

    A stream that was made to wait for another one since its last operation waits for that one's.
    `stream`, `event`, `device`: by call; `NULL` if unknown.
    """
    place = calls.in_time[waiting] + 1
    stream, event, device = stream[waiting], event[waiting], device[waiting]
    if len(events.devices) == 1:
        device = np.full(len(waiting), events.devices[0], np.int64)
    chain = events.chain_of(device, stream)
    record = last_record(events.records, event, device, place)
    of_event = (stream == NULL) & (event != NULL) & (record >= 0)
    chain[of_event] = events.chain[record[of_event]]
    place[of_event] = events.records.place[record[of_event]]
    known = of_event | ((stream != NULL) & (chain >= 0))
    return events.behind(waiting[known], chain[known], place[known])


def _ended_in(call: Int64, process: Recorded) -> Int64:
    """Return the operation that ended last while a call ran, launched before it; -1 for none."""
    calls, work = process.calls, process.work
    order = np.argsort(work.end_ns, kind="stable")
    ends = work.end_ns[order]
    at = np.searchsorted(ends, calls.end_ns[call], side="right") - 1
    operation = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    fits = (at >= 0) & (work.end_ns[operation] > calls.start_ns[call])
    fits &= process.launched_at[operation] < calls.in_time[call]
    return np.where(fits, operation, -1)


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


class ThreadWaits(Record, frozen=True):
    """The m calls that a thread makes, or returns from, after a call of another thread."""

    call: Int64  # int64[m], outer calls, indices into `HostCalls`
    after: Int64  # int64[m], the other thread's call, which returns before


def hand_overs(process: Recorded) -> ThreadWaits:
    """Return where threads that launch wait for each other, the calls ascending.

    A thread that sleeps or works by itself takes as long whenever another one's call returns
    meanwhile: of a place where the time since the thread's own call varies less than that since the
    other one's return, none is a hand-over. A thread that makes its first call after the beginning
    of what is replayed waited as one does that made a call before.
    """
    calls, name = process.calls, process.call_names
    launches = process.launching_threads
    chosen = np.flatnonzero(is_in(calls.thread, launches) & calls.is_outer)
    is_first = np.append(True, calls.thread[chosen[1:]] != calls.thread[chosen[:-1]])
    since_ns = np.where(is_first, process.begin_ns, np.append(0, calls.end_ns[chosen[:-1]]))
    is_long = calls.start_ns[chosen] - since_ns > MIN_HAND_OVER_NS
    after, since_ns = chosen[is_long], since_ns[is_long]
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    last = np.searchsorted(calls.end_ns[by_end], calls.start_ns[after], side="right") - 1
    other = by_end[np.maximum(last, 0)]
    is_other = (last >= 0) & (calls.thread[other] != calls.thread[after])
    is_other &= calls.end_ns[other] > since_ns
    before = np.append(chosen[:1], chosen[:-1])[is_long]
    place = numbered_rows(
        calls.thread[after], np.where(is_first[is_long], -1, name[before]), name[after]
    )
    rows = np.flatnonzero(is_other)
    own_ns = (calls.start_ns[after] - since_ns)[rows]
    handed_ns = (calls.start_ns[after] - calls.end_ns[other])[rows]
    is_own = _variance(handed_ns, place[rows]) > _variance(own_ns, place[rows])
    call, given_by = after[rows[~is_own]], other[rows[~is_own]]
    order = np.argsort(call, kind="stable")
    return ThreadWaits(call[order], given_by[order])


def _variance(values: Int64, place: Int64) -> Float64:
    """Return the variance of values of the same place, float64[n]; 0 if there are too few."""
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
    process: Recorded, training: Int64, overs: ThreadWaits, limits_ns: tuple[int, int]
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


def loading_share(
    process: Recorded, training: Int64, overs: ThreadWaits, limits_ns: Int64
) -> float:
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
    launching = (ApiCallKind.LAUNCH, ApiCallKind.COPY, ApiCallKind.MEMORY_SET)
    threads = [np.empty(0, np.int64)]
    for process in {key.process for key in trace.operations}:
        calls = trace.api_calls(process)
        if calls is not None:
            launches = trace.calls_named(calls, lambda name: api_call_kind(name) in launching)
            threads.append(distinct_values(calls.packed_thread.at(launches)))
    return distinct_values(np.concatenate(threads))


def lock_waits(process: Recorded, waits: HostWaits) -> ThreadWaits:
    """Return which calls waited until another thread's long call had returned.

    CUDA's driver lets one thread at a time change a context. Seen on A100: a loader's thread enters
    `cudaMemcpyAsync` while the main thread's copy of four bytes to pageable memory waits for the
    step to be over, and returns 10 to 60 us after it. Calls that wait for the GPU are left out.
    """
    calls = process.calls
    launches = process.launching_threads
    is_long = calls.length_ns > MIN_LOCKED_NS
    chosen = np.flatnonzero(is_long & calls.is_outer & is_in(calls.thread, launches))
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    call = np.setdiff1d(chosen, waits.call)
    at = np.searchsorted(calls.end_ns[by_end], calls.end_ns[call], side="left") - 1
    holder = by_end[np.maximum(at, 0)]
    waited = (at >= 0) & (calls.thread[holder] != calls.thread[call])
    waited &= calls.start_ns[holder] < calls.start_ns[call]
    waited &= calls.end_ns[holder] > calls.start_ns[call]
    waited &= calls.end_ns[call] - calls.end_ns[holder] <= MAX_UNLOCKING_NS
    return ThreadWaits(call[waited], holder[waited])
