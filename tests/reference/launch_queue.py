"""An independent reference for the launch queue, for tests only: plain Python, one event at a time.

It shares no code with ``traceprof`` and reads the export itself. Times are ns of the file's clock.

* launch: a call that some operation names by (process, correlation id), with all its operations; or
  operations without a call that were queued when the capture began; or, after the last call whose
  operation was recorded, a call of a name that launches elsewhere (its operation was cut off)
* pending: from the call's return or the first operation's start, whichever is first, to the end of
  the last operation. A launch finds pending what entered before it was called and is not over then.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.reference.nsight_export import (
    COMMUNICATION,
    COMPUTE,
    LOW_24_BITS,
    Call,
    Export,
    Operation,
    export_of,
    function_name,
    integers,
)
from tests.reference.spans import Span, clipped, covered, length, union, without

EVER = 1 << 80
LONG, NEAR, PROMPT, MAX_ENDING, MIN_CAP = 50_000, 100_000, 50_000, 16, 256
TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
DEVICE_TO_DEVICE = 8


@dataclass(eq=False)
class Launch:
    call: Call | None
    operations: list[Operation] = field(default_factory=list)

    @property
    def enter(self) -> int:
        if self.call is None:
            return -EVER
        starts = [operation.start for operation in self.operations]
        return max(min([self.call.end, *starts]), self.call.start)

    @property
    def leave(self) -> int:
        ends = [operation.end for operation in self.operations]
        return max(*ends, self.enter) if ends else EVER

    @property
    def first(self) -> Operation | None:
        return min(self.operations, key=lambda operation: operation.start, default=None)

    @property
    def queue(self) -> tuple[int, int] | None:
        takes_place = any(
            operation.copy_kind in (None, DEVICE_TO_DEVICE) for operation in self.operations
        )
        return (self.first.device, self.first.stream) if self.first and takes_place else None


@dataclass
class Answer:
    """What the analysis must say of one rank."""

    pid: int
    device: int
    source: str | None = None
    stalls: list[tuple[int, int, int]] = field(default_factory=list)
    cap: int | None = None
    scope: str | None = None
    usual: int = 0
    series: list[tuple[int, int]] = field(default_factory=list)
    max_depth: int = 0
    blocked_ns: int = 0
    impact_ns: int = 0
    late: list[tuple[int, int]] = field(default_factory=list)
    holders: dict[str, int] = field(default_factory=dict)
    coverage: float = 0.0


@dataclass
class Process:
    """What a process launched, and what that says of every window."""

    pid: int
    devices: list[int]
    operations: list[Operation]
    source: str | None = None
    cap: int | None = None
    scope: str | None = None
    usual: int = 0
    stalls: list[tuple[int, int, int, int]] = field(default_factory=list)
    series: list[tuple[int, int]] = field(default_factory=list)
    waited: dict[int, list[int]] = field(default_factory=dict)


def reference(path: Path, time_range: Span | None = None) -> list[Answer]:
    """The launch queue of each rank, ordered by (pid, device)."""
    return [answer for process in read(path) for answer in answers(process, time_range)]


def read(path: Path) -> list[Process]:
    """The processes of an export that have GPU operations, ordered by pid."""
    export = export_of(path)
    operations: dict[int, list[Operation]] = defaultdict(list)
    for process, device in sorted(export.ranks):
        of_rank = export.ranks[process, device]
        operations[process] += sorted(of_rank, key=lambda op: (TABLES.index(op.table), *op[:2]))
    processes = []
    for process in sorted(operations, key=lambda number: ((number >> 24) & LOW_24_BITS, number)):
        pid, of_process = (process >> 24) & LOW_24_BITS, operations[process]
        if "CUPTI_ACTIVITY_KIND_RUNTIME" not in export.tables:
            devices = sorted({operation.device for operation in of_process})
            processes.append(Process(pid, devices, of_process))
        else:
            processes.append(queued(pid, process, of_process, export, records_of(export, process)))
    return processes


def queued(
    pid: int,
    process: int,
    operations: list[Operation],
    export: Export,
    records: list[tuple[int, int, int, int]],
) -> Process:
    """The launch queue of one process."""
    calls = [call for call in export.calls.get(process, []) if call.correlation >= 0]
    launches: dict[Any, Launch] = {}
    begun: dict[tuple[int, int], int] = {}
    for op in operations:
        if op.call:
            stream = op.device, op.stream
            begun[stream] = min(begun.get(stream, EVER), op.start)
    for op in operations:
        if op.call:
            launches.setdefault(id(op.call), Launch(op.call)).operations.append(op)
        elif op.correlation and op.start <= begun.get((op.device, op.stream), EVER):
            launches.setdefault(("before", op.correlation), Launch(None)).operations.append(op)
    launched = [launch for launch in launches.values() if launch.call]
    names = {launch.call.name for launch in launched if launch.call} - {""}
    last = max((launch.call.start for launch in launched if launch.call), default=-EVER)
    kept = [operation.start for launch in launches.values() for operation in launch.operations]
    last = max(last, min(kept, default=EVER))
    everything = list(launches.values())
    everything += [Launch(call) for call in calls if call.start > last and call.name in names]

    depth = depths(everything)
    by_queue: dict[Any, list[Launch]] = defaultdict(list)
    for launch in everything:
        if launch.queue:
            by_queue[launch.queue].append(launch)
    stream_depth = {
        key: value for queue in by_queue.values() for key, value in depths(queue).items()
    }
    captured = [launch for launch in everything if launch.call]
    usual = usual_launch(captured, depth)
    ends = sorted(operation.end for operation in operations)
    devices = sorted({operation.device for operation in operations})
    if records:
        source = "overhead-records"
        matched = [export.call_of(process, number, start) for start, _, _, number in records]
        blocked = {id(launch) for launch in matched if launch}
        cap, scope, _ = learn(captured, by_queue, depth, stream_depth, blocked)
        stalls = [
            (start, end, thread, device_of(call, launches, devices))
            for (start, end, thread, _), call in zip(records, matched, strict=True)
        ]
    else:
        source, stalls = "inferred", []
        any_suspect = [launch for launch in captured if is_suspect(launch)]
        usual = usual if any_suspect else 0
        long = max(10 * usual, LONG)
        blocked = {
            id(launch.call)
            for launch in any_suspect
            if launch.call
            and launch.call.end - launch.call.start > long
            and makes_room(launch.call, ends)
        }
        cap, scope, at_cap = (
            learn(captured, by_queue, depth, stream_depth, blocked) if blocked else (None, None, {})
        )
        for item in captured:
            if item.call and id(item.call) in blocked and id(item) in at_cap:
                device = device_of(item.call, launches, devices)
                stalls.append((item.call.start + usual, item.call.end, item.call.thread, device))
    stalls.sort(key=lambda stall: stall[0])
    return Process(
        pid, devices, operations, source, cap, scope, usual, stalls, time_series(everything),
        waits(calls, captured),
    )  # fmt: skip


def answers(process: Process, time_range: Span | None = None) -> list[Answer]:
    """What the analysis must say of a process's ranks in their own windows, or in this one."""
    if process.source is None:
        return [Answer(process.pid, device) for device in process.devices]
    operations, stalls, series = process.operations, process.stalls, process.series
    times = [time for time, _ in series]
    result = []
    for device in process.devices:
        own = [operation for operation in operations if operation.device == device]
        start, end = time_range or (
            min(operation.start for operation in own),
            max(operation.end for operation in own),
        )
        closed = time_range is None
        mine = [stall for stall in stalls if stall[3] == device]
        mine = [stall for stall in mine if closed or start <= stall[0] < end]
        spans = union((first, stop) for first, stop, _, _ in mine)
        inside = [operation for operation in own if closed or start <= operation.start < end]
        late, costly = late_operations(own, stalls, process.waited, start, end + closed)
        before = bisect_right(times, start) - 1
        shown = series[max(before, 0) : bisect_right(times, end)]
        held: Counter[str] = Counter()
        for operation in own:
            during = covered(spans, operation.start, operation.end)
            held[holder_of(operation)] += during
        result.append(
            Answer(
                process.pid,
                device,
                process.source,
                [stall[:3] for stall in mine],
                process.cap,
                process.scope,
                process.usual,
                shown,
                max((number for _, number in shown), default=0),
                covered(spans, start, end),
                covered(costly, start, end),
                late,
                {name: total for name, total in held.items() if total},
                sum(operation.call is not None for operation in inside) / len(inside)
                if inside
                else 1.0,
            )
        )
    return result


def depths(launches: list[Launch]) -> dict[int, int]:
    """How many of the launches were pending when each of them was called."""
    entered = sorted(launch.enter for launch in launches)
    left = sorted(launch.leave for launch in launches)
    depth_of = {}
    for launch in launches:
        time = launch.call.start if launch.call else -EVER
        depth_of[id(launch)] = bisect_left(entered, time) - bisect_right(left, time)
    return depth_of


def time_series(launches: list[Launch]) -> list[tuple[int, int]]:
    changes: Counter[int] = Counter()
    for launch in launches:
        changes[launch.enter] += 1
        changes[launch.leave] -= 1
    depth = changes.pop(-EVER, 0)
    changes.pop(EVER, None)
    starts = [operation.start for launch in launches for operation in launch.operations]
    series = [(min([*starts, *changes]) - 1, depth)] if depth else []
    for time in sorted(changes):
        if changes[time]:
            depth += changes[time]
            series.append((time, depth))
    return series


def usual_launch(captured: list[Launch], depth: dict[int, int]) -> int:
    greatest = max((depth[id(launch)] for launch in captured), default=0)
    calls = [(launch.call, depth[id(launch)]) for launch in captured if launch.call]
    calm = [call.end - call.start for call, at in calls if 2 * at < greatest]
    if len(calm) < 10:
        calm = [call.end - call.start for call, _ in calls if call.end - call.start <= LONG]
    return int(median(calm)) if calm else 0


def is_suspect(launch: Launch) -> bool:
    """Long, and neither from or to pageable memory nor waiting for its own operation."""
    call = launch.call
    if call is None or call.end - call.start <= LONG:
        return False
    if any(operation.pageable for operation in launch.operations):
        return False
    return all(operation.start >= call.end for operation in launch.operations)


def makes_room(call: Call, ends: list[int]) -> bool:
    """Whether it returned as an operation ended, and few did while it lasted."""
    stop = bisect_right(ends, call.end)
    near = any(abs(end - call.end) <= NEAR for end in ends[max(stop - 1, 0) : stop + 1])
    return near and stop - bisect_right(ends, call.start) <= MAX_ENDING


def learn(
    captured: list[Launch],
    by_queue: dict[Any, list[Launch]],
    depth: dict[int, int],
    stream_depth: dict[int, int],
    blocked: set[int],
) -> tuple[int | None, str | None, dict[int, bool]]:
    """The limit, whose it is, and the launches that were made at one."""
    at_cap: dict[int, bool] = {}

    def limit(launches: list[Launch], depths: dict[int, int]) -> int | None:
        at = [(launch, depths[id(launch)]) for launch in launches]
        cap = max((number for _, number in at), default=0)
        there = [launch for launch, number in at if 100 * number >= 99 * cap]
        deep = [launch for launch, number in at if 2 * number >= cap and id(launch.call) in blocked]
        num_there = sum(id(launch.call) in blocked for launch in there)
        if cap < MIN_CAP or num_there < 3 or 2 * num_there < len(deep):
            return None
        at_cap.update((id(launch), True) for launch in there)
        return cap

    of_streams = [most for queue in by_queue.values() if (most := limit(queue, stream_depth))]
    of_process = limit(captured, depth)
    if of_streams:
        return max(of_streams), "stream", at_cap
    return of_process, "process" if of_process else None, at_cap


def device_of(call: Call | None, launches: dict[Any, Launch], devices: list[int]) -> int:
    launch = launches.get(id(call)) if call else None
    return launch.first.device if launch and launch.first else devices[0]


def waits(calls: list[Call], captured: list[Launch]) -> dict[int, list[int]]:
    """When each thread returned from waiting for the GPU, sorted."""
    returns: dict[int, list[int]] = defaultdict(list)
    blocking = {
        id(launch.call)
        for launch in captured
        if launch.call and any(op.start < launch.call.end for op in launch.operations)
    }
    for call in calls:
        is_wait = id(call) in blocking or "Synchronize" in call.name
        if is_wait and call.end - call.start > LONG:
            returns[call.thread].append(call.end)
    return {thread: sorted(ends) for thread, ends in returns.items()}


def late_operations(
    own: list[Operation],
    stalls: list[tuple[int, int, int, int]],
    waited: dict[int, list[int]],
    start: int,
    end: int,
) -> tuple[list[tuple[int, int]], list[Span]]:
    """(start, how late) of each operation that starts in [start, end), latest first; the cost."""
    compute = union(
        (operation.start, operation.end) for operation in own if operation.kind == COMPUTE
    )
    blocked: dict[int, list[Span]] = {
        thread: union((first, stop) for first, stop, of, _ in stalls if of == thread)
        for thread in {stall[2] for stall in stalls}
    }
    late, costly = [], []
    over: dict[int, int] = {}
    for operation in sorted(own, key=lambda op: (op.start, op.end)):
        since, over[operation.stream] = (
            over.get(operation.stream, -EVER),
            max(over.get(operation.stream, -EVER), operation.end),
        )
        call = operation.call
        if call is None or call.thread not in blocked or not start <= operation.start < end:
            continue
        ends = waited.get(call.thread, [])
        before = bisect_right(ends, call.start)
        since = max(since, ends[before - 1] if before else -EVER)
        until = min(operation.start, call.end)
        if operation.start - call.end > PROMPT or until <= since:
            continue
        spans = clipped(blocked[call.thread], since, until)
        if spans:
            late.append((operation.start, length(spans)))
            costly += spans if operation.kind == COMMUNICATION else without(spans, compute)
    return sorted(late, key=lambda pair: (-pair[1], pair[0])), union(costly)


def holder_of(operation: Operation) -> str:
    """What the operations of one sort are called."""
    if operation.table == "MEMCPY":
        return f"copy of kind {operation.copy_kind}"
    return function_name(operation.name or "") if operation.table == "KERNEL" else operation.table


def records_of(export: Export, process: int) -> list[tuple[int, int, int, int]]:
    """(start, end, thread, correlation id) of a process's records of a full command buffer."""
    kinds = [
        number
        for number, name, label in export.rows("ENUM_CUPTI_OVERHEAD_TYPE", "id", "name", "label")
        if re.search("command.buffer.full", f"{name} {label}", re.IGNORECASE)
    ] or [8]
    records = []
    columns = ("start", "end", "globalTid", "correlationId", "overheadType")
    for row in export.rows("CUPTI_ACTIVITY_KIND_OVERHEAD", *columns):
        start, end, thread, correlation, kind = integers(*row)
        if start is None or thread is None or correlation is None or kind not in kinds:
            continue
        if thread & ~LOW_24_BITS == process:
            stop = max(start, -EVER if end is None else end)
            records.append((start, stop, thread, correlation))
    return sorted(records, key=lambda record: record[0])
