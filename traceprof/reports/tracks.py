"""Rows of a rank's timeline: streams of the GPU, threads of the host."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.run.rank import CpuRank
from traceprof.structs import Record
from traceprof.trace.grouping import groups
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.special_values import OPEN_END

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int32, Int64, Mask
    from traceprof.run.rank import Rank


OPERATORS = "operators"
_COPY_NAMES = {int(kind): f"{kind.label} copy" for kind in CopyKind}


class EventKind(IntEnum):
    """What an event is, which gives it its colour."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    CALL = 3
    RANGE = 4
    MARK = 5

    def __str__(self) -> str:
        """Return the name as people read it."""
        return self.name.lower()


_COMPUTE, _COMMUNICATION, _COPY = map(
    np.int8, (EventKind.COMPUTE, EventKind.COMMUNICATION, EventKind.COPY)
)


class Track(Record, frozen=True):
    """Events of one stream, or of one kind on one thread, by start, longer ones first.

    Attributes:
        label: such as `stream 7`.
        number: of the stream or, as the operating system has it, of the thread.
        is_host: whether it is a thread's.
        nests: whether events may lie inside each other, as calls do; else none is to overlap.
        start_ns: int64[n], in the report's time.
        end_ns: int64[n].
        name: int32[n], indices into `names`.
        names: of the events.
        category: int8[n], values of `EventKind`.
        operation: int32[n], indices into the rank's kernels or, without a GPU, into what it
            communicated; -1 for what is neither.
        row: int32[n], indices into all operations of the rank's GPU, one kind after the other, or
            into the calls of its process; -1 for what is neither.
    """

    label: str
    number: int
    is_host: bool
    nests: bool
    start_ns: Int64
    end_ns: Int64
    name: Int32
    names: Sequence[str]
    category: npt.NDArray[np.int8]
    operation: Int32
    row: Int32

    def __len__(self) -> int:
        return len(self.start_ns)

    def chosen(self, index: Int64 | Mask | slice) -> Track:
        """Return the same track with some of its events."""
        return Track(
            self.label, self.number, self.is_host, self.nests, self.start_ns[index],
            self.end_ns[index], self.name[index], self.names, self.category[index],
            self.operation[index], self.row[index],
        )  # fmt: skip


def gpu_tracks(rank: Rank) -> Iterator[Track]:
    """Yield what each stream of a rank's GPU did: kernels, copies, memory sets, CUDA graphs."""
    names: list[str] = []
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    kernels, copies, memsets, graphs = rank.operations.groups
    for operations, name, texts, category in (
        (kernels, rank.operations.kernels.name, rank.kernel_names,
         np.where(rank.is_communication_kernel, _COMMUNICATION, _COMPUTE)),
        (copies, rank.operations.copies.kind, _COPY_NAMES,
         np.where(rank.is_peer_copy, _COMMUNICATION, _COPY)),
        (memsets, None, {0: "memset"}, np.full(len(memsets), _COPY)),
        (graphs, None, {0: "CUDA graph"}, np.full(len(graphs), _COMPUTE)),
    ):  # fmt: skip
        keys = np.zeros(len(operations), np.int64) if name is None else name
        index, of_group = _numbered(keys, texts, "unknown", len(names))
        names += of_group
        number = np.full(len(operations), -1, np.int32)
        if operations is kernels:
            number = np.arange(len(operations), dtype=np.int32)
        columns.append(
            (operations.stream, operations.start_ns, operations.end_ns, index, category, number)
        )
    stream, start, end, index, category, number = map(np.concatenate, zip(*columns, strict=True))
    columns.clear()  # what is in memory twice is much
    for rows in groups(stream) if len(stream) else ():
        order = rows[np.lexsort((-end[rows], start[rows]))]
        of_stream = int(stream[rows[0]])
        yield Track(
            f"stream {of_stream}", of_stream, False, False, start[order], end[order], index[order],
            names, category[order], number[order], order.astype(np.int32),
        )  # fmt: skip


def communication_track(rank: CpuRank) -> Track:
    """Return what a rank without a GPU communicated, by the ranges of `instrument`."""
    operations, labels = rank.work.operations, rank.trace.label_ranges[rank.process]
    order = np.lexsort((-operations.end_ns, operations.start_ns))
    category = np.full(len(order), EventKind.COMMUNICATION, np.int8)
    return Track(
        "communication", 0, True, False, operations.start_ns[order], operations.end_ns[order],
        operations.text[order].astype(np.int32), labels.texts, category, order.astype(np.int32),
        np.full(len(order), -1, np.int32),
    )  # fmt: skip


def host_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the ranges of each thread of a rank's process, and its API calls.

    A range that was open when the capture ended, ends with the last one that did not.
    """
    yield from _range_tracks(rank)
    calls = None if isinstance(rank, CpuRank) and not rank.trace.api_names else rank.calls
    if calls is None or len(calls) == 0:
        return
    start, end = calls.start_ns, calls.end_ns
    index, names = _numbered(calls.name, rank.trace.api_names, "(unnamed call)")
    for rows in groups(calls.thread):
        thread = int(calls.thread[rows[0]])
        yield _host_track(
            rank, thread, "CUDA calls", True, rows, start, end, index, names, EventKind.CALL
        )


def _range_tracks(rank: Rank) -> Iterator[Track]:
    table = rank.trace.range_table(rank.process)
    if table is None or len(table) == 0:
        return
    is_open = table.end_ns == OPEN_END
    over = table.end_ns[~is_open]
    latest = max(int(over.max()) if len(over) else 0, int(table.start_ns.max()))
    end = np.where(is_open, latest, table.end_ns)
    for rows in groups(table.thread, table.nests.astype(np.int64)):
        thread, nests = int(table.thread[rows[0]]), bool(table.nests[rows[0]])
        what = "ranges" if nests else "ranges started and ended"
        yield _host_track(
            rank, thread, what, nests, rows, table.start_ns, end, table.name, table.names
        )


def operator_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the operators of each thread of a rank's process, as torch.profiler records them."""
    operators = rank.trace.operators(rank.process)
    if operators is None:
        return
    thread, name = operators.packed_thread.values, operators.packed_name.values
    start, end = operators.start_ns, operators.end_ns
    for rows in groups(thread):
        yield _host_track(
            rank, int(thread[rows[0]]), OPERATORS, True, rows, start, end, name, operators.names
        )


def mark_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the marks of each thread of a rank's process: moments, which end when they begin."""
    marks = rank.trace.marks(rank.process)
    if marks is None:
        return
    for rows in groups(marks.thread):
        thread, times = int(marks.thread[rows[0]]), marks.time_ns
        yield _host_track(
            rank,
            thread,
            "marks",
            False,
            rows,
            times,
            times,
            marks.name,
            marks.names,
            EventKind.MARK,
        )


def _host_track(
    rank: Rank, thread: int, what: str, nests: bool, rows: Int64, start_ns: Int64, end_ns: Int64,
    name: Int32 | Int64, names: Sequence[str], category: EventKind = EventKind.RANGE,
) -> Track:  # fmt: skip
    number = rank.trace.thread_number(thread)
    order = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    return Track(
        f"thread {number}: {what}", number, True, nests, start_ns[order], end_ns[order],
        name[order].astype(np.int32), names, np.full(len(order), category, np.int8),
        np.full(len(order), -1, np.int32),
        order.astype(np.int32) if category is EventKind.CALL else np.full(len(order), -1, np.int32),
    )  # fmt: skip


def _numbered(
    keys: Int64, texts: Mapping[int, str], unknown: str, first: int = 0
) -> tuple[Int32, list[str]]:
    """Return places of names, from `first` on, instead of their keys, and the names."""
    distinct, index = np.unique(keys, return_inverse=True)
    return (index.reshape(-1) + first).astype(np.int32), [
        texts.get(key, unknown) for key in distinct.tolist()
    ]
