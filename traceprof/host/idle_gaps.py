"""Why the GPU was idle: each gap between its operations, split by what the host did.

Let a gap be [s, e): the last operation before it ended at s, and the next one, which thread T
launched by a call [a, b), started at e. (Of several that start at e, the one launched first counts;
of several that end at s, the one launched last.)

1. Launch unknown, no next operation, or b <= s: all of the gap is *other*. The operation was in the
   queue when the gap began, and waited on the GPU's side.
2. Else the host was late until h: h = e, or h = b where the operation started more than
   `LAUNCH_LATENCY_NS` after b. [h, e) is *other*: an operation that has arrived waits for more than
   its launch.
3. Time of [s, h) inside T's data loading ranges is *data loading*.
4. A synchronizing call C of T that was running at s took the host's lead away. Had it not waited,
   the host would have been there so much earlier: what remains of [s, s + duration of C) up to h is
   *sync*. If T has none, the same holds for a call of the thread that launched the operation before
   the gap, if it returned by a: PyTorch's autograd thread goes on after the main thread's .item().
5. What remains of [s, h) inside T's synchronizing calls is *sync*, too.
6. The rest of [s, h) is *launch-bound*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.synchronization import (
    by_thread,
    clocks_disagree,
    data_loading,
    synchronizing_calls,
)
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.host.synchronization import ThreadCalls
    from traceprof.intervals import Int64, Intervals
    from traceprof.run.opening import Mask, Rank, Window
    from traceprof.trace.model.host import ApiCalls

# An operation launched into an idle GPU starts 2 to 10 us after the call returns (real traces:
# median 1 to 5, under Nsight rarely above 12); after 20 us it waits for something else.
LAUNCH_LATENCY_NS = 20_000


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """The gaps of a rank inside a window, in order.

    Most of them are between operations that were launched long before: those are *other*
    altogether. Of the *late* ones what is not in the three parts is *other*.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        has_launch: bool[n], whether the call is known that launched the operation after the gap.
        late: int64[m], the gaps for which the host was late, ascending.
        launch_bound_ns: int64[m].
        sync_ns: int64[m].
        data_loading_ns: int64[m].
        launch: int64[m], the call that launched the operation after the gap.
        sync_call: int64[m], the synchronizing call that most of `sync_ns` is laid to: the one that
            was running at the gap's start (rule 4), or the longest that T entered in it (rule 5);
            -1 for none.
    """

    start_ns: Int64
    end_ns: Int64
    has_launch: Mask
    late: Int64
    launch_bound_ns: Int64
    sync_ns: Int64
    data_loading_ns: Int64
    launch: Int64
    sync_call: Int64

    @property
    def length_ns(self) -> Int64:
        """The length of each gap, int64[n]."""
        return self.end_ns - self.start_ns

    @property
    def coverage(self) -> float:
        """The share of the idle time whose next operation has a known launch, 0 to 1."""
        length = self.length_ns
        idle = int(length.sum())
        return int(length[self.has_launch].sum()) / idle if idle else 1.0

    @property
    def parts_ns(self) -> tuple[int, int, int, int]:
        """Launch-bound, sync, data loading and other time, which add up to the idle time."""
        bound, sync, data = (
            int(part_ns.sum())
            for part_ns in (self.launch_bound_ns, self.sync_ns, self.data_loading_ns)
        )
        return bound, sync, data, int(self.length_ns.sum()) - bound - sync - data


@dataclass(frozen=True, slots=True)
class UnknownCause:
    """Why the gaps of a rank cannot be explained.

    Attributes:
        reason: what is missing or wrong.
        how_to_collect: what would help.
    """

    reason: str
    how_to_collect: str


def idle_gaps(rank: Rank, window: Window) -> IdleGaps | UnknownCause:
    """Split the idle time of a rank inside a window by its causes."""
    return rank.cache.get(_split_gaps, rank, window)


def _split_gaps(rank: Rank, window: Window) -> IdleGaps | UnknownCause:
    calls = rank.calls
    if calls is None:
        return UnknownCause(
            "the report has no CUDA API calls: what the host did is not known",
            rank.trace.how_to_collect(Part.RANGES),  # which names what the host did, too
        )
    if clocks_disagree(rank, calls):
        return UnknownCause(
            "the clocks of host and GPU disagree in this report: operations end after the host has"
            " read their results, or start before they are launched",
            f"record again, with a newer {rank.trace.format_name}",
        )
    gaps = _gaps(rank, window)
    launch = _next_launch(rank, calls, gaps.end_ns)
    has_launch = launch >= 0
    known = np.flatnonzero(has_launch)
    call_end = calls.ends(launch[known])
    is_late = call_end > gaps.start_ns[known]
    late, call_end = known[is_late], call_end[is_late]
    launch = launch[late]
    late_gaps = intervals.Intervals(gaps.start_ns[late], gaps.end_ns[late])
    arrived = late_gaps.end_ns - call_end > LAUNCH_LATENCY_NS
    until = np.where(arrived, call_end, late_gaps.end_ns)
    thread = calls.packed_thread.at(launch)
    syncs = by_thread(calls, synchronizing_calls(rank, calls))
    held_by = _held_by(rank, calls, late_gaps, thread, calls.start_ns[launch], syncs)
    waited = np.where(held_by >= 0, calls.packed_length.at(held_by), 0)
    held_until = np.minimum(until, late_gaps.start_ns + waited)
    launch_bound, sync, data, sync_call = _parts(
        late_gaps, window, until, held_until, thread, held_by, syncs, data_loading(rank)
    )
    return IdleGaps(
        start_ns=np.maximum(gaps.start_ns, window.start_ns),
        end_ns=np.minimum(gaps.end_ns, window.end_ns),
        has_launch=has_launch,
        late=late,
        launch_bound_ns=launch_bound,
        sync_ns=sync,
        data_loading_ns=data,
        launch=launch,
        sync_call=sync_call,
    )


def _gaps(rank: Rank, window: Window) -> Intervals:
    """Return the rank's gaps that lie in the window at least in part, in full length."""
    whole = rank.window
    low, high = min(whole.start_ns, window.start_ns), max(whole.end_ns, window.end_ns)
    gaps = intervals.complement(rank.busy, low, high)
    inside = (gaps.end_ns > window.start_ns) & (gaps.start_ns < window.end_ns)
    return intervals.Intervals(gaps.start_ns[inside], gaps.end_ns[inside])


def _parts(
    gaps: Intervals,
    window: Window,
    until: Int64,
    held_until: Int64,
    thread: Int64,
    held_by: Int64,
    syncs: Mapping[int, ThreadCalls],
    loading: Mapping[int, Intervals],
) -> tuple[Int64, Int64, Int64, Int64]:
    """Measure the parts of late gaps, clipped to the window.

    Returns:
        Launch-bound, sync and data loading ns, and the call that sync is laid to; int64[gaps].
    """
    start = np.maximum(gaps.start_ns, window.start_ns)
    end = np.minimum(gaps.end_ns, window.end_ns)
    held_end, late_end = np.clip(held_until, start, end), np.clip(until, start, end)
    held_data, data, inside = (np.zeros(len(gaps), np.int64) for _ in range(3))
    longest = np.full(len(gaps), -1, np.int64)
    for number in np.unique(thread).tolist():
        indices = np.flatnonzero(thread == number)
        loads, waits = loading.get(number), syncs.get(number)
        if loads is not None:
            held_data[indices] = intervals.covered_within(loads, start[indices], held_end[indices])
            data[indices] = intervals.covered_within(loads, start[indices], late_end[indices])
        if waits is not None:
            waiting = waits.covered if loads is None else intervals.subtract(waits.covered, loads)
            inside[indices] = intervals.covered_within(
                waiting, held_end[indices], late_end[indices]
            )
            longest[indices] = _longest_inside(waits, gaps.start_ns[indices], until[indices])
    held = held_end - start - held_data
    sync = held + inside
    sync_call = np.where((longest >= 0) & ((held_by < 0) | (inside > held)), longest, held_by)
    return late_end - start - data - sync, sync, data, sync_call


def _longest_inside(waits: ThreadCalls, start: Int64, until: Int64) -> Int64:
    """Return the call entered in each (start, until) that spent most time there, -1 for none."""
    longest = np.full(len(start), -1, np.int64)
    # Without a gap before it a call is laid to gap -1, which `inside` leaves out.
    gap = np.searchsorted(start, waits.start_ns, side="left") - 1
    inside = (gap >= 0) & (waits.start_ns < until[gap])
    gap, call = gap[inside], waits.call[inside]
    spent = np.minimum(waits.end_ns[inside], until[gap]) - waits.start_ns[inside]
    order = np.lexsort((-np.arange(len(gap)), spent, gap))
    longest[gap[order]] = call[order]  # of several for one gap, the last is kept
    return longest


def _held_by(
    rank: Rank,
    calls: ApiCalls,
    gaps: Intervals,
    thread: Int64,
    call_start: Int64,
    syncs: Mapping[int, ThreadCalls],
) -> Int64:
    """Return the synchronizing call that holds each late gap (rule 4), int64[gaps], -1 for none."""
    held_by = np.full(len(gaps), -1, np.int64)

    def look(chosen: Int64, threads: Int64, returned_by: Int64 | None) -> None:
        for number in np.unique(threads).tolist():
            waits = syncs.get(number)
            if waits is None:
                continue
            indices = chosen[threads == number]
            running = waits.running_at(gaps.start_ns[indices])
            holds = running >= 0
            if returned_by is not None:
                holds &= waits.end_ns[running] <= returned_by[indices]
            held_by[indices[holds]] = waits.call[running[holds]]

    look(np.arange(len(gaps)), thread, None)
    free = np.flatnonzero(held_by < 0)
    before = _launch_before(rank, calls, gaps.start_ns[free])
    handed_over = before >= 0
    free, before = free[handed_over], calls.packed_thread.at(before[handed_over])
    is_other = before != thread[free]
    look(free[is_other], before[is_other], call_start)
    return held_by


# -- which calls launched the operations at a gap's edges -----------------------------------------


def _next_launch(rank: Rank, calls: ApiCalls, times: Int64) -> Int64:
    """Return the call that launched what starts at each time, -1 if unknown; the first of several.

    Args:
        rank: whose operations.
        calls: of its process.
        times: int64[m], ascending and distinct.
    """
    nothing = np.empty(0, np.int64)
    gaps, launched = [nothing], [nothing]
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        if len(times) == 0 or len(group) == 0:
            continue
        gap = np.searchsorted(times, group.start_ns)
        gap[gap == len(times)] = 0
        index = np.flatnonzero(times[gap] == group.start_ns)
        index = index[group.packed_length.at(index) > 0]
        gaps.append(gap[index])
        launched.append(launched_by[index])
    gap, call = np.concatenate(gaps), np.concatenate(launched)
    return _one_per_gap(calls, len(times), gap[call >= 0], call[call >= 0], last=False)


def _launch_before(rank: Rank, calls: ApiCalls, times: Int64) -> Int64:
    """Return the call that launched what ends at each time, -1 if unknown; the last of several."""
    nothing = np.empty(0, np.int64)
    gaps, launched = [nothing], [nothing]
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        if len(times) == 0 or len(group) == 0:
            continue
        end = group.end_ns
        gap = np.searchsorted(times, end)
        gap[gap == len(times)] = 0
        ending = (launched_by >= 0) & (end > group.start_ns) & (times[gap] == end)
        gaps.append(gap[ending])
        launched.append(launched_by[ending])
    return _one_per_gap(
        calls, len(times), np.concatenate(gaps), np.concatenate(launched), last=True
    )


def _one_per_gap(calls: ApiCalls, num_gaps: int, gap: Int64, call: Int64, *, last: bool) -> Int64:
    """Choose among the calls of each gap the one entered first, or last."""
    chosen = np.full(num_gaps, -1, np.int64)
    chosen[gap] = call
    several = np.bincount(gap, minlength=num_gaps)[gap] > 1
    gap, call = gap[several], call[several]
    keys = calls.packed_thread.at(call), calls.ends(call), calls.start_ns[call], gap
    order = np.lexsort(keys)
    gap, call = gap[order], call[order]
    edge = np.ones(len(gap), np.bool_)
    differs = gap[1:] != gap[:-1]
    if last:
        edge[:-1] = differs
    else:
        edge[1:] = differs
    chosen[gap[edge]] = call[edge]
    return chosen
