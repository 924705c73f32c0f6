"""The stalls of one rank in a window, with evidence for the reason of each.

A stall shows that a thread was held up; other parts of the report may show the cause. A function or
range of garbage collection holds all threads of Python up. A call of the operating system that
blocks is a lock, a file or a socket. Thread switches show that the thread was off its core. Without
these, other threads of the process say a little: if another one stalls at the same time, the whole
process was held up; if another one goes on, only the one was.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceprof import intervals
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.host import host_code as names
from traceprof.host.host_code import functions_named, ranges_named
from traceprof.host.idle_causes import IdleCause, UnknownCause, idle_causes, why_unknown
from traceprof.host.stalls import HostStalls, host_stalls
from traceprof.host.thread_evidence import host_evidence
from traceprof.intervals import Int64, Intervals
from traceprof.run.machines import Cores, machine_beside
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import OnlyStep, covered_per_step, only_step
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in, sums
from traceprof.trace.model.parts import Part
from traceprof.units import duration

GARBAGE, BLOCKED, OFF_CORE = "garbage collection", "blocking call", "off its core"
PROCESS, THREAD, UNKNOWN = "whole process", "one thread", "unknown"
REASONS = (GARBAGE, BLOCKED, OFF_CORE, PROCESS, THREAD, UNKNOWN)
"""What held a thread up, if its own process shows it, the surest first."""
_MAX_EXAMINED = 256  # stalls whose reason is looked for, the longest
_MIN_EVENTS = 5  # of other threads, in a stall, that show that they go on


class RankStalls(Rows, frozen=True):
    """Stalls of the threads that launch a rank's work, in a window, in times of its report."""

    rank: int  # the rank's number
    report: int  # index of its report
    window_ns: int  # the length of the window
    stalled_ns: int  # the stalled time, summed over threads
    longest_ns: int  # the length of the longest stall, its usual time included
    idle_ns: int  # how much of the rank's idle time is stalled: that cause of `idle_causes`
    idle_per_step_ns: int | None  # how much of it the mean steady step holds; None without steps
    only_step: OnlyStep | None  # the step in which it stalls, if that is only one of several
    coverage: float  # the share of idle time whose next operation has a known launch
    start_ns: Int64  # int64[n], when each stall began
    end_ns: Int64
    stalled: Intervals  # when a thread was stalled, for those of the window
    reason_ns: tuple[int, ...]  # of each of `REASONS`, how much of the stalls it accounts for
    blocked_in: str  # the blocking call with most of that time, empty for none
    evidence: tuple[Evidence, ...]  # the longest stalls, longest first, with their usual time
    is_pytorch: bool  # whether the program is known to be PyTorch
    # the part that would show more of what held threads up, thread switches or calls of the
    # system, and how to record it; None if the report holds both
    missing: tuple[Part, str] | None
    unknown: UnknownCause | None  # why stalls cannot be known, None if they can
    cores: Cores | None  # of the machine, if `doctor` left a file beside the report


def rank_stalls(rank: Rank, window: Window) -> RankStalls:
    """Return the stalls of a rank that has a GPU."""
    unknown = why_unknown(rank)
    stalls = host_stalls(rank)
    pieces = np.empty(0, np.int64)
    if unknown is None and len(stalls):
        inside = np.minimum(stalls.stop_ns, window.end_ns) > np.maximum(
            stalls.begin_ns, window.start_ns
        )
        launching = is_in(stalls.thread, _launching_threads(rank))
        pieces = np.flatnonzero(inside & launching[stalls.piece])
    begin = np.maximum(stalls.begin_ns[pieces], window.start_ns)
    stop = np.minimum(stalls.stop_ns[pieces], window.end_ns)
    rows, stalled_ns = sums(stalls.piece[pieces], stop - begin)
    lengths = stalls.end_ns[rows] - stalls.start_ns[rows]
    longest = rows[intervals.largest(lengths, _MAX_EXAMINED)]
    reasons, blocked_in = _reasons(rank, stalls, longest)
    reason_ns = dict.fromkeys(REASONS, 0)
    for row, reason in zip(longest.tolist(), reasons, strict=True):
        reason_ns[reason] += int(stalled_ns[np.searchsorted(rows, row)])
    causes = idle_causes(rank) if unknown is None else None
    idle = intervals.empty() if causes is None else causes.of(IdleCause.STALLED)
    machine = machine_beside(rank.trace.path, rank.trace.session.host) if len(rows) else None
    return RankStalls(
        rank=rank.rank,
        report=rank.report,
        window_ns=window.length_ns,
        stalled_ns=int(stalled_ns.sum()),
        longest_ns=int(lengths.max(initial=0)),
        idle_ns=0 if causes is None else causes.within(window)[IdleCause.STALLED],
        idle_per_step_ns=covered_per_step(rank, window, idle),
        only_step=only_step(rank, window, idle, is_idle=True),
        coverage=0.0 if causes is None else causes.coverage(window),
        start_ns=stalls.start_ns[rows],
        end_ns=stalls.end_ns[rows],
        stalled=intervals.union(begin, stop),
        reason_ns=tuple(reason_ns.values()),
        blocked_in=blocked_in,
        evidence=tuple(_evidence(stalls, longest[:MAX_EVIDENCE].tolist())),
        is_pytorch=rank.program.is_pytorch,
        missing=_missing(rank),
        unknown=unknown,
        cores=None if machine is None else machine.cores,
    )


def _launching_threads(rank: Rank) -> Int64:
    calls = rank.calls
    assert calls is not None  # noqa: S101  (else there are no stalls)
    launches = np.concatenate([call[call >= 0] for call in rank.launched_by])
    return calls.packed_thread.counted(launches)[0]


def _missing(rank: Rank) -> tuple[Part, str] | None:
    trace, parts = rank.trace, (Part.THREAD_SWITCHES, Part.SYSTEM_CALLS)
    lacking = next((part for part in parts if not trace.holds(part)), None)
    return None if lacking is None else (lacking, trace.how_to_collect(lacking))


def _evidence(stalls: HostStalls, rows: list[int]) -> Iterator[Evidence]:
    for row in rows:
        start, end = int(stalls.start_ns[row]), int(stalls.end_ns[row])
        usual = duration(int(stalls.usual_ns[row]))
        yield Evidence(start, end, f"{stalls.names[row]}: {usual} as a rule")


def _reasons(rank: Rank, stalls: HostStalls, rows: Int64) -> tuple[list[str], str]:
    start, end, thread = stalls.start_ns[rows], stalls.end_ns[rows], stalls.thread[rows]
    half = (end - start) / 2
    reasons = np.full(len(rows), UNKNOWN, dtype=object)
    if not len(rows):
        return [], ""
    num_others, others_stall = _other_threads(rank, stalls, rows)
    reasons[num_others >= _MIN_EVENTS] = THREAD
    reasons[others_stall > half] = PROCESS
    reasons[_off_core_ns(rank, start, end, thread) > half] = OFF_CORE
    blocked = _blocked(rank, start, end, thread)
    reasons[[len(name) > 0 for name in blocked]] = BLOCKED
    garbage = garbage_collection(rank)
    reasons[intervals.covered_within(garbage, start, end) > half] = GARBAGE
    spent: dict[str, int] = {}
    for name, ns, reason in zip(blocked, (end - start).tolist(), reasons.tolist(), strict=True):
        if reason == BLOCKED:
            spent[name] = spent.get(name, 0) + ns
    return reasons.tolist(), max(spent, key=lambda name: spent[name], default="")


def _other_threads(rank: Rank, stalls: HostStalls, rows: Int64) -> tuple[Int64, Int64]:
    """Events that other threads of the process began in stalls, and the ns of their own stalls."""
    start, end, thread = stalls.start_ns[rows], stalls.end_ns[rows], stalls.thread[rows]
    calls, operators = rank.calls, rank.trace.operators(rank.process)
    assert calls is not None  # noqa: S101  (else there are no stalls)
    num = np.zeros(len(rows), np.int64)
    for events in (calls, operators):
        if events is None or len(events.packed_thread.distinct) < 2:
            continue
        begins = events.start_ns
        order = np.argsort(begins, kind="stable")
        first = np.searchsorted(begins[order], start, side="right")
        stop = np.searchsorted(begins[order], end)
        for row, (low, high) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
            by = events.packed_thread.at(order[low:high])
            num[row] += int((by != thread[row]).sum())
    stall_ns = np.zeros(len(rows), np.int64)
    for number in distinct_values(thread).tolist():
        others = stalls.thread[stalls.piece] != number
        spans = intervals.union(stalls.begin_ns[others], stalls.stop_ns[others])
        chosen = thread == number
        stall_ns[chosen] = intervals.covered_within(spans, start[chosen], end[chosen])
    return num, stall_ns


def _off_core_ns(rank: Rank, start: Int64, end: Int64, thread: Int64) -> Int64:
    evidence, off = host_evidence(rank), np.zeros(len(start), np.int64)
    if evidence is None:
        return off
    for number in distinct_values(thread).tolist():
        if (evidence.activity.switches.thread == number).any():
            asleep, chosen = evidence.thread(number).sleep.asleep, thread == number
            off[chosen] = intervals.covered_within(asleep, start[chosen], end[chosen])
    return off


def _blocked(rank: Rank, start: Int64, end: Int64, thread: Int64) -> list[str]:
    """Blocking system call that took over half of each span, empty for none."""
    spans = rank.trace.host_activity(rank.process).system_calls
    blocks = np.array([bool(names.BLOCKING_SYSTEM_CALL.match(name)) for name in spans.names])
    rows = np.flatnonzero(blocks[spans.name])
    calls = []
    for low, high, number in zip(start.tolist(), end.tolist(), thread.tolist(), strict=True):
        inside = np.minimum(spans.end_ns[rows], high) - np.maximum(spans.start_ns[rows], low)
        inside[spans.thread[rows] != number] = 0
        longest = int(inside.argmax()) if len(rows) else -1
        is_long = longest >= 0 and 2 * int(inside[longest]) > high - low
        calls.append(spans.names[int(spans.name[rows[longest]])] if is_long else "")
    return calls


def garbage_collection(rank: Rank) -> Intervals:
    """When any thread of the process collected garbage: no other Python runs meanwhile."""
    functions, ranges = (
        named(rank.trace, rank.process, names.GARBAGE_COLLECTION)
        for named in (functions_named, ranges_named)
    )
    return intervals.merge(functions.covered, ranges.covered)
