"""GPU operations with their launches, event records and stream waits, for references only.

It shares no code with ``traceprof``: rows are read with sqlite3 and kept in plain lists. Times are
ns of the file's own clock.

* operation: a row of KERNEL, MEMCPY, MEMSET or GRAPH_TRACE with a process, a device, start <= end.
* launch: the API call of its process with its correlation id; of several the latest that begins by
  the operation's start, else the earliest. Kernels without a launch row keep None.
* record: a row of CUDA_EVENT whose correlation id has an API call: event and stream, at that call.
* wait: a call whose name begins with `cudaStreamWaitEvent` or `cuStreamWaitEvent`, joined with
  SYNCHRONIZATION on (process, correlation id): stream and event. The row's syncType means other
  things in other versions and is not looked at.
* producer of a wait: the last record of its event in that process that began before the wait did.
* host order: API calls by (start, end, correlation id). An operation, a record and a wait all
  stand in the order of their calls; so does a stream's work.
"""

import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.reference.breakdown import (
    LOW_24_BITS,
    NEVER,
    SHAPE,
    are_two,
    default_is_communication,
    integers,
    opened,
    operation_rows,
    peer_kinds,
    rows,
)
from tests.reference.kept import kept
from tests.reference.spans import Span, union

Key = tuple[int, int]  # (globalPid, deviceId)
NO_STREAM = 4294967295  # the exporter's stand-in for "no stream"
COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
PAGEABLE = 0  # ENUM_CUDA_MEM_KIND


class Call(NamedTuple):
    start: int
    end: int
    correlation: int
    thread: int
    name: str


@dataclass(eq=False)
class Operation:
    """A GPU operation of one rank."""

    kind: str
    table: str  # KERNEL, MEMCPY, MEMSET, GRAPH_TRACE
    start: int
    end: int
    stream: int
    call: Call | None
    name: str = ""  # a kernel's short name
    demangled: str = ""
    text: str = ""  # of the two the demangled one, where the export has such names
    bytes: int = 0
    copy_kind: int | None = None
    source_kind: int | None = None
    target_kind: int | None = None
    signature: tuple[Any, ...] = ()

    @property
    def order(self) -> tuple[int, ...]:
        """Where it stands in its stream: by its call, of one call by its start."""
        call = (self.call.start, self.call.end, self.call.correlation) if self.call else ()
        return (*call, self.start, self.end)


class StreamEvent(NamedTuple):
    """An event record or a stream wait."""

    call: Call
    stream: int
    event: int


@dataclass
class Rank:
    """What one process did on one device; lists in order of start (operations) and of call."""

    process: int
    device: int
    operations: list[Operation] = field(default_factory=list)
    records: list[StreamEvent] = field(default_factory=list)
    waits: list[StreamEvent] = field(default_factory=list)

    @property
    def window(self) -> Span:
        return (min(op.start for op in self.operations), max(op.end for op in self.operations))

    def of_kind(self, *kinds: str) -> list[Operation]:
        return [op for op in self.operations if op.kind in kinds]


def spans_of(operations: list[Operation]) -> list[Span]:
    return union([(op.start, op.end) for op in operations])


def owned(operations: list[Operation], start: int, end: int) -> list[tuple[Operation, list[Span]]]:
    """What each of some operations owns of [start, end): where none that began earlier runs."""
    order = sorted(operations, key=lambda op: (op.start, op.end, op.table, op.copy_kind or 0))
    reached, result = start, []
    for op in order:
        low, high = max(op.start, reached), min(op.end, end)
        result.append((op, [(low, high)] if low < high else []))
        reached = max(reached, op.end)
    return result


@kept
def read(path: Path) -> list[Rank]:
    """The ranks of an export, ordered by (pid, device)."""
    with opened(path) as (db, strings):
        calls = read_calls(db, strings)
        ranks = read_operations(db, strings, calls)
        read_events(db, calls, ranks)
    for rank in ranks.values():
        rank.operations.sort(key=lambda op: (op.start, op.end))
        rank.records.sort()
        rank.waits.sort()
    order = sorted(ranks, key=lambda key: ((key[0] >> 24) & LOW_24_BITS, key[1], key[0]))
    return [ranks[key] for key in order]


def read_calls(
    db: sqlite3.Connection, strings: dict[Any, str]
) -> dict[tuple[int, int], list[Call]]:
    """All API calls by (process, correlation id), each list in host order."""
    calls: dict[tuple[int, int], list[Call]] = defaultdict(list)
    columns = ("start", "end", "correlationId", "globalTid", "nameId")
    for row in rows(db, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns):
        start, end, correlation, thread, name = integers(*row)
        if start is None or thread is None or correlation is None:
            continue
        end = start if end is None else max(start, end)
        call = Call(start, end, correlation, thread, strings.get(name, ""))
        calls[thread & ~LOW_24_BITS, correlation].append(call)
    for of_id in calls.values():
        of_id.sort()
    return calls


def call_of(
    calls: dict[tuple[int, int], list[Call]], process: int, correlation: int | None, start: int
) -> Call | None:
    candidates = calls.get((process, correlation)) if correlation is not None else None
    if not candidates:
        return None
    return candidates[max(bisect_right([call.start for call in candidates], start) - 1, 0)]


def read_operations(
    db: sqlite3.Connection, strings: dict[Any, str], calls: dict[tuple[int, int], list[Call]]
) -> dict[Key, Rank]:
    peers = peer_kinds(db)
    present = {row[1] for row in db.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    ranks: dict[Key, Rank] = {}
    columns = ("correlationId", "streamId", "shortName", "demangledName", "bytes", "copyKind",
               "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", *SHAPE)  # fmt: skip
    for table, start, end, process, device, *more in operation_rows(db, *columns):
        correlation, stream, short, demangled, size, copy_kind, *rest = more
        source_kind, target_kind, source, target, *shape = rest
        names = strings.get(short), strings.get(demangled)
        kind = COMPUTE if table in {"KERNEL", "GRAPH_TRACE"} else COPY
        if table == "KERNEL" and default_is_communication(*names):
            kind = COMMUNICATION
        if table == "MEMCPY" and (copy_kind in peers or are_two(source, target)):
            kind = COMMUNICATION
        call = call_of(calls, process, correlation, start)
        name = demangled if "demangledName" in present else short
        operation = Operation(
            kind, table, start, end, NO_STREAM if stream is None else stream, call,
            names[0] or "", names[1] or "", strings.get(name, ""), size or 0, copy_kind,
            source_kind, target_kind,
            (name, *shape) if table == "KERNEL" else (),
        )  # fmt: skip
        rank = ranks.setdefault((process, device), Rank(process, device))
        rank.operations.append(operation)
    return ranks


def read_events(
    db: sqlite3.Connection, calls: dict[tuple[int, int], list[Call]], ranks: dict[Key, Rank]
) -> None:
    """Put event records and stream waits to the ranks of their process and device.

    Where a process has one device, all of its rows are that rank's, whatever device they name.
    """
    of_process: dict[int, list[Rank]] = defaultdict(list)
    for rank in ranks.values():
        of_process[rank.process].append(rank)
    columns = ("globalPid", "deviceId", "correlationId", "streamId", "eventId")
    for row in rows(db, "CUPTI_ACTIVITY_KIND_CUDA_EVENT", *columns):
        process, device, correlation, stream, event = integers(*row)
        if process is None or stream is None or event is None:
            continue
        call = call_of(calls, process, correlation, NEVER)
        for rank in of_process[process]:
            if call is not None and (rank.device == device or len(of_process[process]) == 1):
                rank.records.append(StreamEvent(call, stream, event))
    for row in rows(db, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", *columns):
        process, device, correlation, stream, event = integers(*row)
        if process is None or stream is None or event is None or stream == NO_STREAM:
            continue
        call = call_of(calls, process, correlation, NEVER)
        if call is None or not re.match(r"(cuda|cu)StreamWaitEvent", call.name):
            continue
        for rank in of_process[process]:
            if rank.device == device or len(of_process[process]) == 1:
                rank.waits.append(StreamEvent(call, stream, event))
