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
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

KINDS = COMPUTE, COMMUNICATION, COPY = 0, 1, 2
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
OPERATIONS = ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET")
LOW_24_BITS = 0xFFFFFF
NEVER = 1 << 80  # later than every time of a file
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


class Operation(NamedTuple):
    start: int
    end: int
    kind: int
    counted: bool  # not so a CUDA graph: it takes compute time but is no kernel
    correlation: int | None
    is_copy: bool = False
    stream: int | None = None


class Range(NamedTuple):
    start: int
    end: int
    name: str
    thread: int = 0


Numbered = tuple[Range, int]
Launches = dict[tuple[int, int], list[int]]  # sorted call starts by (process, correlation id)


@cache
def function_name(demangled: str) -> str:
    """The qualified function name: no return type, template arguments or parameters."""
    kept, depth = "", 0
    for char in demangled.replace("(anonymous namespace)", "{anonymous}").replace("->", ""):
        if char == "(" and depth == 0:
            break
        kept += char if depth == 0 and char not in "<>" else ""
        depth += (char == "<") - (char == ">")
    return kept.split()[-1] if kept.strip() else ""


@cache
def default_is_communication(short: str | None, demangled: str | None) -> bool:
    """NCCL, RCCL, symmetric-memory and custom all-reduce, NVSHMEM and DeepEP kernels, by name."""
    pattern = (
        r"nccl|rccl|nvshmem|cross_device_reduce_[12]stage|msccl"
        r"|(one_shot|two_shot|multimem)_(\w*_)?all_?(reduce|gather)"
    )
    names = (short or "", function_name(demangled or ""))
    return any(
        name.startswith("deep_ep::")
        or re.search(r"\b(inter|intra)node(_ll)?::", name)
        or re.match(pattern, name)
        or re.match(pattern, last)
        for name in names
        for last in name.split("::")[-1:]
    )


def rows(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The table's rows: None for an absent column; no rows for an absent table."""
    present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    wanted = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
    if present:
        yield from db.execute(f"SELECT {wanted} FROM {table}")


def integers(*values: object) -> list[int | None]:
    return [value if isinstance(value, int) else None for value in values]


@contextmanager
def opened(path: Path) -> Iterator[tuple[sqlite3.Connection, dict[Any, str]]]:
    """An export that is only read, and its strings by their ids."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        yield db, dict(rows(db, "StringIds", "id", "value"))


def operation_rows(
    db: sqlite3.Connection, *columns: str, tables: tuple[str, ...] = OPERATIONS
) -> Iterator[tuple[Any, ...]]:
    """Table, start, end, process, device and these columns of each GPU operation of the file."""
    for table in tables:
        place = ("start", "end", "globalPid", "deviceId")
        for row in rows(db, f"CUPTI_ACTIVITY_KIND_{table}", *place, *columns):
            start, end, process, device, *more = integers(*row)
            if start is None or end is None or process is None or device is None or end < start:
                continue
            yield table, start, end, process, device, *more


def peer_kinds(db: sqlite3.Connection) -> set[int]:
    """The kinds of copies that are peer-to-peer ones, by their labels."""
    kinds = {10}
    for number, name, label in rows(db, "ENUM_CUDA_MEMCPY_OPER", "id", "name", "label"):
        if re.search("ptop|peer[- ]to[- ]peer", f"{name} {label}", re.IGNORECASE):
            kinds.add(number)
    return kinds


def are_two(source: int | None, target: int | None) -> bool:
    return source is not None and target is not None and source != target


def read_operations(
    db: sqlite3.Connection, strings: dict[Any, str]
) -> dict[tuple[int, int], list[Operation]]:
    """All GPU operations of the file, by rank."""
    peers = peer_kinds(db)
    ranks: dict[tuple[int, int], list[Operation]] = defaultdict(list)
    kernels: dict[tuple[int, int], dict[int, Kernel]] = defaultdict(dict)
    columns = ("correlationId", "streamId", "shortName", "demangledName", "copyKind",
               "srcDeviceId", "dstDeviceId", *SHAPE)  # fmt: skip
    for table, start, end, process, device, correlation, stream, *more in operation_rows(
        db, *columns
    ):
        short, demangled, copy_kind, source, target, *shape = more
        kind = COPY if table in {"MEMCPY", "MEMSET"} else COMPUTE
        if table == "KERNEL" and default_is_communication(
            strings.get(short), strings.get(demangled)
        ):
            kind = COMMUNICATION
        if table == "MEMCPY" and (copy_kind in peers or are_two(source, target)):
            kind = COMMUNICATION
        is_copy = table in {"MEMCPY", "MEMSET"}
        is_counted = table != "GRAPH_TRACE"
        operation = Operation(start, end, kind, is_counted, correlation, is_copy, stream)
        if table == "KERNEL":
            kernel = Kernel(start, end, stream, correlation, (demangled, *shape))
            kernels[process, device][len(ranks[process, device])] = kernel
        ranks[process, device].append(operation)
    for key, of_rank in kernels.items():
        for place, end in believed_ends([*of_rank.values()]).items():
            index = [*of_rank][place]
            ranks[key][index] = ranks[key][index]._replace(end=end)
    return ranks


class Kernel(NamedTuple):
    start: int
    end: int
    stream: int | None
    correlation: int | None
    signature: Any  # name and shape


def believed_ends(kernels: Sequence[Kernel]) -> dict[int, int]:
    """The ends of kernels of a rank whose recorded ones are wrong, by index: where the next begin.

    Such a kernel lasts while three others of its stream, which runs one kernel after the other,
    begin and end; it has a launch of its own; and it takes over 20 times as long as its like.
    """
    ascending = sorted(range(len(kernels)), key=lambda index: kernels[index][:2])
    streams, alike = defaultdict[Any, list[int]](list), defaultdict[Any, list[int]](list)
    for index in ascending:
        kernel = kernels[index]
        streams[kernel.stream].append(index)
        alike[kernel.signature].append(kernel.end - kernel.start)
    followers = dict[int, list[int]]()
    for index in sorted(ascending, key=lambda one: kernels[one].start - kernels[one].end)[:64]:
        kernel, stream = kernels[index], streams[kernels[index].stream]
        later = stream[stream.index(index) + 1 :]
        covered = [kernels[one] for one in later if kernels[one].end <= kernel.end]
        if sum(one.start < one.end for one in covered) >= 3:
            followers[index] = later
    ends = {}
    for index, later in followers.items():
        kernel, stream = kernels[index], streams[kernels[index].stream]
        lengths = alike[kernel.signature]
        is_usual = len(lengths) >= 3 and kernel.end - kernel.start <= 20 * median(lengths)
        rest = [kernels[one] for one in stream if one not in followers]
        num_overlaps = sum(next_.start < one.end for one, next_ in pairwise(rest))
        is_serial = num_overlaps <= len(rest) / 100
        is_alone = sum(kernels[one].correlation == kernel.correlation for one in stream) == 1
        if is_serial and is_alone and not is_usual:
            ends[index] = kernels[later[0]].start
    return ends


def read_launches(db: sqlite3.Connection) -> Launches:
    launches: Launches = defaultdict(list)
    for row in rows(db, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId"):
        start, thread, correlation = integers(*row)
        if start is not None and thread is not None and correlation is not None:
            launches[thread & ~LOW_24_BITS, correlation].append(start)
    return {key: sorted(starts) for key, starts in launches.items()}


def numbered(name: Any, number: int | None) -> Any:
    """A range's name, with its payload where `instrument` leaves the running number to it."""
    takes_number = isinstance(name, str) and re.fullmatch("(cut )?step |.* seq=", name)
    return f"{name}{number}" if takes_number and number is not None and number >= 0 else name


def read_ranges(db: sqlite3.Connection, strings: dict[Any, str]) -> dict[int, list[Range]]:
    """The NVTX ranges of each process, sorted; one that was not closed never ends."""
    ranges: dict[int, list[Range]] = defaultdict(list)
    columns = ("text", "eventType", "start", "end", "globalTid", "textId", "int64Value")
    for text, *others in rows(db, "NVTX_EVENTS", *columns):
        kind, start, end, thread, text_id, number = integers(*others)
        name = numbered(text if text is not None else strings.get(text_id), number)
        if kind in {59, 60} and name is not None and start is not None and thread is not None:
            closed = NEVER if end is None else end
            ranges[thread & ~LOW_24_BITS].append(Range(start, closed, name, thread))
    return {process: sorted(of_process) for process, of_process in ranges.items()}


class Timeline:
    """A rank's operations, cut into the elementary segments between neighbouring boundary times."""

    def __init__(self, operations: list[Operation]) -> None:
        changes: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for op in operations:
            changes[op.start][op.kind] += 1
            changes[op.end][op.kind] -= 1
        self.times = sorted(changes)
        self.active: list[tuple[bool, ...]] = []  # the classes active in [times[i], times[i + 1])
        counters = [0, 0, 0]
        for time in self.times:
            counters = [now + change for now, change in zip(counters, changes[time], strict=True)]
            self.active.append(tuple(counter > 0 for counter in counters))
        assert counters == [0, 0, 0]
        counted = [[op for op in operations if op.counted and op.kind == kind] for kind in KINDS]
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
        counts = [self.count(kind, start, end, closed) for kind in KINDS]
        return Measures(start, window, compute, communication, overlapped, exposed, copy,
                        exposed_copy, idle, *counts)  # fmt: skip


def step_ranges(ranges: list[Range], step_pattern: str | None) -> list[Numbered]:
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


def outermost(ranges: list[Range]) -> list[Range]:
    chosen = []
    for thread in {span.thread for span in ranges}:
        left = sorted(
            (span for span in ranges if span.thread == thread),
            key=lambda span: (span.start, -span.end),
        )
        while True:
            outer: list[Range] = []
            for span in left:
                holders = [other for other in outer if other.end < NEVER and span.end <= other.end]
                outer += [] if holders else [span]
            if len(outer) != 1 or len(left) < 3:
                break
            left = left[1:]
        chosen += outer
    return [span for span in ranges if any(span is other for other in chosen)]


def step_windows(
    operations: list[Operation], process: int, launches: Launches, ranges: list[Numbered]
) -> list[tuple[int, int, int]]:
    """A rank's steps in order, as (number, window start, window end).

    An operation is launched by the API call of its process with its correlation id: of several, the
    latest that begins by the operation's start, else the earliest. A step begins with the first
    operation launched inside its range and ends where the next begins, the last one with its own
    last operation. Copies on streams without kernels begin none while
    other work runs that was launched before the step, but where the step has nothing else.
    """
    of_kernels = {op.stream for op in operations if not op.is_copy}
    launched: list[tuple[int, Operation]] = []
    for op in operations:
        calls = launches.get((process, op.correlation)) if op.correlation is not None else None
        if calls:
            launched.append((calls[max(bisect_right(calls, op.start) - 1, 0)], op))
    launched.sort(key=lambda pair: pair[0])
    call_starts = [call for call, _ in launched]
    steps: list[tuple[int, int, int, int]] = []  # (window start, range start, own end, number)
    for step, number in ranges:
        inside = slice(bisect_left(call_starts, step.start), bisect_left(call_starts, step.end))
        if own := [op for _, op in launched[inside]]:
            opening = [op for op in own if not op.is_copy or op.stream in of_kernels]
            first, last = min(op.start for op in own), max(op.end for op in own)
            earlier = (op for _, op in launched[: inside.start])
            if any(op.end > first for op in earlier if not op.is_copy or op.stream in of_kernels):
                first = min((op.start for op in opening), default=first)
            steps.append((first, step.start, last, number))
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


def read(path: Path, *, step_pattern: str | None = None) -> list[RankEvents]:
    """The ranks of an export, ordered by (pid, device)."""
    with opened(path) as (db, strings):
        ranks = read_operations(db, strings)
        launches, ranges = read_launches(db), read_ranges(db, strings)
    steps_of = {process: step_ranges(own, step_pattern) for process, own in ranges.items()}
    result: list[tuple[int, int, int, RankEvents]] = []
    for (process, device), operations in ranks.items():
        pid = (process >> 24) & LOW_24_BITS
        start, end = min(op.start for op in operations), max(op.end for op in operations)
        steps = step_windows(operations, process, launches, steps_of.get(process, []))
        rank = RankEvents(pid, device, start, end, Timeline(operations), steps)
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
