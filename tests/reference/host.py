"""An independent reference for host-sync and pageable-copy, for tests only.

It shares no code with ``traceprof`` beyond what `tests.reference.breakdown` reads (an export's
strings and the names of communication kernels), and walks over plain lists. What the waits cost is
in `tests.reference.idle_causes`.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from tests.reference.breakdown import Range, default_is_communication, rows, step_ranges

Interval = tuple[int, int]
LOW_24_BITS = 0xFFFFFF
LATENCY, TOLERANCE, LARGE = 20_000, 1_000_000, 65_536
NEVER = 1 << 80
# Names of Nsight's ENUM_CUDA_MEM_KIND, whose ids never changed.
PAGEABLE, PINNED, UNKNOWN = 0, 1, 7
PEER = 10
WAITING = {
    "cudaDeviceSynchronize",
    "cudaThreadSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
}


class Call(NamedTuple):
    start: int
    end: int
    thread: int
    name: str
    row: int


class Operation(NamedTuple):
    start: int
    end: int
    kind: str  # compute, communication or copy
    call: Call | None
    row: dict[str, Any] | None  # of a memcpy


class Answer(NamedTuple):
    """What the package must say of one rank; ns and counts."""

    idle: int
    num_syncs: int
    blocked: int
    api: str | None
    blocked_per_step: int | None
    copies: tuple[int, int, int | None, int]  # number, bytes, host blocked, cost


def is_waiting(name: str) -> bool:
    if "Async" in name:
        return False
    copies = name.startswith(("cudaMemcpy", "cuMemcpy")) and "emcpyPeer" not in name
    return name in WAITING or copies


def union(spans: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(spans):
        if end > start and merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def without(spans: list[Interval], holes: list[Interval]) -> list[Interval]:
    """What disjoint spans cover and disjoint holes do not."""
    left = []
    for start, end in spans:
        at = start
        for low, high in holes:
            if high <= at or low >= end:
                continue
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return left


def covered(start: int, end: int, spans: list[Interval]) -> int:
    return sum(max(0, min(end, high) - max(start, low)) for low, high in spans)


class Export:
    """One export, read into lists."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            db.text_factory = lambda data: data.decode("utf-8", "replace")
            self.strings: dict[Any, str] = dict(rows(db, "StringIds", "id", "value"))
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            self.has_calls = "CUPTI_ACTIVITY_KIND_RUNTIME" in tables
            self.calls: dict[tuple[int, int], list[Call]] = defaultdict(list)
            self.of_process: dict[int, list[tuple[int, Call]]] = defaultdict(list)
            self._read_calls(db)
            self.ranks: dict[tuple[int, int], list[Operation]] = defaultdict(list)
            self._read_operations(db)
            self.ranges: dict[int, list[tuple[int, int, str, int]]] = defaultdict(list)
            self._read_ranges(db)

    def _read_calls(self, db: sqlite3.Connection) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        table = rows(db, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns)
        for row, (start, end, thread, correlation, name) in enumerate(table):
            if start is None or thread is None or correlation is None:
                continue
            text = re.sub(r"_v\d+(_ptsz|_ptds)?$", "", self.strings.get(name, ""))
            call = Call(start, max(start, end or start), thread, text, row)
            process = thread & ~LOW_24_BITS
            self.calls[process, correlation].append(call)
            self.of_process[process].append((correlation, call))
        for calls in self.calls.values():
            calls.sort()
        for of_thread in self.of_process.values():
            of_thread.sort()

    def _launch(self, process: int, correlation: int | None, start: int) -> Call | None:
        calls = self.calls.get((process, correlation)) if correlation is not None else None
        if not calls:
            return None
        return ([call for call in calls if call.start <= start] or calls[:1])[-1]

    def _read_operations(self, db: sqlite3.Connection) -> None:
        base = ("start", "end", "globalPid", "deviceId", "correlationId")
        copy = ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
        tables = {
            "KERNEL": ("shortName", "demangledName"),
            "MEMCPY": copy,
            "MEMSET": (),
            "GRAPH_TRACE": (),
        }
        for table, more in tables.items():
            for values in rows(db, f"CUPTI_ACTIVITY_KIND_{table}", *base, *more):
                start, end, process, device, correlation = values[:5]
                if None in (start, end, process, device) or end < start:
                    continue
                kind, row = "compute", None
                if table == "KERNEL":
                    names = [self.strings.get(value) for value in values[5:]]
                    if default_is_communication(*names):
                        kind = "communication"
                elif table == "MEMCPY":
                    row = dict(zip(copy, values[5:], strict=True))
                    ends = row["srcDeviceId"], row["dstDeviceId"]
                    other = None not in ends and ends[0] != ends[1]
                    kind = "communication" if other or row["copyKind"] == PEER else "copy"
                elif table == "MEMSET":
                    kind = "copy"
                call = self._launch(process, correlation, start)
                self.ranks[process, device].append(Operation(start, end, kind, call, row))

    def _read_ranges(self, db: sqlite3.Connection) -> None:
        columns = ("text", "textId", "eventType", "start", "end", "globalTid")
        for text, text_id, kind, start, end, thread in rows(db, "NVTX_EVENTS", *columns):
            name = text if text is not None else self.strings.get(text_id)
            if kind in (59, 60) and name is not None and start is not None and thread is not None:
                closed = NEVER if end is None else end
                self.ranges[thread & ~LOW_24_BITS].append((start, closed, name, thread))


class RankReference:
    """The answers for one rank."""

    def __init__(self, export: Export, process: int, device: int) -> None:
        self.process = process
        self.has_calls = export.has_calls
        self.operations = export.ranks[process, device]
        self.calls = export.of_process.get(process, [])
        self.busy = union((operation.start, operation.end) for operation in self.operations)
        reads = {
            operation.call
            for operation in self.operations
            if operation.row and operation.row["dstKind"] == PAGEABLE and operation.call
        }
        self.waits = [call for _, call in self.calls if is_waiting(call.name) or call in reads]
        named = [Range(start, end, name) for start, end, name, _ in export.ranges.get(process, [])]
        self.steps = [(step.start, step.end) for step, _ in step_ranges(sorted(named), None)]

    def window(self) -> Interval:
        first = min(operation.start for operation in self.operations)
        return first, max(operation.end for operation in self.operations)

    def clocks_disagree(self) -> bool:
        launched = [operation for operation in self.operations if operation.call]
        early = [
            operation
            for operation in launched
            if operation.call.start - operation.start > TOLERANCE  # type: ignore[union-attr]
        ]
        reads = [
            operation
            for operation in launched
            if operation.row and operation.row["dstKind"] == PAGEABLE
        ]
        late = [read for read in reads if read.end - read.call.end > TOLERANCE]  # type: ignore[union-attr]
        return len(early) > 0.01 * len(launched) or len(late) > 0.01 * len(reads)

    def gaps(self, window: Interval) -> list[Interval]:
        own = self.window()
        span = [(min(own[0], window[0]), max(own[1], window[1]))]
        gaps, at = [], span[0][0]
        for start, end in [*self.busy, (span[0][1], span[0][1])]:
            if start > at:
                gaps.append((at, start))
            at = max(at, end)
        return [(s, e) for s, e in gaps if e > window[0] and s < window[1]]

    def answer(self, steady: list[Interval], part: Interval | None = None) -> Answer:
        """Answer of a part of the recording, by default of all of it.

        Args:
            steady: the ranges of the steps in it that are steady.
            part: of the recording.
        """
        window = part or self.window()
        idle = sum(min(e, window[1]) - max(s, window[0]) for s, e in self.gaps(window))
        copies = self.copies(window, is_all=part is None)
        if not self.has_calls or self.clocks_disagree():
            return Answer(idle, 0, 0, None, None, copies)
        return Answer(idle, *self.syncs(window), self.per_step(window, steady), copies)

    def chosen(self, window: Interval) -> set[Call]:
        """The synchronizing calls that host-sync judges."""
        threads = {operation.call.thread for operation in self.operations if operation.call}
        found = [
            call
            for call in self.waits
            if window[0] <= call.start < window[1]
            and call.thread in threads
            and (not self.steps or any(low <= call.start < high for low, high in self.steps))
        ]
        # What lies within another one of its thread is a part of that call.
        outer: set[Call] = set()
        reach: dict[int, int] = {}
        order = {call: place for place, (_, call) in enumerate(self.calls)}
        for call in sorted(found, key=lambda call: (call.start, -call.end, order[call])):
            if call.end > reach.get(call.thread, -NEVER):
                outer.add(call)
                reach[call.thread] = call.end
        return outer

    def syncs(self, window: Interval) -> tuple[int, int, str | None]:
        chosen = self.chosen(window)
        spans: dict[int, list[Interval]] = defaultdict(list)
        spent: dict[str, int] = defaultdict(int)
        number = 0
        for _, call in self.calls:
            if call in chosen:
                number += 1
                spans[call.thread].append((call.start, call.end))
                spent[call.name or "unnamed call"] += call.end - call.start
        for thread in spans:
            made = [call for _, call in self.calls if call.thread == thread]
            place = {call: index for index, call in enumerate(made)}
            calls = sorted(call for call in made if call in chosen)
            for call, after in pairwise(calls):
                between = made[place[call] + 1 : place[after]]
                at_once = place[after] > place[call] and len(between) <= 2
                at_once = at_once and all(inner.end <= call.end for inner in between)
                number -= at_once and "emcpy" in call.name and after.name.endswith("Synchronize")
        blocked = sum(end - start for span in spans.values() for start, end in union(span))
        api = min(spent, key=lambda name: (-spent[name], name), default=None)
        return number, blocked, api

    def per_step(self, window: Interval, steady: list[Interval]) -> int | None:
        judged = self.chosen(window)
        chosen = [call for _, call in self.calls if call in judged]
        times = [
            sum(call.end - call.start for call in chosen if low <= call.start < high)
            for low, high in steady
        ]
        return round(mean(times)) if times else None

    def copies(self, window: Interval, *, is_all: bool) -> tuple[int, int, int | None, int]:
        chosen = []
        # An operation without length may end the recording.
        limit = window[1] + 1 if is_all else window[1]
        for op in self.operations:
            row = op.row
            if row is None or op.kind != "copy" or not window[0] <= op.start < limit:
                continue
            ends = row["srcKind"], row["dstKind"]
            hosts = [end for end in ends if end in (PAGEABLE, PINNED)]
            known = not {None, UNKNOWN} & set(ends)
            if (row["bytes"] or 0) > LARGE and known and hosts == [PAGEABLE]:
                chosen.append(op)
        calls = {copy.call for copy in chosen if copy.call}
        blocked = sum(call.end - call.start for call in calls) if calls or not chosen else None
        kernels = [
            (operation.start, operation.end)
            for operation in self.operations
            if operation.kind != "copy"
        ]
        cost = without(union((copy.start, copy.end) for copy in chosen), union(kernels))
        if self.has_calls and not self.clocks_disagree():
            own = [(window[0], window[1])]
            idle = without(own, self.busy)
            inside = union((call.start, call.end) for call in calls)
            cost = union([*cost, *without(idle, without(own, inside))])
        return (
            len(chosen),
            sum(copy.row["bytes"] for copy in chosen if copy.row),
            blocked if self.has_calls else None,
            covered(*window, cost),
        )
