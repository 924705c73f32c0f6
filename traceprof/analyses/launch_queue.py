"""The launch queue: its depth, when it was full and because of what, and late launches.

The queue belongs to a process. With several devices in one process each stall is reported once, on
the rank for whose device the blocked launch was; what was launched late, on the rank that had to
wait for it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.remedies import CUDA_GRAPH, GRAPHS, LARGER_KERNELS, LAUNCH_FIRST
from traceprof.analyses.results import CostResult, facts_of
from traceprof.errors import one_line
from traceprof.host import launch_stalls
from traceprof.host.launch_stalls import LONG_NS, Holder, LateLaunches, Stalls
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.program import Program
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

ID = "launch-queue-stall"


class LaunchQueueStallMetrics(f.Metrics):
    """Numbers of `launch-queue-stall`."""

    stall_ns: Annotated[f.Ns, "the sum of the stalls"]
    num_stalls: Annotated[f.Count, "the number of stalls"]
    max_queue_depth: Annotated[
        f.Count, "the most launches of the process that were pending at once"
    ]
    source: Annotated[
        str, f.one_of("overhead-records", "inferred"), "how stalls are known (see above)"
    ]
    blocked_ns: Annotated[f.Ns, "the time in which at least one stall was open"]
    queue_cap: Annotated[
        f.Count | None,
        "the queue depth at which launches blocked; null if the recording does not show it",
    ]
    queue_cap_scope: Annotated[
        str | None,
        f.one_of("stream", "process"),
        "whether that is the limit of one `stream` or of the whole `process`",
    ]
    usual_launch_ns: Annotated[f.Ns | None, "the duration of a usual launch"]
    num_late_launches: Annotated[
        f.Count,
        "the number of operations that were launched late. An operation is late if it started"
        " within 50 µs of its launch, on a stream that was idle while the thread was blocked; time"
        " that a thread lost before it waited for the GPU anyway does not count",
    ]
    late_launch_ns: Annotated[f.Ns, "the sum of their delays"]
    holder: Annotated[str | None, "the operation that ran longest while launches were blocked"]
    holder_ns: Annotated[f.Ns | None, "how long that operation ran while launches were blocked"]
    coverage: Annotated[f.Fraction, "the share of operations whose launch was captured"]


FINDINGS = {ID: f.FindingKind(LaunchQueueStallMetrics, removed_by=("no-launch-stall",))}

_MAX_NAME = 48  # in a title
_MAX_LATE = 3  # of these, at most so many late launches: the stalls behind them are to be seen, too
_MIN_SHARE = 0.01  # of what is judged: below, a stalled thread is not worth a word, even as info


class LateLaunch(Record, frozen=True):
    """An operation that started late because its thread was blocked."""

    name: str  # a kernel's function or a kind of copy
    stream: int  # where it ran
    idle_since_ns: int  # since when nothing kept it but its launch
    start_ns: int  # when it started
    late_ns: int  # how long its thread was blocked in between


class LaunchQueueResult(CostResult, frozen=True):
    """The launch queue of a rank's process, and the effects of its stalls on the rank."""

    window: Window  # what was looked at
    metrics: LaunchQueueStallMetrics  # the numbers of its finding
    of_process: Stalls  # the stalls of its process, ordered by start
    is_here: Mask  # bool[n], which are of launches for this rank and begin in the window
    costly: Intervals  # when something of this rank waited for a blocked thread
    holders: tuple[Holder, ...]  # what the rank's GPU ran during its stalls, most first
    late: tuple[LateLaunch, ...]  # the latest launches because of any of the process's stalls
    has_unexported: bool  # whether CUPTI's records were captured, but left out of the export
    longest: tuple[f.Evidence, ...]  # the longest stalls, longest first
    program: Program

    @property
    def stalls(self) -> Stalls:
        """The stalls of launches for this rank that begin in the window, ordered by start."""
        return self.of_process.chosen(self.is_here)


def run(rank: Rank, window: Window) -> LaunchQueueResult:
    """Measure the queue of the rank's process, and the stalls of launches for the rank.

    Raises:
        ValueError: the report has no API calls.
    """
    if rank.calls is None:
        raise ValueError(f"rank {rank.rank}: the report has no API calls")
    of_process = launch_stalls.find_stalls(rank)
    queue = launch_stalls.launch_queue(rank)
    is_here = of_process.device == rank.key.device
    if not window.is_whole:
        is_here &= window.holds_start(of_process.start_ns)
    stalls = of_process.chosen(is_here)
    blocked = intervals.union(stalls.start_ns, stalls.end_ns)
    late = None
    if len(of_process):
        late = launch_stalls.late_launches(rank, rank.calls, of_process, window)
    max_depth = int(queue.series_within(window.start_ns, window.end_ns)[1].max(initial=0))
    launch_stalls.release_queue(rank)
    holders = launch_stalls.queue_holders(rank, blocked)
    costly = late.costly if late else intervals.empty()
    metrics = LaunchQueueStallMetrics(
        stall_ns=intervals.total(stalls.end_ns - stalls.start_ns),
        num_stalls=len(stalls),
        max_queue_depth=max_depth,
        source=stalls.source,
        blocked_ns=window.clip(blocked).measure_ns,
        queue_cap=stalls.cap,
        queue_cap_scope=stalls.cap_scope,
        usual_launch_ns=stalls.usual_ns,
        num_late_launches=len(late.late_ns) if late else 0,
        late_launch_ns=intervals.total(late.late_ns) if late else 0,
        holder=holders[0].name if holders else None,
        holder_ns=holders[0].held_ns if holders else None,
        coverage=_coverage(rank, window),
    )
    return LaunchQueueResult(
        **facts_of(rank, window, costly),
        window=window,
        metrics=metrics,
        of_process=of_process,
        is_here=is_here,
        costly=costly,
        holders=holders,
        late=_latest(rank, late) if late else (),
        has_unexported=rank.trace.has_unexported_stalls,
        longest=_evidence(rank, rank.calls, stalls),
        program=rank.program,
    )


def depth_over_time(rank: Rank, window: Window) -> tuple[Int64, npt.NDArray[np.int32]]:
    """Return how many launches of the rank's process were pending, for drawing.

    Returns:
        int64[k], ascending, when the number changed, the first at or before the window's start;
        int32[k], the number from then on. Nothing where the report has no API calls.
    """
    if rank.calls is None:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    return launch_stalls.launch_queue(rank).series_within(window.start_ns, window.end_ns)


def findings(result: LaunchQueueResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the stalls by what they delayed; a full queue before a busy GPU is information."""
    metrics, length = result.metrics, result.window_ns
    cost = f.severity_of_cost(result.costly.measure_ns / length) if length else None
    if cost is None and (not length or metrics.blocked_ns < _MIN_SHARE * length):
        if not result.has_unexported or metrics.queue_cap is not None:
            return []
        how = result.how_to_collect(Part.STALL_RECORDS)
        gap = f.NotApplicable(ID, _UNEXPORTED, how, result.rank)
        return [gap] if metrics.max_queue_depth >= launch_stalls.MIN_CAP else []
    late = [
        f.Evidence(
            max(launch.idle_since_ns, result.window.start_ns),
            launch.start_ns,
            f"stream {launch.stream} idle until {launch.name} was launched,"
            f" {duration(launch.late_ns)} late",
        )
        for launch in result.late[: 0 if cost is None else _MAX_LATE]
    ]
    impact = result.costly.measure_ns
    return result.finding(
        ID,
        _title(result, impact, cost),
        impact,
        metrics,
        _advice(result, cost),
        evidence=(*late, *result.longest)[: f.MAX_EVIDENCE],
        severity=cost or f.Severity.INFO,
    )


def _latest(rank: Rank, late: LateLaunches) -> tuple[LateLaunch, ...]:
    columns = (late.group, late.index, late.stream, late.gap_start_ns, late.start_ns, late.late_ns)
    rows: list[list[int]] = np.stack([column[: f.MAX_EVIDENCE] for column in columns], 1).tolist()
    return tuple(
        LateLaunch(rank.operation_name(group, index), stream, idle_since_ns, start_ns, late_ns)
        for group, index, stream, idle_since_ns, start_ns, late_ns in rows
    )


def _coverage(rank: Rank, window: Window) -> float:
    known = total = 0
    for group, call in zip(rank.operations.groups, rank.launched_by, strict=True):
        inside = call if window.is_whole else call[window.holds_start(group.start_ns)]
        total += len(inside)
        known += int(np.count_nonzero(inside >= 0))
    return known / total if total else 1.0


def _evidence(rank: Rank, calls: ApiCalls, stalls: Stalls) -> tuple[f.Evidence, ...]:
    evidence = []
    for index in np.argsort(stalls.start_ns - stalls.end_ns, kind="stable")[
        : f.MAX_EVIDENCE
    ].tolist():
        start, end = int(stalls.start_ns[index]), int(stalls.end_ns[index])
        call = int(stalls.call[index])
        name = rank.trace.api_names.get(calls.name_id(call)) if call >= 0 else None
        held_by = rank.name_at(start)
        behind = f" while {held_by} ran" if held_by else ""
        evidence.append(f.Evidence(start, end, f"{name or 'a launch'} blocked{behind}"))
    return tuple(evidence)


def _title(result: LaunchQueueResult, impact: int, cost: f.Severity | None) -> str:
    metrics = result.metrics
    late = result.late[0].name if result.late else ""
    if metrics.num_stalls == 0:
        return (
            f"A thread that was blocked in launches for another GPU launched {late} and others"
            f" {duration(impact)} late"
        )
    holder = ""
    if metrics.holder is not None and metrics.holder_ns is not None:
        others = "" if 2 * metrics.holder_ns >= metrics.blocked_ns else " and others"
        holder = f" behind {one_line(metrics.holder, _MAX_NAME)}{others}"
    blocked = (
        f"The launch queue was full: {counted(metrics.num_stalls, 'launch')} blocked for"
        f" {duration(metrics.stall_ns)}"
    )
    if cost is not None:
        return f"{blocked}{holder}; {late} on an idle stream started {duration(impact)} late"
    waited = f"other work waited {duration(impact)}" if impact else "no other work waited"
    return f"{blocked}{holder}; {waited} for them"


def _advice(result: LaunchQueueResult, cost: f.Severity | None) -> tuple[str, ...]:
    program, fewer_launches = result.program, CUDA_GRAPH
    if program.is_pytorch or program.uses_directives:  # kernels of directives are in no graph
        fewer_launches = GRAPHS if program.is_pytorch else LARGER_KERNELS
    costly_advice = LAUNCH_FIRST, fewer_launches, _SHORTEN, _LIMIT
    advice = [*(_HEALTHY_ADVICE if cost is None else costly_advice)]
    if result.has_unexported and result.metrics.source == "inferred":
        advice.append(f"{_REEXPORT}; {result.how_to_collect(Part.STALL_RECORDS)}")
    return tuple(advice)


_UNEXPORTED = (
    "records of a full command buffer were captured but not exported, and no stall of more than"
    " 50 µs can be inferred from the launches"
)
_REEXPORT = "These stalls are inferred: CUPTI's own records were captured but not exported"
_SHORTEN = (
    "Shorten what holds the queue: if it is communication that waits for a peer, start the"
    " peer's part earlier or send in smaller pieces"
)
_LIMIT = (
    "Keep the host from running so far ahead: one cudaEventSynchronize"
    " (torch.cuda.Event.synchronize()) of the previous step at the start of each step limits"
    " the queue to two steps"
)
_HEALTHY_ADVICE = (
    (
        "Nothing needs to be done while the GPU is busy: the host has run as far ahead as it can;"
        " its next launch waits for the GPU, and the GPU does not wait for it"
    ),
    (
        "Read times of host ranges with care: in a range that launches, the host waited for the"
        " GPU; what held the queue is in `holder`"
    ),
    LAUNCH_FIRST,
)

PAGE = {
    "long": f"{LONG_NS // 1000} µs",
    "advice": f.bullets((LAUNCH_FIRST, GRAPHS, CUDA_GRAPH, LARGER_KERNELS, _SHORTEN, _LIMIT)),
    "healthy_advice": f.bullets(_HEALTHY_ADVICE),
}
