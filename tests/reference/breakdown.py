"""An independent reference for the breakdown and the steps, for tests only.

It shares no code with ``traceprof`` and measures in another way, by a boundary sweep: a rank's
start and end times are sorted, counters of active operations per class are carried along them, and
each elementary segment's length goes to the combination of classes active in it.

Times are ns of the file's own clock, windows are half-open [start, end).

* operation: a row of KERNEL, MEMCPY, MEMSET or GRAPH_TRACE with a process, a device, start <= end
* rank: a (globalPid, deviceId) with at least one operation
* communication (M): communication kernels and peer-to-peer copies; compute (C): every other kernel
  and CUDA graphs; copy (Y): every other memcpy and memset
* compute |C|, communication |M|, overlapped |M & C|, exposed communication |M - C|, copy |Y|,
  exposed copy |Y - C - M|, idle = window - |C + M + Y|
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.reference.nsight_export import KINDS, LOW_24_BITS, NamedSpan, Operation, export_of
from tests.reference.spans import NEVER

# Of SGLang and vLLM, in which no group is a number.
SERVING_STEPS = (
    r"step\[[A-Z_]+ bs=\d+.*\]",
    r"execute_(?:\d+_)?context_\d+\(.*\)_generation_\d+\(.*\)",
)
BUILT_IN_STEP_PATTERNS = (r"step (\d+)", r"ProfilerStep#(\d+)", *SERVING_STEPS)


@dataclass(frozen=True)
class Measures:
    """Where the time of one window of one rank went, and how many operations are inside it."""

    window_start_ns: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    overlapped_communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    idle_ns: int
    num_kernels: int
    num_communication: int
    num_copies: int
    lost_ns: int = 0  # in complete recordings, of which alone it is asked


@dataclass(frozen=True)
class ReferenceStep:
    number: int
    measures: Measures


@dataclass(frozen=True)
class ReferenceRank:
    pid: int
    device: int
    whole: Measures
    steps: tuple[ReferenceStep, ...]


Numbered = tuple[NamedSpan, int]


class Timeline:
    """A rank's operations, cut into the elementary segments between neighbouring boundary times."""

    def __init__(self, operations: list[Operation]) -> None:
        changes: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for op in operations:
            changes[op.start][KINDS.index(op.kind)] += 1
            changes[op.end][KINDS.index(op.kind)] -= 1
        self.times = sorted(changes)
        self.active: list[tuple[bool, ...]] = []  # the classes active in [times[i], times[i + 1])
        counters = [0, 0, 0]
        for time in self.times:
            counters = [now + change for now, change in zip(counters, changes[time], strict=True)]
            self.active.append(tuple(counter > 0 for counter in counters))
        assert counters == [0, 0, 0]
        # A CUDA graph takes compute time but is no kernel.
        kernels = [op for op in operations if op.table != "GRAPH_TRACE"]
        counted = [[op for op in kernels if op.kind == kind] for kind in KINDS]
        self.starts = [sorted(op.start for op in ops if op.end > op.start) for ops in counted]
        self.ends = [sorted(op.end for op in ops if op.end > op.start) for ops in counted]
        self.instants = [sorted(op.start for op in ops if op.end == op.start) for ops in counted]

    def count(self, kind: int, start: int, end: int, closed: bool) -> int:
        """Operations of a class inside a window; a closed one also has the instants at its end."""
        # What ended by `start` also began before `end`, so the difference leaves what overlaps.
        lasting = bisect_left(self.starts[kind], end) - bisect_right(self.ends[kind], start)
        instants, until = self.instants[kind], bisect_right if closed else bisect_left
        return lasting + until(instants, end) - bisect_left(instants, start)

    def measure(self, start: int, end: int, *, closed: bool = False) -> Measures:
        if end < start:
            raise ValueError(f"a window that ends before it starts: [{start}, {end})")
        spent: dict[tuple[bool, ...], int] = defaultdict(int)
        index = max(bisect_right(self.times, start) - 1, 0)
        while index + 1 < len(self.times) and self.times[index] < end:
            clipped = min(self.times[index + 1], end) - max(self.times[index], start)
            spent[self.active[index]] += max(clipped, 0)
            index += 1
        window = end - start
        compute = sum(ns for (c, _, _), ns in spent.items() if c)
        communication = sum(ns for (_, m, _), ns in spent.items() if m)
        overlapped = sum(ns for (c, m, _), ns in spent.items() if m and c)
        exposed = sum(ns for (c, m, _), ns in spent.items() if m and not c)
        copy = sum(ns for (_, _, y), ns in spent.items() if y)
        exposed_copy = sum(ns for (c, m, y), ns in spent.items() if y and not c and not m)
        idle = window - sum(ns for combination, ns in spent.items() if any(combination))
        assert idle >= 0
        assert compute + exposed + exposed_copy + idle == window
        counts = [self.count(kind, start, end, closed) for kind in range(3)]
        return Measures(start, window, compute, communication, overlapped, exposed, copy,
                        exposed_copy, idle, *counts)  # fmt: skip


def step_ranges(ranges: list[NamedSpan], step_pattern: str | None) -> list[Numbered]:
    """A process's step ranges, numbered by the pattern's group `step`, its first one, or order.

    Those inside of another one of their thread are none, nor is one around all others of it.
    """
    patterns = BUILT_IN_STEP_PATTERNS if step_pattern is None else (step_pattern,)
    for pattern in map(re.compile, patterns):
        find = pattern.fullmatch if step_pattern is None else pattern.search
        chosen = outermost([step for step in ranges if find(step.name)])
        matches = [(step, match) for step in chosen if (match := find(step.name))]
        group = "step" if "step" in pattern.groupindex else 1 if pattern.groups else 0
        texts = [match[group] or "" if group else "" for _, match in matches]
        usable = all(text.isdecimal() for text in texts)
        if matches:
            numbers = [int(text) for text in texts] if usable else range(len(matches))
            return [(step, number) for (step, _), number in zip(matches, numbers, strict=True)]
    return []


def outermost(ranges: list[NamedSpan]) -> list[NamedSpan]:
    chosen = []
    for thread in {span.thread for span in ranges}:
        left = sorted(
            (span for span in ranges if span.thread == thread),
            key=lambda span: (span.start, -span.end),
        )
        while True:
            outer: list[NamedSpan] = []
            for span in left:
                holders = [other for other in outer if other.end < NEVER and span.end <= other.end]
                outer += [] if holders else [span]
            if len(outer) != 1 or len(left) < 3:
                break
            left = left[1:]
        chosen += outer
    return [span for span in ranges if any(span is other for other in chosen)]


def step_windows(
    operations: list[Operation], ranges: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """A rank's steps in order, as (number, window start, window end), of (number, start, end).

    A step begins with the first operation launched inside its range and ends where the next begins,
    the last one with its own last operation. Copies on streams without kernels begin none while
    other work runs that was launched before the step, but where the step has nothing else.
    """
    of_kernels = {op.stream for op in operations if not op.is_copy}
    launched = sorted(
        ((op.call.start, op) for op in operations if op.call), key=lambda pair: pair[0]
    )
    call_starts = [call for call, _ in launched]
    steps: list[tuple[int, int, int, int]] = []  # (window start, range start, own end, number)
    for number, low, high in ranges:
        inside = slice(bisect_left(call_starts, low), bisect_left(call_starts, high))
        if own := [op for _, op in launched[inside]]:
            opening = [op for op in own if not op.is_copy or op.stream in of_kernels]
            first, last = min(op.start for op in own), max(op.end for op in own)
            earlier = (op for _, op in launched[: inside.start])
            if any(op.end > first for op in earlier if not op.is_copy or op.stream in of_kernels):
                first = min((op.start for op in opening), default=first)
            steps.append((first, low, last, number))
    steps.sort()
    ends = [first for first, *_ in steps[1:]] + [last for *_, last, _ in steps[-1:]]
    return [(number, first, end) for (first, *_, number), end in zip(steps, ends, strict=True)]


@dataclass(frozen=True)
class RankEvents:
    """A rank as it was read, which any number of windows can be measured of."""

    pid: int
    device: int
    start: int
    end: int
    timeline: Timeline
    steps: list[tuple[int, int, int]]  # number, window start, window end


def events_of(
    pid: int, device: int, operations: list[Operation], steps: Sequence[tuple[int, int, int]]
) -> RankEvents:
    start, end = min(op.start for op in operations), max(op.end for op in operations)
    windows = step_windows(operations, steps)
    return RankEvents(pid, device, start, end, Timeline(operations), windows)


def read(path: Path, *, step_pattern: str | None = None) -> list[RankEvents]:
    """The ranks of an export, ordered by (pid, device)."""
    export = export_of(path)
    result: list[tuple[int, int, int, RankEvents]] = []
    for (process, device), operations in export.ranks.items():
        pid = (process >> 24) & LOW_24_BITS
        numbered = step_ranges(export.ranges.get(process, []), step_pattern)
        steps = [(number, step.start, step.end) for step, number in numbered]
        rank = events_of(pid, device, operations, steps)
        result.append((pid, device, process, rank))
    return [rank for *_, rank in sorted(result, key=lambda item: item[:3])]


def measured(
    rank: RankEvents, time_range: tuple[int | None, int | None] | None = None
) -> ReferenceRank:
    """The breakdown of a rank, whole and per step.

    The whole window runs from the rank's first start to its last end, or is exactly `time_range`,
    whose open sides (None) are the rank's own. Of the steps, those entirely inside it are kept.
    """
    after, before = time_range or (None, None)
    start = rank.start if after is None else after
    end = rank.end if before is None else before
    if after is None or before is None:
        end = max(start, end)  # a one-sided range that misses the rank altogether is empty
    whole = rank.timeline.measure(start, end, closed=after is None and before is None)
    steps = tuple(
        ReferenceStep(number, rank.timeline.measure(first, last))
        for number, first, last in rank.steps
        if start <= first and last <= end
    )
    return ReferenceRank(rank.pid, rank.device, whole, steps)


def reference(path: Path) -> list[ReferenceRank]:
    """The breakdown of every rank of an export, ordered by (pid, device)."""
    return [measured(rank) for rank in read(path)]


def as_truth(ranks: Iterable[ReferenceRank]) -> dict[str, list[dict[str, int]]]:
    """Return `breakdown` and `steps` of a simulated run that is recorded whole."""
    breakdown, steps = [], []
    for number, rank in enumerate(ranks):
        breakdown.append({"rank": number, **asdict(rank.whole)})
        for step in rank.steps:
            measures = asdict(step.measures)
            start = measures.pop("window_start_ns")
            window = {"start_ns": start, "end_ns": start + measures["window_ns"]}
            steps.append({"rank": number, "step": step.number, **window, **measures})
    for row in (*breakdown, *steps):
        assert row.pop("lost_ns") == 0
    return {"breakdown": breakdown, "steps": steps}
