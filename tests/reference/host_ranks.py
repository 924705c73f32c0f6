"""An independent reference for ranks without a GPU, by the ranges of `instrument`; tests only.

It shares no code with ``traceprof``. Time is cut at every start and end of a range, and each piece
is judged by itself, by what the threads are in at that time.

* rank: a process with ranges in the domain `traceprof`, without rows of GPU operations, that
  communicates, has steps, or computes
* blocked: a thread in a pushed range of a communication call, of `wait`, `batch_isend_irecv` or
  `coalesced`
* in flight: a started, not pushed, range of a communication call is open
* computing: some thread is in a pushed `forward`, `backward` or `optimizer step`, is not blocked,
  and is not in the tail of its `backward`: after the start of the last `bucket … last=1` range in
  it, while anything is in flight
* communicating: some thread is blocked, or something is in flight
* a range that was open when the capture ended lasts to the latest known time of its process
"""

import re
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.reference.nsight_export import OPERATIONS, numbered, opened, rows

CALLS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "isend",
    "send", "irecv", "recv", "gather", "scatter", "barrier",
)  # fmt: skip
NAMES = dict(
    zip(
        CALLS,
        ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast", "Reduce", "Send",
         "Send", "Recv", "Recv", "Gather", "Scatter", "Barrier"),
        strict=True,
    )
)  # fmt: skip
COMPUTES = ("forward", "backward", "optimizer step")


class Range(NamedTuple):
    start: int
    end: int
    thread: int
    pushed: bool
    text: str
    is_open: bool  # when the capture ended


@dataclass(frozen=True)
class HostStep:
    number: int
    start_ns: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    idle_ns: int


@dataclass(frozen=True)
class HostRankReference:
    pid: int
    whole: HostStep
    steps: tuple[HostStep, ...]
    uses: tuple[dict[str, Any], ...]


def fact(text: str, name: str) -> str | None:
    match = re.search(rf"(?:^| ){name}=(\S+)", text)
    return match[1] if match else None


def call_name(text: str) -> str | None:
    """The operation of a communication call's label, None for other ranges."""
    word = text.split(" ", maxsplit=1)[0].lstrip("_")
    known = next((NAMES[call] for call in CALLS if word.startswith(call)), None)
    has_fact = any(fact(text, name) for name in ("bytes", "group", "seq", "dst", "src"))
    return known if has_fact else None


def is_container(text: str) -> bool:
    return text.split(" ", maxsplit=1)[0] in {"batch_isend_irecv", "coalesced"}


def blocks(each: Range) -> bool:
    return each.pushed and (
        call_name(each.text) is not None
        or is_container(each.text)
        or each.text.split()[0] == "wait"
    )


def read(db: sqlite3.Connection, strings: dict[Any, str]) -> dict[int, list[Range]]:
    """The ranges of the domain by process, ends that are not known as the latest time."""
    stop = {duration for (duration,) in rows(db, "ANALYSIS_DETAILS", "duration")}
    columns = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId",
               "int64Value")  # fmt: skip
    events = list(rows(db, "NVTX_EVENTS", *columns))
    domains = {
        (tid >> 24, domain)
        for _, _, kind, text, _, tid, domain, _ in events
        if kind == 75 and text == "traceprof"
    }
    by_process: dict[int, list[Any]] = defaultdict(list)
    for start, end, kind, text, text_id, tid, domain, number in events:
        if kind in {59, 60} and (tid >> 24, domain) in domains:
            name = numbered(text if text is not None else strings[text_id], number)
            is_open = end is None or any(start <= time <= end for time in stop)
            known = None if is_open else end
            by_process[tid >> 24 << 24].append((start, known, tid, kind == 59, name, is_open))
    closed = {}
    for process, ranges in by_process.items():
        last = max(time for start, end, *_ in ranges for time in (start, end) if time is not None)
        closed[process] = [Range(a, last if b is None else b, *rest) for a, b, *rest in ranges]
    return closed


def judge(ranges: list[Range], time: int) -> tuple[bool, bool]:
    """Whether the process computes and communicates at a time."""
    now = [range_ for range_ in ranges if range_.start <= time < range_.end]
    flying = any(
        not running.pushed and (call_name(running.text) or is_container(running.text))
        for running in now
    )
    blocked = {running.thread for running in now if blocks(running)}
    computes = False
    for thread in {running.thread for running in now} - blocked:
        inside = [running for running in now if running.thread == thread and running.pushed]
        working = [running for running in inside if running.text in COMPUTES]
        in_tail = any(
            work.start <= bucket.start <= time and bucket.start < work.end
            for work in working
            if work.text == "backward"
            for bucket in ranges
            if bucket.text.startswith("bucket ") and fact(bucket.text, "last") == "1"
            if bucket.start == max(
                (
                    other.start
                    for other in ranges
                    if other.text.startswith("bucket ") and fact(other.text, "last") == "1"
                    and other.start < work.end
                ),
                default=None,
            )
        )  # fmt: skip
        computes |= bool(working) and not (in_tail and flying)
    return computes, bool(blocked) or flying


def measure(ranges: list[Range], number: int, start: int, end: int) -> HostStep:
    cuts = sorted({start, end, *(t for r in ranges for t in r[:2] if start < t < end)})
    compute = communication = exposed = idle = 0
    for begin, stop in pairwise(cuts):
        computes, communicates = judge(ranges, begin)
        compute += (stop - begin) * computes
        communication += (stop - begin) * communicates
        exposed += (stop - begin) * (communicates and not computes)
        idle += (stop - begin) * (not communicates and not computes)
    assert compute + exposed + idle == end - start
    return HostStep(number, start, end - start, compute, communication, exposed, idle)


def operations(ranges: list[Range]) -> list[tuple[int, int, str]]:
    """Start, end and text of each operation once: calls and flights of a text alternate."""
    spans: list[tuple[int, int, str]] = []
    by_text: dict[str, list[Range]] = defaultdict(list)
    for range_ in ranges:
        if call_name(range_.text):
            by_text[range_.text].append(range_)
    for text, members in by_text.items():
        waiting: Range | None = None
        for range_ in sorted(members, key=lambda r: (r.start, not r.pushed)):
            if waiting and waiting.pushed != range_.pushed and range_.start <= waiting.end:
                spans.append((waiting.start, max(waiting.end, range_.end), text))
                waiting = None
                continue
            if waiting:
                spans.append((waiting.start, waiting.end, text))
            waiting = range_
        if waiting:
            spans.append((waiting.start, waiting.end, text))
    return spans


def uses_of(ranges: list[Range], start: int, end: int) -> list[dict[str, Any]]:
    groups: dict[tuple[str | None, str | None, int | None], list[tuple[int, int | None]]]
    groups = defaultdict(list)
    for begin, stop, text in operations(ranges):
        if start <= begin < end:
            name, peer = call_name(text), fact(text, "dst") or fact(text, "src")
            other = int(peer) if peer and name in {"Send", "Recv"} else None
            size = fact(text, "bytes")
            entry = (stop - begin, int(size) if size else None)
            groups[name, fact(text, "group"), other].append(entry)
    return [
        {
            "operation": operation,
            "communicator": None if group is None else f"group {group}",
            "peer": peer,
            "count": len(members),
            "bytes": None
            if any(size is None for _, size in members)
            else sum(size or 0 for _, size in members),
            "total_ns": sum(took for took, _ in members),
            "median_ns": int(median(took for took, _ in members)),
        }
        for (operation, group, peer), members in groups.items()
    ]


def host_ranks(path: Path, time_range: tuple[int, int] | None = None) -> list[HostRankReference]:
    """Every rank without a GPU, by pid; steps are those inside the window."""
    with opened(path) as (db, strings):
        ranges_of = read(db, strings)
        with_gpu = {
            process
            for table in OPERATIONS
            for (process,) in rows(db, f"CUPTI_ACTIVITY_KIND_{table}", "globalPid")
        }
    result = []
    for process, ranges in ranges_of.items():
        telling = [
            range_
            for range_ in ranges
            if call_name(range_.text)
            or range_.text in COMPUTES
            or re.fullmatch(r"step \d+", range_.text)
        ]
        if process in with_gpu or not telling:
            continue
        start = min(range_.start for range_ in ranges)
        end = max(time for range_ in ranges for time in range_[:2])
        begin, stop = time_range or (start, end + 1)  # its own window holds its very end
        window = time_range or (start, end)
        steps = sorted(
            (range_ for range_ in ranges if re.fullmatch(r"step \d+", range_.text)),
            key=lambda r: r[:2],
        )
        begins = [(int(step.text.split()[1]), step.start) for step in steps]
        last = [step.end for step in steps[-1:]]
        if not steps:  # from optimizer step to optimizer step
            first = min((r.start for r in ranges if r.text in COMPUTES), default=end)
            over = sorted(
                (r.start, r.end) for r in ranges if r.text == "optimizer step" and not r.is_open
            )
            closed: list[int] = []
            for _, until in over:
                if not closed or until > closed[-1]:
                    closed.append(until)
            pairs = zip([first, *closed[:-1]], closed, strict=False)
            spans = [(place, *pair) for place, pair in enumerate(pairs) if pair[0] < pair[1]]
            begins = [(number, low) for number, low, _ in spans]
            last = [high for *_, high in spans[-1:]]
        ends = [start for _, start in begins[1:]] + last
        result.append(
            HostRankReference(
                process >> 24 & 0xFFFFFF,
                measure(ranges, -1, *window),
                tuple(
                    measure(ranges, number, low, until)
                    for (number, low), until in zip(begins, ends, strict=True)
                    if window[0] <= low and until <= window[1]
                ),
                tuple(uses_of(ranges, begin, stop)),
            )
        )
    return sorted(result, key=lambda rank: rank.pid)
