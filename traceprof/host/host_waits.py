"""Waits of the host for the GPU: calls that wait, what run-ahead and idle time they cost.

**Cost.** After a long wait the host has less work launched ahead than before it, and the GPU idles
in the gaps that follow. The run-ahead lost is the cost of the wait. Three kinds of calls have one:

* a synchronize call: its length less `OWN_WAIT_NS`
* a copy that blocks (not Async; or Async, over `MIN_BLOCKING_NS`, from or to pageable memory): the
  time before the copy began, at most the call's length, less `OWN_WAIT_NS`
* such a copy on another device of the process: the call's length less `OWN_WAIT_NS`, since this
  device does not run meanwhile

**Idle time caused by waits** (`AttributableIdle`). A cost applies from the start of the call, on
every stream of the rank to which its thread launches. Attributable is the idle time in which the
host launches, and short stretches of host code or of unknown time; only this time counts on the
clock used here. On a stream, a wait of cost D that begins at clock c accounts for the attributable
time until c + D. Of several waits the last one accounts for it until its own cost is used up, then
the one that lasts longest. So attributable time uses up a cost even in gaps that end with an
operation of another stream.

**Upper bounds on host time saved by removing calls.** `with_operators` leaves the code around the
calls' operators: for waits, and for kernels that others replace. `since_other_launches` is larger,
for operations that go with all that prepares them, such as small messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from traceprof import intervals
from traceprof.host.thread_evidence import calls_of_kind, launches_of
from traceprof.intervals import BEYOND_NS, Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, greatest_so_far, is_in
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import ApiCallKind, CopyKind, MemoryKind, waits_for_gpu
from traceprof.trace.model.operations import Copies
from traceprof.trace.model.special_values import NULL

# CUDA stages copies of up to 64 KiB from pageable memory and returns at once, and such a copy takes
# some microseconds however it is made.
MAX_STAGED_BYTES = 64 * 1024
OWN_WAIT_NS = 15_000
"""What a synchronizing call takes if there is nothing to wait for: the median of the shortest in
real traces, the profiler's part included."""


class ThreadCalls(Record, frozen=True):
    """Some API calls of one thread, ordered by start, then end."""

    start_ns: Int64
    end_ns: Int64
    call: Int64  # int64[n], indices into the process's `ApiCalls`

    @property
    def covered(self) -> Intervals:
        """The times in which one of the calls was running."""
        return intervals.union(self.start_ns, self.end_ns)


def synchronizing_calls(rank: Rank, calls: ApiCalls) -> Mask:
    """Mask of the calls that wait for the GPU, bool[calls].

    Calls are known by name, except for asynchronous copies to pageable host memory: those return
    when the copy is over, such as the read of four bytes in `loss.item()`.
    """
    synchronizes = rank.trace.calls_named(calls, waits_for_gpu)
    is_read = rank.operations.copies.destination_memory == MemoryKind.PAGEABLE
    reads = rank.launched_by[1][is_read]
    synchronizes[reads[reads >= 0]] = True
    return synchronizes


def by_thread(calls: ApiCalls, chosen: Mask) -> dict[int, ThreadCalls]:
    """Return the chosen calls of each thread that made any."""
    index = np.flatnonzero(chosen)
    if len(index) == 0:
        return {}
    thread = calls.packed_thread.at(index)
    order = np.lexsort((calls.ends(index), calls.start_ns[index], thread))
    index = index[order]
    threads, first = np.unique(thread[order], return_index=True)
    return {
        thread: ThreadCalls(calls.start_ns[part], calls.ends(part), part)
        for thread, part in zip(threads.tolist(), np.split(index, first[1:]), strict=True)
    }


def may_copy_from_pageable(rank: Rank, window: Window) -> bool:
    """Whether a copy to the GPU in a window may be from pageable memory.

    False only if there are copies to the GPU, and all are known to be from other memory.
    """
    copies = rank.operations.copies
    is_upload = (copies.kind == CopyKind.HOST_TO_DEVICE) & window.holds_start(copies.start_ns)
    source = copies.source_memory[is_upload]
    unpinned = (NULL, MemoryKind.UNKNOWN, MemoryKind.PAGEABLE)
    return not len(source) or bool(is_in(source, unpinned).any())


def copies_for_kernels(rank: Rank, window: Window) -> bool:
    """Whether a program of OpenACC or OpenMP copies to or from the host for most kernels."""
    if not rank.program.uses_directives:
        return False
    kernels, copies = rank.operations.kernels, rank.operations.copies
    with_host = (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST)
    num = np.count_nonzero(is_in(copies.kind, with_host) & window.holds_start(copies.start_ns))
    num_kernels = np.count_nonzero(window.holds_start(kernels.start_ns))
    return bool(2 * num >= num_kernels > 1)


MIN_BLOCKING_NS = 20_000
"""A call that stays longer than this with a copy of pageable memory waits for it: CUDA stages
smaller ones and returns (measured: 98 % of those that return at once take under 15 us)."""
_COPY = re.compile(r"cu(?:da)?Memcpy")
_ASYNC_COPY = re.compile(r"cu(?:da)?Memcpy\w*Async")


class SyncCosts(Rows, frozen=True):
    """Host waits of a rank's process with the run-ahead that each costs, ordered by start."""

    call: Int64  # int64[n], indices into the calls of the process, each once
    start_ns: Int64
    cost_ns: Int64  # int64[n], above 0
    thread: Int64  # int64[n], the thread that waited


NO_SYNC_COSTS = SyncCosts(*[np.empty(0, np.int64)] * 4)


def sync_costs(rank: Rank, calls: ApiCalls) -> SyncCosts:
    """Return the costs of all waits of a process that has calls for one of its devices."""
    waits = np.flatnonzero(calls_of_kind(rank, calls, ApiCallKind.SYNCHRONIZE))
    groups = [(waits, calls.packed_length.at(waits))]
    is_copy, is_async = (
        rank.trace.calls_named(calls, pattern.match) for pattern in (_COPY, _ASYNC_COPY)
    )
    for key, operations in rank.operations_of_process:
        if len(copies := operations.copies):
            call, is_here = launches_of(rank, key, calls, copies), key == rank.key
            groups.append(_of_copies(copies, call, calls, is_copy, is_async, is_here=is_here))
    call, cost = (np.concatenate(column) for column in zip(*groups, strict=True))
    # Of several copies of one call the one that it waited for longest counts.
    order = np.lexsort((-cost, call))
    order = order[np.diff(call[order], prepend=-1) != 0]
    order = order[cost[order] > OWN_WAIT_NS]
    call, cost = call[order], cost[order] - OWN_WAIT_NS
    order = np.lexsort((cost, calls.start_ns[call]))
    call, cost = call[order], cost[order]
    return SyncCosts(call, calls.start_ns[call], cost, calls.packed_thread.at(call))


def _of_copies(
    copies: Copies, call: Int64, calls: ApiCalls, is_copy: Mask, is_async: Mask, *, is_here: bool
) -> tuple[Int64, Int64]:
    """Calls of blocking copies, and the ns before each copy began; int64[n] each."""
    length = calls.packed_length.at(call)
    blocks = ~is_async[call] | (copies.is_pageable & (length > MIN_BLOCKING_NS))
    rows = np.flatnonzero((call >= 0) & is_copy[call] & blocks & (copies.kind != NULL))
    call, length = call[rows], length[rows]
    if not is_here:
        return call, length
    return call, np.minimum(copies.start_ns[rows] - calls.start_ns[call], length)


class SyncIdle(Record, frozen=True):
    """GPU idle time caused by host waits, ordered by start."""

    start_ns: Int64
    end_ns: Int64  # int64[n], none after the next start
    wait: Int64  # int64[n], indices into the rank's `SyncCosts`

    @property
    def covered(self) -> Intervals:
        """All of this idle time."""
        return intervals.union(self.start_ns, self.end_ns)

    def within(self, window: Window) -> Int64:
        """Return how much of each part lies in a window, int64[n] ns."""
        low, high = window.start_ns, window.end_ns
        inside: Int64 = np.minimum(self.end_ns, high) - np.maximum(self.start_ns, low)
        return np.maximum(inside, 0, out=inside)


class AttributableIdle(Record, frozen=True):
    """GPU idle time that host waits may have caused, and the costs of these waits."""

    spans: Intervals  # n intervals
    stream: Int64  # int64[n], the stream of the operation that ends the gap of each
    costs: SyncCosts  # the waits of the rank's process
    # the streams of the rank to which each thread launches
    streams_of: Mapping[int, frozenset[int]]

    def attributed(self, counts: Mask | None = None) -> SyncIdle:
        """Return the idle time caused by host waits: by all, or by those of a mask, bool[waits]."""
        costs = self.costs
        until = intervals.covered_before(self.spans, costs.start_ns) + costs.cost_ns
        nothing = np.empty(0, np.int64)
        parts = [(nothing, nothing, nothing)]
        for stream in distinct_values(self.stream).tolist():
            rows = self._waits_on(stream)
            rows = rows if counts is None else rows[counts[rows]]
            if len(rows):
                parts.append(self._on_stream(self.stream == stream, rows, until[rows]))
        return _joined(parts)

    def attributed_in_gaps(self, start_ns: Int64, end_ns: Int64, returned_ns: Int64) -> SyncIdle:
        """Idle time that each wait would cause alone in gaps that begin before its end.

        `start_ns` and `end_ns`: int64[n], the gap in which each of `spans` lies. `returned_ns`:
        int64[waits], when the calls returned.
        """
        costs, nothing = self.costs, np.empty(0, np.int64)
        clock = intervals.covered_before(self.spans, costs.start_ns)
        parts = [(nothing, nothing, nothing)]
        for stream in distinct_values(self.stream).tolist():
            rows = self._waits_on(stream)
            here = np.flatnonzero(self.stream == stream)
            last = np.searchsorted(costs.start_ns[rows], end_ns[here]) - 1
            here, wait = here[last >= 0], rows[last[last >= 0]]
            goes_on = returned_ns[wait] > start_ns[here]
            here, wait = here[goes_on], wait[goes_on]
            start = np.maximum(self.spans.start_ns[here], costs.start_ns[wait])
            left = clock[wait] + costs.cost_ns[wait]
            left -= intervals.covered_before(self.spans, start)
            length = np.minimum(self.spans.end_ns[here] - start, left)
            some = length > 0
            parts.append((start[some], (start + length)[some], wait[some]))
        return _joined(parts)

    def _waits_on(self, stream: int) -> Int64:
        threads = [thread for thread, streams in self.streams_of.items() if stream in streams]
        return np.flatnonzero(is_in(self.costs.thread, threads))

    def _on_stream(self, on_stream: Mask, rows: Int64, until: Int64) -> tuple[Int64, Int64, Int64]:
        """Start, end and wait of the attributed idle time of a stream; int64[m] each.

        `rows`: int64[k], the waits whose cost applies to it, by start. `until`: int64[k], the clock
        at which each cost is used up.
        """
        start, end = self.spans.start_ns[on_stream], self.spans.end_ns[on_stream]
        times = self.costs.start_ns[rows]
        # Spans are cut where waits begin: another one may count from then on.
        place = np.searchsorted(start, times) - 1
        cuts = times[(place >= 0) & (times < end[place])]
        cut_start = np.sort(np.concatenate((start, cuts)), kind="stable")
        place = np.searchsorted(start, cut_start, side="right") - 1
        cut_end = np.minimum(end[place], np.append(cut_start[1:], BEYOND_NS))
        holder = greatest_so_far(until)
        longest = until[holder]
        last = np.searchsorted(times, cut_start, side="right") - 1
        clock = intervals.covered_before(self.spans, cut_start)
        own_end, end = (
            cut_start + np.where(last < 0, 0, np.clip(cost[last] - clock, 0, cut_end - cut_start))
            for cost in (until, longest)
        )
        pieces = (cut_start, own_end, rows[last]), (own_end, end, rows[holder[last]])
        start, end, wait = (np.concatenate(column) for column in zip(*pieces, strict=True))
        some = start < end
        return start[some], end[some], wait[some]


def _joined(parts: list[tuple[Int64, Int64, Int64]]) -> SyncIdle:
    start, end, wait = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return SyncIdle(start[order], end[order], wait[order])


def with_operators(rank: Rank, calls: ApiCalls, chosen: Mask) -> Intervals:
    """Host time saved by removing calls (bool[calls]) with the operators made for them alone.

    Such an operator launches no kernel but by these calls, as `aten::item` does. The time of a call
    includes its wait.
    """
    index, operators = np.flatnonzero(chosen), rank.trace.operators(rank.process)
    spans = [(calls.start_ns.take(index), calls.ends(index))]
    if operators is not None and len(index):
        kernels = rank.launched_by[0]
        launches = distinct_values(kernels[(kernels >= 0) & ~chosen[kernels]])
        of_operator = operators.packed_thread.at(np.arange(len(operators)))
        of_launch, of_call = (calls.packed_thread.at(rows) for rows in (launches, index))
        for thread in distinct_values(of_call).tolist():
            rows = np.flatnonzero(of_operator == thread)
            start, end = operators.start_ns[rows], operators.ends(rows)
            others, own = (
                np.sort(calls.start_ns[some[of_some == thread]])
                for some, of_some in ((launches, of_launch), (index, of_call))
            )
            num_others, num_own = (
                np.searchsorted(times, end) - np.searchsorted(times, start)
                for times in (others, own)
            )
            only = (num_others == 0) & (num_own > 0)
            spans.append((start[only], end[only]))
    return intervals.merge(*(intervals.union(start, end) for start, end in spans))


def since_other_launches(rank: Rank, calls: ApiCalls, chosen: Mask) -> Intervals:
    """Host time saved by removing calls (bool[calls]) and all that prepares them.

    It counts from the return of the thread's last launch of other work to the return of the call,
    and so includes event records, stream waits, and the code around them.
    """
    launched = np.concatenate(rank.launched_by)
    launched = launched[launched >= 0]
    others = np.zeros(len(calls), np.bool_)
    others[launched[~chosen[launched]]] = True
    before, spans = by_thread(calls, others), []
    for thread, own in by_thread(calls, chosen).items():
        since = own.start_ns
        if thread in before:
            returned = np.append(-intervals.BEYOND_NS, np.maximum.accumulate(before[thread].end_ns))
            last = returned[np.searchsorted(before[thread].start_ns, own.start_ns)]
            since = np.where(last > -intervals.BEYOND_NS, np.minimum(last, since), since)
        spans.append(intervals.union(since, own.end_ns))
    return intervals.merge(*spans)
