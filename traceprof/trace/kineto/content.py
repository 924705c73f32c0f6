"""A trace's content as columns: each kind of event as a table that grows list by list."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from traceprof.errors import TraceFormatError
from traceprof.intervals import Int64
from traceprof.progress import Progress
from traceprof.trace.columns import Column, ColumnBuilder
from traceprof.trace.kineto import operator_work
from traceprof.trace.kineto.document import RECORD_AGAIN, KinetoDocument, without_events
from traceprof.trace.kineto.events import AnyEvent, EventDecoder, Events, Kind
from traceprof.trace.kineto.file import TraceFile
from traceprof.trace.model.special_values import (
    MAX_EVENT_NS,
    MAX_SUM_NS,
    NULL,
    UNKNOWN,
    clipped,
    known_devices,
    known_sizes,
)

START, LENGTH, PROCESS, THREAD = "start", "length", "process", "thread"
DEVICE, STREAM, CORRELATION, NAME, BYTES = "device", "stream", "correlation", "name", "bytes"
COPYING_DEVICE, SOURCE, DESTINATION = "copying device", "source", "destination"
RECORD_STREAM, EVENT, RECORD = "record stream", "event", "record"
EXTERNAL, SEQUENCE, WORK = "external", "sequence", "work"
SIGNATURE, FACTS, IS_OPEN = "signature", "facts", "is open"

_OF_GPU = {DEVICE: "args.device", STREAM: "args.stream", CORRELATION: "args.correlation"}
_OF_HOST = {PROCESS: "pid", THREAD: "tid"}
_INTEGERS: dict[Kind, dict[str, str]] = {
    Kind.KERNEL: _OF_GPU,
    Kind.COPY: _OF_GPU
    | {
        BYTES: "args.bytes",
        COPYING_DEVICE: "args.copying_device",
        SOURCE: "args.source_device",
        DESTINATION: "args.destination_device",
    },
    Kind.MEMORY_SET: _OF_GPU | {BYTES: "args.bytes"},
    Kind.API_CALL: _OF_HOST | {CORRELATION: "args.correlation"},
    Kind.SYNCHRONIZATION: _OF_GPU
    | {
        RECORD_STREAM: "args.awaited_stream",
        EVENT: "args.awaited_event",
        RECORD: "args.awaited_record",
    },
    Kind.ANNOTATION: _OF_HOST,
    Kind.OPERATOR: _OF_HOST,
    Kind.OVERHEAD: _OF_HOST | {CORRELATION: "args.correlation"},
    Kind.MARK: _OF_HOST,
    Kind.HOST_OPERATOR: _OF_HOST | {EXTERNAL: "args.external", SEQUENCE: "args.autograd_sequence"},
    Kind.PYTHON: _OF_HOST,
}
# Columns without which an event is unusable if its kind has them; synchronizations lack devices.
_NEEDED = (START, LENGTH, DEVICE, PROCESS, THREAD)
_NOT_FIRST = frozenset({Kind.HOST_OPERATOR, Kind.PYTHON})  # times do not count from them
ANNOTATION = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl):(\w+)")
"""Annotations of calls by back ends of PyTorch; the group is the function."""
_UNKNOWN_WORK = NULL, UNKNOWN, UNKNOWN
_COMPLETE, _INSTANTS = "X", ("i", "I")
_MAY_BE_MARKS = frozenset({Kind.MARK, Kind.ANNOTATION, Kind.OTHER})
_BEYOND_NS = 1 << 61  # of any clock
_THREAD_NAME, _PROCESS_NAME = "thread_name", "process_name"
_WINDOW_END = "Record Window End"


class Numbers(dict[Any, int]):
    """Numbers for keys in order of first occurrence."""

    def __missing__(self, key: Hashable) -> int:
        number = self[key] = len(self)
        return number

    def of(self, keys: Iterable[Hashable], count: int) -> Int64:
        """Return the number of each, int64[n]."""
        return np.fromiter(map(self.__getitem__, keys), np.int64, count)


class TextNumbers(Numbers):
    """Numbers for the texts that are read."""

    def __missing__(self, text: Any) -> int:  # noqa: ANN401  (as a dictionary has it)
        short = clipped(text)
        return super().__missing__(text) if short == text else self[short]


class Content:
    """The content of a trace.

    Attributes:
        facts: facts of the trace, from the top of its document.
        is_cut: whether the document ends in the middle.
        num_events: numbers of events by kind.
        tables: columns by kind of event, in the order of the document, as long as they are needed.
        names: names of kernels, API calls, copies, annotations and overhead, by number.
        signatures: name, grid and block of kernels, by number.
        work: int64[m, 3], multiplications and additions of operators, NULL if shapes do not say
            them, and the bytes that they move and read at least, negative where shapes do not say
            it; by number.
        calls: operators that communicate, and annotations of communication, by number.
        first_ns: the start of the first event.
        end_ns: the end of the recording; None if unknown.
        thread_names, process_names: by thread and process.
        num_unusable: the number of events that were left out.
        num_unread: numbers of events of accelerators that are not read, by category.
        num_repaired: the number of events with texts that were no JSON.
    """

    def __init__(self, file: TraceFile, progress: Progress | None = None) -> None:
        """Read a trace.

        Raises:
            TraceFileError: the file cannot be read.
            TraceFormatError: it is damaged, or holds no complete event.
        """
        self._builders: dict[Kind, dict[str, ColumnBuilder]] = {}
        self._names, self._signatures = TextNumbers(), Numbers()
        self._work = Numbers({_UNKNOWN_WORK: 0})
        self._starts_ns: list[int] = []
        self._sum_ns = 0.0
        self.calls: list[AnyEvent] = []
        self.end_ns: int | None = None
        self.thread_names: dict[int, str] = {}
        self.process_names: dict[int, str] = {}
        self.num_unusable = 0
        self.num_unread = Counter[str]()
        decoder = EventDecoder()
        document = KinetoDocument(file, file.pieces(progress), decoder, self._add)
        self.facts, self.is_cut = document.facts, document.is_cut
        self.num_repaired = document.num_repaired
        self.num_unusable += decoder.num_unusable
        if not self._starts_ns:
            raise without_events(file, is_cut=self.is_cut, unread=frozenset(self.num_unread))
        if self._sum_ns >= MAX_SUM_NS:
            raise file.damaged("its events take longer than any clock counts", RECORD_AGAIN)
        self.first_ns = min(self._starts_ns)
        self.tables: dict[Kind, Mapping[str, Column]] = {
            kind: {name: column.finish() for name, column in table.items()}
            for kind, table in self._builders.items()
        }
        self._builders.clear()
        self.num_events = {kind: len(table[START]) for kind, table in self.tables.items()}
        self.names, self.signatures = tuple(self._names), tuple(self._signatures)
        self.work: Int64 = np.array([*self._work], np.int64)

    def take(self, kind: Kind) -> Mapping[str, Column]:
        """Return a table, empty if there is none, and keep it no longer."""
        return self.tables.pop(kind, {})

    def _add(self, by_kind: Mapping[Kind, Events]) -> None:
        for kind, events in by_kind.items():
            if kind in _MAY_BE_MARKS:
                self._add_marks(events)
            if kind == Kind.OTHER:
                self._note(events)
            elif kind == Kind.SPAN:
                self._starts_ns += events.start_ns[events.start_ns != NULL].tolist()
            elif kind == Kind.UNREAD:
                self.num_unread.update(events.values("cat"))
            elif kind != Kind.MARK:
                self._add_rows(kind, events)

    def _add_marks(self, events: Events) -> None:
        """Add the instant events of threads; others are the profiler's own marks."""
        events = events.chosen(np.logical_or.reduce([events.have("ph", ph) for ph in _INSTANTS]))
        columns = {START: events.start_ns} | {
            name: events.integers(of) for name, of in _INTEGERS[Kind.MARK].items()
        }
        is_usable = np.logical_and.reduce([values != NULL for values in columns.values()])
        is_usable &= np.abs(events.start_ns) < _BEYOND_NS
        if not is_usable.any():
            return
        events = events.chosen(is_usable)
        columns = {name: values[is_usable] for name, values in columns.items()}
        columns[NAME] = self._names.of(events.values("name"), len(events))
        self._append(Kind.MARK, columns)

    def _add_rows(self, kind: Kind, events: Events) -> None:
        columns = {
            START: events.start_ns,
            LENGTH: events.length_ns,
            **{name: events.integers(of) for name, of in _INTEGERS[kind].items()},
        }
        is_complete = events.have("ph", _COMPLETE)
        if BYTES in columns:
            columns[BYTES] = known_sizes(columns[BYTES])
        if kind == Kind.COPY:
            device, other = columns[DEVICE], columns.pop(COPYING_DEVICE)
            columns[DEVICE] = np.where(device == NULL, other, device)
            columns |= {end: known_devices(columns[end]) for end in (SOURCE, DESTINATION)}
        if CORRELATION in columns and (columns[CORRELATION] == NULL).any():
            columns |= _of_bare_events(columns, events)
        may_lack = {DEVICE} if kind == Kind.SYNCHRONIZATION else set()
        needed = [columns[name] != NULL for name in _NEEDED if name in columns.keys() - may_lack]
        length = events.length_ns
        is_time = (length >= 0) & (length < MAX_EVENT_NS) & (np.abs(events.start_ns) < _BEYOND_NS)
        is_usable = np.logical_and.reduce([*needed, is_complete, is_time])
        if not is_usable.all():
            if kind != Kind.OPERATOR:  # which is also among all operators
                self.num_unusable += int((is_complete & ~is_usable).sum())
            events = events.chosen(is_usable)
            columns = {name: values[is_usable] for name, values in columns.items()}
            if len(events) == 0:
                return
        self._sum_ns += float(columns[LENGTH].sum(dtype=np.float64))
        names = events.values("name")
        if kind == Kind.KERNEL:
            numbers = self._names.of(names, len(events)).tolist()
            shapes = (events.values("args.grid"), events.values("args.block"))
            signatures = zip(numbers, *shapes, strict=True)
            columns[SIGNATURE] = self._signatures.of(signatures, len(events))
        else:
            columns[NAME] = self._names.of(names, len(events))
        if kind not in _NOT_FIRST:
            self._starts_ns.append(int(columns[START].min()))
        self._append(kind, columns | self._more_columns(kind, events))

    def _append(self, kind: Kind, columns: Mapping[str, Int64]) -> None:
        table = self._builders.setdefault(kind, {name: ColumnBuilder() for name in columns})
        for name, column in table.items():
            column.append(columns[name])

    def _more_columns(self, kind: Kind, events: Events) -> dict[str, Int64]:
        columns = {}
        if kind == Kind.HOST_OPERATOR:
            columns[WORK] = self._work.of(map(_work, events.rows), len(events))
        if kind in {Kind.OPERATOR, Kind.ANNOTATION}:
            columns[FACTS] = self._facts(kind, events)
        if kind == Kind.ANNOTATION:
            finished = events.values("args.finished")
            columns[IS_OPEN] = np.array([value is False for value in finished], np.int64)
        return columns

    def _facts(self, kind: Kind, events: Events) -> Int64:
        """Keep operators and annotations of communication; return their numbers, or -1."""
        number = np.full(len(events), UNKNOWN, np.int64)
        for row, event in enumerate(events.rows):
            if kind == Kind.OPERATOR or ANNOTATION.match(event.name):
                number[row] = len(self.calls)
                self.calls.append(event)
        return number

    def _note(self, events: Events) -> None:
        """Read names of threads and processes, and the end of the recording."""
        for row, start in zip(events.rows, events.start_ns.tolist(), strict=True):
            if row.name == _WINDOW_END and start != NULL:
                self.end_ns = start
            elif row.name == _THREAD_NAME and row.args.name and isinstance(row.tid, int):
                self.thread_names.setdefault(row.tid, clipped(row.args.name))
            elif row.name == _PROCESS_NAME and row.args.name and isinstance(row.pid, int):
                self.process_names.setdefault(row.pid, clipped(row.args.name))


def only_process(content: Content, path: Path) -> int:
    """Return the process of the trace: that of the host's events.

    Raises TraceFormatError: there are several: the processes of GPU operations are unknown.
    """
    processes = {
        process
        for kind in (Kind.API_CALL, Kind.ANNOTATION, Kind.OPERATOR)
        if kind in content.tables
        for process in content.tables[kind][PROCESS].counted()[0].tolist()
    }
    if len(processes) > 1:
        raise TraceFormatError(
            f"cannot read {path}",
            f"it holds the host's events of {len(processes)} processes, like traces that were"
            " merged into one: the processes of GPU operations are unknown",
            "give the traces that each process wrote, or their folder",
        )
    if not processes and Kind.HOST_OPERATOR in content.tables:
        return int(content.tables[Kind.HOST_OPERATOR][PROCESS].first)
    return processes.pop() if processes else max(content.process_names, default=0)


def _of_bare_events(columns: Mapping[str, Int64], events: Events) -> dict[str, Int64]:
    """Return device, stream and correlation of events that have only an `External id`.

    ROCm's profiler writes such ones: their process is the device, their thread the stream, and
    that number is the same for a call and what it launched.
    """
    of_event = {DEVICE: "pid", STREAM: "tid"} if DEVICE in columns else {}
    number = events.integers("args.external")
    is_bare = np.logical_and.reduce([columns[name] == NULL for name in (*of_event, CORRELATION)])
    is_bare &= number != NULL
    if not is_bare.any():
        return {}
    found = {name: events.integers(of) for name, of in of_event.items()} | {CORRELATION: number}
    return {name: np.where(is_bare, of, columns[name]) for name, of in found.items()}


def _work(event: AnyEvent) -> tuple[int, int, int]:
    """FLOPs of an operator and the bytes that it moves and reads: `Content.work`."""
    name, shapes, flops, moved = event.name, event.args, None, None
    if name in operator_work.FLOP_FORMULAS:
        flops = operator_work.flops_of(name, bytes(shapes.input_sizes), bytes(shapes.input_values))
    if name in operator_work.BYTE_FORMULAS:
        texts = shapes.input_sizes, shapes.input_types, shapes.input_strides
        moved = operator_work.bytes_of(name, *map(bytes, texts))
    return NULL if flops is None else flops, *(moved or (UNKNOWN, UNKNOWN))
