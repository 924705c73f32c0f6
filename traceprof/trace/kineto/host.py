"""Host events of a trace: operators, Python functions, API calls, waits, blocked launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.columns import pack, pack_ahead
from traceprof.trace.grouping import distinct_values, groups, is_in
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.host import (
    NO_SPANS,
    ApiCalls,
    EventRecords,
    HostCode,
    LaunchStalls,
    Synchronizations,
    ThreadSpans,
)
from traceprof.trace.model.kinds import SynchronizationKind
from traceprof.trace.model.ranges import Marks, NamedRanges, RangeTable, name_until
from traceprof.trace.model.special_values import NULL, OPEN_END

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.kineto.content import Content

_KINDS = {
    "Event Sync": SynchronizationKind.HOST_FOR_EVENT,
    "Stream Wait Event": SynchronizationKind.STREAM_FOR_EVENT,
    "Stream Sync": SynchronizationKind.HOST_FOR_STREAM,
    "Context Sync": SynchronizationKind.HOST_FOR_DEVICE,
}
_STALL = "Command Buffer Full"


def read_api_calls(content: Content) -> dict[int, ApiCalls]:
    """Return the API calls of each process, instead of their table."""
    columns = content.take(Kind.API_CALL)
    if not columns:
        return {}
    calls = {}
    process = columns[table.PROCESS].values
    for rows in groups(process):
        start = columns[table.START].at(rows) - (content.first_ns or 0)
        correlation = columns[table.CORRELATION].at(rows)
        order = np.lexsort((start, correlation))
        in_order = rows[order]
        calls[int(process[rows[0]])] = ApiCalls(
            pack(start[order]),
            columns[table.LENGTH].taken(in_order),
            pack_ahead(correlation[order]),
            columns[table.THREAD].taken(in_order),
            columns[table.NAME].taken(in_order),
            pack(np.full(len(rows), NULL)),
        )
    return calls


def read_host_code(content: Content, process: int, kind: Kind) -> HostCode | None:
    """Operators or Python functions (`kind`) of a process, in order of start.

    The trace is of one process: their table is no longer needed.
    """
    columns = content.take(kind)
    if not columns:
        return None
    rows = np.flatnonzero(columns[table.PROCESS].isin([process]))
    start = columns[table.START].at(rows) - (content.first_ns or 0)
    order = np.argsort(start, kind="stable")
    rows = rows[order]
    return HostCode(
        pack(start[order]),
        columns[table.LENGTH].taken(rows),
        columns[table.THREAD].taken(rows),
        columns[table.NAME].taken(rows),
        columns[table.EXTERNAL].taken(rows) if table.EXTERNAL in columns else None,
        columns[table.SEQUENCE].taken(rows) if table.SEQUENCE in columns else None,
        columns[table.WORK].taken(rows) if table.WORK in columns else None,
        content.work,
        content.names,
    )


def read_synchronizations(content: Content) -> Synchronizations | None:
    """Return the waits of the process; None if they were not recorded."""
    columns = content.tables.get(Kind.SYNCHRONIZATION)
    if columns is None:
        return None
    start = columns[table.START].values - (content.first_ns or 0)
    order = np.argsort(start, kind="stable")
    start = start[order]
    name = columns[table.NAME].values[order]
    kind_of_name = {
        number: _KINDS.get(content.names[number], SynchronizationKind.UNKNOWN)
        for number in distinct_values(name).tolist()
    }
    return Synchronizations(
        start_ns=start,
        end_ns=start + columns[table.LENGTH].values[order],
        stream=_ids(columns[table.STREAM].values[order]),
        correlation=columns[table.CORRELATION].values[order],
        kind=np.array([kind_of_name[number] for number in name.tolist()], np.int64),
        event=_ids(columns[table.EVENT].values[order]),
        recording=_ids(columns[table.RECORD].values[order]),
        device=_ids(columns[table.DEVICE].values[order]),
    )


def read_event_records(content: Content, calls: ApiCalls | None) -> EventRecords | None:
    """Return the recordings of events that waits refer to; None if no waits were recorded.

    A wait has the event, the stream in which it was recorded, and the call that recorded it.
    """
    columns = content.tables.get(Kind.SYNCHRONIZATION)
    if columns is None or calls is None:
        return None
    record, stream, event, device = (
        _ids(columns[name].values)
        for name in (table.RECORD, table.RECORD_STREAM, table.EVENT, table.DEVICE)
    )
    known = np.flatnonzero((record != NULL) & (stream != NULL) & (event != NULL))
    if len(known) == 0:
        return None
    _, first = np.unique(record[known], return_index=True)
    rows = known[first]
    ids = calls.correlation
    call = np.minimum(np.searchsorted(ids, record[rows]), len(ids) - 1)
    is_known = ids[call] == record[rows]
    called_ns = np.where(is_known, calls.start_ns[call], NULL)
    order = np.lexsort((record[rows], called_ns))
    rows = rows[order]
    return EventRecords(
        called_ns[order], stream[rows], event[rows], record[rows], record[rows], device[rows]
    )


def read_launch_stalls(content: Content, process: int) -> LaunchStalls | None:
    """Return the blocked launches; None if overhead was not recorded."""
    columns = content.tables.get(Kind.OVERHEAD)
    if columns is None:
        return None
    stalls = [number for number, name in enumerate(content.names) if name == _STALL]
    chosen = is_in(columns[table.NAME].values, np.array(stalls, np.int64))
    chosen &= columns[table.PROCESS].values == process
    rows = np.flatnonzero(chosen)
    start = columns[table.START].at(rows) - (content.first_ns or 0)
    rows, start = rows[np.argsort(start, kind="stable")], np.sort(start)
    return LaunchStalls(
        start,
        start + columns[table.LENGTH].at(rows),
        columns[table.THREAD].at(rows),
        columns[table.CORRELATION].at(rows),
    )


def read_overhead(content: Content) -> ThreadSpans:
    """Return the work of CUDA and of the profiler itself: loading, requests of buffers."""
    columns = content.tables.get(Kind.OVERHEAD)
    if columns is None:
        return NO_SPANS
    start = columns[table.START].values - (content.first_ns or 0)
    end = start + columns[table.LENGTH].values
    order = np.lexsort((end, start))
    thread, name = columns[table.THREAD].values, columns[table.NAME].values
    return ThreadSpans(start[order], end[order], thread[order], name[order], content.names)


def _ids(values: Int64) -> Int64:
    ids: Int64 = np.where(values < 0, NULL, values)
    return ids


class Annotations(Record, frozen=True):
    """The annotations of one process, ordered by start, longer ones first."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]; the largest int64 if still open at the recording's end
    thread: Int64  # int64[n]
    name: Int64  # int64[n], indices into `names`
    names: Sequence[str]  # of the trace

    def __len__(self) -> int:
        return len(self.start_ns)

    def matching(self, pattern: re.Pattern[str], until: str = "") -> NamedRanges:
        """Annotations with a match in their name, by start, then end; names end before `until`."""
        numbers = distinct_values(self.name).tolist()
        name_of = {number: name_until(self.names[number], until) for number in numbers}
        numbers = [number for number, name in name_of.items() if pattern.search(name) is not None]
        rows = np.flatnonzero(is_in(self.name, np.array(numbers, np.int64)))
        rows = rows[np.lexsort((self.end_ns[rows], self.start_ns[rows]))]
        thread = self.thread[rows]
        names = [name_of[number] for number in self.name[rows].tolist()]
        return NamedRanges(self.start_ns[rows], self.end_ns[rows], names, thread, thread)

    def table(self) -> RangeTable:
        """Return all annotations."""
        nests = np.ones(len(self), np.bool_)
        return RangeTable(self.start_ns, self.end_ns, self.name, self.thread, nests, self.names)


def read_annotations(content: Content) -> dict[int, Annotations]:
    """Return the annotations of each process that has any."""
    columns = content.tables.get(Kind.ANNOTATION)
    if columns is None:
        return {}
    process = columns[table.PROCESS].values
    annotations = {}
    for rows in groups(process):
        start = columns[table.START].at(rows) - (content.first_ns or 0)
        end = start + columns[table.LENGTH].at(rows)
        end[columns[table.IS_OPEN].at(rows) > 0] = OPEN_END
        order = np.lexsort((-end, start))
        annotations[int(process[rows[0]])] = Annotations(
            start[order],
            end[order],
            columns[table.THREAD].at(rows)[order],
            columns[table.NAME].at(rows)[order],
            content.names,
        )
    return annotations


def read_marks(content: Content) -> dict[int, Marks]:
    """Return the marks of each process that has any."""
    columns = content.tables.get(Kind.MARK)
    if columns is None:
        return {}
    process = columns[table.PROCESS].values
    marks = {}
    for rows in groups(process):
        time = columns[table.START].at(rows) - (content.first_ns or 0)
        order = np.argsort(time, kind="stable")
        marks[int(process[rows[0]])] = Marks(
            time[order],
            columns[table.NAME].at(rows)[order],
            columns[table.THREAD].at(rows)[order],
            content.names,
        )
    return marks
