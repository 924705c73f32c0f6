"""Expected results of analyses of a simulated run, measured on the model's own events.

Plain Python over lists, on purpose: nothing here is shared with the analyses that it checks.
Times and durations are in ns.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from sample_traces.simulator.event_model.actions import (
    CallRecord,
    CommunicationWork,
    CopyWork,
    KernelWork,
    Stream,
)
from sample_traces.simulator.event_model.engine import RangeRecord, Result
from sample_traces.simulator.event_model.gpu import Operation
from traceprof import labels

Interval = tuple[int, int]
Place = tuple[int, int]

_TO_HOST, _PEER_TO_PEER = 2, 10  # copyKind
_DIRECTIONS = {1: "h2d", _TO_HOST: "d2h"}
_SUMS = (
    "compute_ns", "communication_ns", "overlapped_communication_ns", "exposed_communication_ns",
    "copy_ns", "exposed_copy_ns", "idle_ns",
)  # fmt: skip
_CLASSES = ("compute", "communication", "copy")
# An operation that starts later than this after its predecessor waited for something else.
_FOLLOWS_NS = 20_000
_MIN_ALONE = 3


def marks(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the marks of threads, by process, then time."""
    rows = [
        {"rank": mark.thread.process, "time_ns": mark.time_ns, "name": mark.action.name}
        for mark in ranks.result.marks
    ]
    return sorted(rows, key=lambda row: (row["rank"], row["time_ns"]))


def class_of(operation: Operation) -> str:
    """Return `compute`, `communication` or `copy`."""
    work = operation.work
    if isinstance(work, CommunicationWork):
        return "communication"
    if isinstance(work, KernelWork):
        return "compute"
    is_peer = isinstance(work, CopyWork) and work.kind == _PEER_TO_PEER
    return "communication" if is_peer else "copy"


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def covered(start: int, end: int, by: Iterable[Interval]) -> int:
    """Return the part of [start, end) that disjoint intervals cover, in ns."""
    return sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in by)


class Ranks:
    """The operations of a run by rank: process and device, in order."""

    def __init__(self, result: Result) -> None:
        self.result = result
        by_place: dict[Place, list[Operation]] = defaultdict(list)
        for operation in result.operations:
            by_place[operation.stream.process, operation.stream.device].append(operation)
        self.places = sorted(by_place)
        self.operations = [by_place[place] for place in self.places]

    def breakdown(self) -> dict[str, Any]:
        """Return the `breakdown`, `steps` and `training` of `traceprof analyze --format json`.

        The training lasts from the first step to the end of the last one, or from the first kernel
        to the end of the last: programs without steps run the same ones again and again.
        """
        breakdown, steps, training = [], [], []
        for rank, operations in enumerate(self.operations):
            start = min(operation.start_ns for operation in operations)
            end = max(operation.end_ns for operation in operations)
            window = {"rank": rank, "window_start_ns": start, "window_ns": end - start}
            breakdown.append({**window, **_measure(operations, start, end)})
            for number, first, last in self._steps(rank):
                row = {"rank": rank, "step": number, "start_ns": first, "end_ns": last}
                measures = _measure(operations, first, last)
                steps.append({**row, "window_ns": last - first, **measures})
            first, last = self.training(rank)
            row = {"rank": rank, "start_ns": first, "end_ns": last}
            training.append({**row, "before_ns": first - start, "after_ns": end - last})
        return {"breakdown": breakdown, "steps": steps, "training": training}

    def training(self, rank: int) -> Interval:
        """Return from the first to the last step of a rank, or kernel if it has no steps."""
        spans = [(first, last) for _, first, last in self._steps(rank)] or [
            (operation.start_ns, operation.end_ns)
            for operation in self.operations[rank]
            if class_of(operation) == "compute"
        ]
        return min(spans)[0], max(last for _, last in spans)

    def _steps(self, rank: int) -> list[tuple[int, int, int]]:
        """Return number, start and end of the rank's steps.

        A step lasts from the first GPU operation launched inside its range to that of the next
        step; the last one ends with the last operation launched inside it. Copies on streams
        without kernels begin none while earlier work still runs.
        """
        steps = []
        with_kernels = {
            operation.stream
            for operation in self.operations[rank]
            if isinstance(operation.work, KernelWork | CommunicationWork)
        }
        for range_ in self.result.ranges:
            if range_.thread.process != self.places[rank][0]:
                continue
            match = re.fullmatch(r"step (\d+)", range_.action.name)
            if match is None:
                continue
            operations = [
                operation
                for operation in self.operations[rank]
                if range_.start_ns <= operation.call.start_ns < range_.end_ns
            ]
            if operations:
                opening = [
                    operation for operation in operations if operation.stream in with_kernels
                ]
                first = min(operation.start_ns for operation in operations)
                if any(
                    operation.call.start_ns < range_.start_ns and operation.end_ns > first
                    for operation in self.operations[rank]
                    if operation.stream in with_kernels
                ):
                    first = min((operation.start_ns for operation in opening), default=first)
                last = max(operation.end_ns for operation in operations)
                steps.append((int(match[1]), first, last))
        ends = [first for _, first, _ in steps[1:]] + [last for *_, last in steps[-1:]]
        return [(number, first, end) for (number, first, _), end in zip(steps, ends, strict=True)]


def _measure(operations: Sequence[Operation], start: int, end: int) -> dict[str, int]:
    """Return the measures of a window, by cutting it wherever an operation starts or ends."""
    changes: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_CLASSES, 0))
    counts = dict.fromkeys(_CLASSES, 0)
    for operation in operations:
        if operation.start_ns < end and operation.end_ns > start:
            kind = class_of(operation)
            counts[kind] += 1
            changes[max(operation.start_ns, start)][kind] += 1
            changes[min(operation.end_ns, end)][kind] -= 1
    sums = dict.fromkeys(_SUMS, 0)
    active = dict.fromkeys(_CLASSES, 0)
    before = start
    for time in (*sorted(changes), end):
        _add_up(sums, active, time - before)
        for kind, change in changes.get(time, {}).items():
            active[kind] += change
        before = time
    return {
        **sums,
        "num_kernels": counts["compute"],
        "num_communication": counts["communication"],
        "num_copies": counts["copy"],
    }


def _add_up(sums: dict[str, int], active: dict[str, int], length: int) -> None:
    compute, communication, copy = (active[kind] > 0 for kind in _CLASSES)
    sums["compute_ns"] += compute * length
    sums["communication_ns"] += communication * length
    sums["overlapped_communication_ns"] += (compute and communication) * length
    sums["exposed_communication_ns"] += (communication and not compute) * length
    sums["copy_ns"] += copy * length
    sums["exposed_copy_ns"] += (copy and not compute and not communication) * length
    sums["idle_ns"] += (not compute and not communication and not copy) * length


def nccl_serialization(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the metrics of `nccl-serialization` of one rank.

    An operation is blocked from the moment that it is launched and its input is ready; it is
    queued from its launch on.
    """
    blocked, queued, independent = [], 0, 0
    streams: dict[Stream, list[Operation]] = defaultdict(list)
    kernels = [
        operation for operation in operations if isinstance(operation.work, CommunicationWork)
    ]
    for operation in sorted(kernels, key=lambda operation: operation.start_ns):
        before = streams[operation.stream]
        if before and operation.start_ns - before[-1].end_ns <= _FOLLOWS_NS:
            spans = union((other.start_ns, other.end_ns) for other in before)
            launched = operation.call.end_ns
            queued += covered(launched, operation.start_ns, spans)
            ready = max(launched, operation.input_ns)
            length = covered(ready, operation.start_ns, spans)
            if length:
                blocked.append(length)
                independent += length * _is_independent(operation, before[-1])
        before.append(operation)
    return {
        "blocked_ns": sum(blocked),
        "queued_ns": queued,
        "num_blocked": len(blocked),
        "max_blocked_ns": max(blocked, default=0),
        "num_operations": len(kernels),
        "independent_blocked_ns": independent,
    }


def _is_independent(one: Operation, other: Operation) -> bool:
    return communication(one).communicator != communication(other).communicator


def communication(operation: Operation) -> CommunicationWork:
    assert isinstance(operation.work, CommunicationWork)
    return operation.work


def overlap_slowdown(operations: Sequence[Operation], num_passes: int) -> dict[str, Any]:
    """Return the metrics of `overlap-slowdown` of one rank, and the model's own excess.

    Kernels beside other kernels are not judged. The others are compared with those at the same
    place of another of `num_passes` passes through the model, all of which run the same kernels.
    `matched_fraction` is the share of judged kernels, by time, among those beside communication for
    half of their time or more. `model_excess_ns` is the time that all kernels took longer than they
    would have alone.
    """
    kernels = [operation for operation in operations if isinstance(operation.work, KernelWork)]
    busy = union(
        (operation.start_ns, operation.end_ns)
        for operation in operations
        if class_of(operation) == "communication"
    )
    works = (operation.work for operation in kernels)
    total = Counter(work.kernel for work in works if isinstance(work, KernelWork))
    counts: Counter[Any] = Counter()
    alone, overlapped = defaultdict(list), defaultdict(list)
    overlapped_ns = 0
    for operation in sorted(kernels, key=lambda operation: operation.start_ns):
        assert isinstance(operation.work, KernelWork)
        kernel = operation.work.kernel
        per_pass, others = divmod(total[kernel], num_passes)
        place = kernel, counts[kernel] % max(per_pass, 1)
        counts[kernel] += 1
        length = operation.end_ns - operation.start_ns
        beside = covered(operation.start_ns, operation.end_ns, busy)
        if 2 * beside >= length:
            overlapped_ns += length
        if others or any(_is_beside(operation, other) for other in kernels):
            continue
        if not beside:
            alone[place].append(length)
        elif 2 * beside >= length:
            overlapped[place].append(length)
    judged = [place for place in overlapped if len(alone[place]) >= _MIN_ALONE]
    took = sum(sum(overlapped[place]) for place in judged)
    expected = sum(median(alone[place]) * len(overlapped[place]) for place in judged)
    num_judged = sum(len(overlapped[place]) for place in judged)
    excess = sum(
        kernel.end_ns - kernel.start_ns - kernel.work.work_ns
        for kernel in kernels
        if isinstance(kernel.work, KernelWork)
    )
    return {
        "slowdown": took / expected if expected else None,
        "excess_ns": round(took - expected),
        "num_overlapped": num_judged,
        "num_alone": sum(len(alone[place]) for place in judged),
        "matched_fraction": took / overlapped_ns if overlapped_ns else None,
        "communication_slowdown": 1.0,
        "model_excess_ns": excess,
    }


def _is_beside(operation: Operation, other: Operation) -> bool:
    return (
        other is not operation
        and other.start_ns < operation.end_ns
        and operation.start_ns < other.end_ns
    )


def launch_queue(calls: Iterable[CallRecord]) -> dict[str, Any]:
    """Return the metrics of `launch-queue-stall` of one process."""
    calls = list(calls)
    stalls = [call.stall_ns[1] - call.stall_ns[0] for call in calls if call.stall_ns]
    return {
        "stall_ns": sum(stalls),
        "num_stalls": len(stalls),
        "max_queue_depth": max(call.depth for call in calls),
    }


def links(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the copied bytes of each rank, by direction and peer."""
    directions = {**_DIRECTIONS, _PEER_TO_PEER: "p2p"}
    rows = []
    for rank, operations in enumerate(ranks.operations):
        copies: dict[tuple[str, int | None], list[Operation]] = defaultdict(list)
        for operation in operations:
            work = operation.work
            if isinstance(work, CopyWork) and work.kind in directions:
                is_source = work.source == operation.stream.device
                peer = work.destination if is_source else work.source
                copies[directions[work.kind], peer].append(operation)
        for (direction, peer), carried in copies.items():
            size = sum(
                operation.work.bytes
                for operation in carried
                if isinstance(operation.work, CopyWork)
            )
            spans = union((operation.start_ns, operation.end_ns) for operation in carried)
            busy = sum(end - start for start, end in spans)
            row = {"rank": rank, "link": None if direction == "p2p" else "pcie"}
            row |= {"direction": direction, "peer": peer, "bytes": size, "busy_ns": busy}
            rows.append({**row, "gb_per_s": size / busy, "source": "copies"})
    return rows


def synchronizations(calls: Iterable[CallRecord]) -> dict[str, Any]:
    """Return the metrics of `host-sync` of one process.

    Reading a number is a copy to pageable memory, which waits for the GPU, and a synchronization
    without a further wait: it is counted once, with the time of both.
    """
    blocked: dict[str, int] = defaultdict(int)
    num_syncs = 0
    for call in calls:
        reads = any(
            isinstance(work, CopyWork) and work.kind == _TO_HOST for _, work in call.action.entries
        )
        num_syncs += call.action.until is not None
        if call.action.until is not None or (call.action.blocking and reads):
            blocked[call.action.api.partition("_v")[0]] += call.end_ns - call.start_ns
    return {
        "num_syncs": num_syncs,
        "blocked_ns": sum(blocked.values()),
        "api": max(blocked, key=lambda api: blocked[api], default=None),
    }


def pageable_copies(calls: Iterable[CallRecord]) -> dict[str, Any]:
    """Return the metrics of `pageable-copy` of one process; blocked is the time in these calls."""
    sizes, blocked = [], 0
    for call in calls:
        copies = [work for _, work in call.action.entries if isinstance(work, CopyWork)]
        pageable = [copy for copy in copies if 0 in (copy.source_kind, copy.destination_kind)]
        if pageable:
            blocked += call.end_ns - call.start_ns
            sizes += [copy.bytes for copy in pageable]
    return {"bytes": sum(sizes), "num_copies": len(sizes), "host_blocked_ns": blocked}


_COMPUTE = (labels.FORWARD, labels.BACKWARD, labels.OPTIMIZER_STEP)
_COLLECTIVE = "all_reduce "
_LAST_BUCKET = re.compile(rf"{labels.BUCKET} .*last=1")
_STEP = re.compile(rf"{labels.STEP} (\d+)")


def breakdown(ranges: Sequence[Sequence[RangeRecord]]) -> dict[str, Any]:
    """Return `breakdown` and `steps` as `traceprof analyze --format json` writes them."""
    rows, steps = [], []
    for rank, of_rank in enumerate(ranges):
        measured = _Measures(of_rank)
        start, end = of_rank[0].start_ns, max(range_.end_ns for range_ in of_rank)
        rows.append({"rank": rank, "window_start_ns": start, **measured.within(start, end)})
        matches = [(_STEP.fullmatch(range_.action.name), range_) for range_ in of_rank]
        numbered = [(int(match[1]), range_) for match, range_ in matches if match is not None]
        stops = [*(range_.start_ns for _, range_ in numbered[1:]), numbered[-1][1].end_ns]
        for (number, range_), stop in zip(numbered, stops, strict=True):
            row = {"rank": rank, "step": number, "start_ns": range_.start_ns, "end_ns": stop}
            steps.append({**row, **measured.within(range_.start_ns, stop)})
    return {"breakdown": rows, "steps": steps}


class _Measures:
    """Measures of the only thread of a rank, by the definitions of a rank without a GPU."""

    def __init__(self, ranges: Sequence[RangeRecord]) -> None:
        collectives = [range_ for range_ in ranges if range_.action.name.startswith(_COLLECTIVE)]
        self._called = [range_.start_ns for range_ in collectives if range_.nests]
        self._communication = union((range_.start_ns, range_.end_ns) for range_ in collectives)
        blocked = [(range_.start_ns, range_.end_ns) for range_ in collectives if range_.nests]
        flights = union(
            (range_.start_ns, range_.end_ns) for range_ in collectives if not range_.nests
        )
        backwards = [range_ for range_ in ranges if range_.action.name == labels.BACKWARD]
        # When the last bucket of a backward is ready, all gradients are there: then it waits.
        for bucket in ranges:
            if _LAST_BUCKET.fullmatch(bucket.action.name):
                ends = [range_.end_ns for range_ in backwards if range_.start_ns <= bucket.start_ns]
                blocked += _common(flights, bucket.start_ns, ends[-1])
        waits = union(blocked)
        self._compute = [
            piece
            for range_ in ranges
            if range_.action.name in _COMPUTE
            for piece in _without(range_.start_ns, range_.end_ns, waits)
        ]

    def within(self, start: int, end: int) -> dict[str, int]:
        compute = covered(start, end, self._compute)
        communication = covered(start, end, self._communication)
        overlapped = sum(
            covered(max(start, first), min(end, stop), self._communication)
            for first, stop in self._compute
            if first < end and stop > start
        )
        return {
            "window_ns": end - start,
            "compute_ns": compute,
            "communication_ns": communication,
            "overlapped_communication_ns": overlapped,
            "exposed_communication_ns": communication - overlapped,
            "copy_ns": 0,
            "exposed_copy_ns": 0,
            "idle_ns": end - start - compute - (communication - overlapped),
            "num_kernels": 0,
            "num_communication": sum(start <= time < end for time in self._called),
            "num_copies": 0,
        }


def _common(intervals: Sequence[Interval], start: int, end: int) -> list[Interval]:
    pieces = [(max(first, start), min(stop, end)) for first, stop in intervals]
    return [(first, stop) for first, stop in pieces if first < stop]


def _without(start: int, end: int, waits: Sequence[Interval]) -> list[Interval]:
    """Return [start, end) without disjoint waits, which are in order."""
    edges = [start, *(edge for wait in _common(waits, start, end) for edge in wait), end]
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return [(first, stop) for first, stop in pieces if first < stop]
