"""What an export lacks, computed a second time: a loop over launches, with plain lists."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.reference import kineto
from tests.reference.nsight_export import LOW_24_BITS, Export
from tests.reference.spans import covered, union

_LAUNCH = re.compile(
    r"(cuda|cu|hip)((Ext)?(Module)?(Graph)?Launch(?!HostFunc)|Mem(cpy|set)(?!.*(Alloc|Free)))\w*?(_v\d+)?(_ptsz)?"
)
_WAIT = re.compile(
    r"cuda(Device|Thread|Stream|Event)Synchronize.*|cu(Ctx|Stream|Event)Synchronize.*"
)


class Launch(NamedTuple):
    start: int
    end: int
    thread: int
    name: str
    id: int


class Row(NamedTuple):
    """A recorded operation with the id of its call."""

    id: int
    stream: int
    start: int
    end: int


class Operation(NamedTuple):
    """A recorded operation with the start of its call."""

    called: int
    start: int
    end: int


class Losses(NamedTuple):
    """What one process of an export lacks."""

    num_launches: int
    num_lost: int
    num_cut: int
    lost_ns: int


def losses(path: Path, pid: int) -> Losses:
    """Return what a process of an Nsight export lacks; as `losses_among` does."""
    export = Export(path)
    calls = [
        Launch(call.start, call.end, call.thread, call.name, call.correlation)
        for process, of_process in export.calls.items()
        for call in of_process
        if process >> 24 & LOW_24_BITS == pid
    ]
    rows = [
        Row(op.correlation or 0, op.stream, op.start, op.end)
        for (process, _), operations in export.ranks.items()
        for op in operations
        if process >> 24 & LOW_24_BITS == pid and op.table != "GRAPH_TRACE"
    ]
    return losses_among(calls, rows)


def losses_of_profiler(facts: dict[str, Any]) -> Losses:
    """Return what a trace of torch.profiler lacks, read by `kineto.document`."""
    rows, uncertain = list[Row](), set[str]()
    for category, word in (
        ("kernel", "Launch"),
        ("gpu_memcpy", "Memcpy"),
        ("gpu_memset", "Memset"),
    ):
        some = kineto.events(facts, category)
        if not some or any(one["args"]["correlation"] <= 0 for one in some):
            uncertain.add(word)  # no call can be compared with records without ids
        rows += [
            Row(one["args"]["correlation"], one["args"]["stream"], one["start"], one["end"])
            for one in some
        ]
    ids = {row.id for row in rows}
    calls = [
        Launch(call["start"], call["end"], call["tid"], call["name"], call["args"]["correlation"])
        for call in kineto.events(facts, "cuda_runtime", "cuda_driver")
        if call["args"].get("correlation", 0) in ids
        or not any(word in call["name"] for word in uncertain)
    ]
    return losses_among(calls, rows)


def losses_among(calls: Sequence[Launch], rows: Sequence[Row]) -> Losses:
    """Return what a process lacks, whose launches have distinct ids, none in the other's call.

    Less than all kernels are missing, and no collective.
    """
    launches = [call for call in calls if _LAUNCH.fullmatch(call.name)]
    waits = sorted(call for call in calls if _WAIT.fullmatch(call.name))
    of_id = {call.id: call for call in launches}
    streams: dict[int, list[Operation]] = defaultdict(list)
    used: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for id_, stream, start, end in rows:
        if id_ in of_id:
            call = of_id[id_]
            streams[stream].append(Operation(call.start, start, end))
            used[call.thread, call.name].append((call.start, stream))
    present = {row[0] for row in rows}
    missing = [call for call in launches if call.id not in present]
    if not any("Launch" in call.name for call in missing):  # copies and sets may be of 0 bytes
        launches, missing = [call for call in launches if call.id in present], []
    cut, maybe, lost = _sorted_out(missing, streams, used)
    lost, cut = (lost + maybe, cut) if len(lost) > len(launches) / 1000 else (lost, cut + maybe)
    spans = []
    for call in lost:
        known = sorted(used[call.thread, call.name])
        if not known:
            ends = [wait.end for wait in waits if wait.start >= call.start]
            spans.append((call.start, ends[0] if ends else 1 << 62))
        for stream in _near(call, known, is_rare=len(lost) < len(launches) / 100) or streams:
            before = [item.end for item in streams[stream] if item.called <= call.start]
            after = [item.start for item in streams[stream] if item.called > call.start]
            if after:
                spans.append((max([call.start, *before]), min(after)))
    busy = [(start, end) for _, _, start, end in rows]
    low, high = min(start for start, _ in busy), max(end for _, end in busy)
    lost_ns = covered(union([*busy, *spans]), low, high) - covered(union(busy), low, high)
    return Losses(len(launches), len(lost), len(cut), lost_ns)


def _sorted_out(
    missing: list[Launch],
    streams: dict[int, list[Operation]],
    used: dict[tuple[int, str], list[tuple[int, int]]],
) -> tuple[list[Launch], list[Launch], list[Launch]]:
    """Return the launches that are cut, those that may be, and those that are lost."""
    cut, maybe, lost = [], [], []
    for call in missing:
        of_function = {stream for _, stream in used[call.thread, call.name]}
        of_thread = {
            stream
            for (thread, _), some in used.items()
            if thread == call.thread
            for _, stream in some
        }
        lasts = [max(streams[stream]) for stream in of_function or of_thread or set(streams)]
        over = [last for last in lasts if last.called < call.start]
        if len(over) == len(lasts):
            cut.append(call)
        elif any(call.start < last.start for last in over):
            maybe.append(call)
        else:
            lost.append(call)
    return cut, maybe, lost


def _near(call: Launch, known: list[tuple[int, int]], *, is_rare: bool) -> set[int]:
    """Return the streams that a launch may have gone to: of its neighbours, or of all like it."""
    if not is_rare:
        return {stream for _, stream in known}
    before = [stream for called, stream in known if called < call.start][-1:]
    after = [stream for called, stream in known if called >= call.start][:1]
    return {*(before or after), *(after or before)}
