"""What an Nsight export says of the GPUs: kernels, copies, memory sets, graphs as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.trace.columns import ColumnBuilder, pack
from traceprof.trace.grouping import pieces
from traceprof.trace.model.operations import (
    Copies,
    Kernels,
    KernelsOnDemand,
    Operations,
    RankKey,
    RankOperations,
    Signatures,
)
from traceprof.trace.model.special_values import NULL
from traceprof.trace.model.trace import SectionData
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.kernel_signatures import Signer
from traceprof.trace.nsight.kinds import read_kinds, translated
from traceprof.trace.nsight.rows import check_few_processes, check_times
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.nsight.kinds import Kinds
    from traceprof.trace.sqlite.database import Database

    Columns = dict[str, Int64]

# Columns of ours beside those of the export.
_LENGTH, _SIGNATURE = "length", "signature"
_BASE = (_LENGTH, "streamId", "correlationId")
# Of more ranks, sorting all rows is quicker than looking for those of each.
_MAX_SOUGHT = 32


@dataclass(frozen=True, slots=True)
class GpuOperationsData(SectionData):
    """What the GPUs did.

    Attributes:
        operations: by rank, in order of process and device.
        signatures: of the kernels.
        name_ids: StringIds.id of the kernels' names.
        notes: what a reader of the report should know of them.
    """

    operations: Mapping[RankKey, RankOperations]
    signatures: Signatures
    name_ids: frozenset[int]
    notes: tuple[str, ...]


def read_gpu_operations(database: Database) -> GpuOperationsData:
    """Read what the GPUs did.

    Raises:
        TraceFormatError: the file is damaged.
    """
    expect_rows(database, [table.name for table in schema.GPU_OPERATIONS])
    signer, notes = Signer(_columns(database, schema.KERNEL)), list[str]()
    kinds = read_kinds(database)
    kernels, copies, memsets, graphs = (
        _read(database, table, signer, notes) for table in schema.GPU_OPERATIONS
    )
    if graphs.extents:
        notes.append(
            f"{sum(extent.number for extent in graphs.extents.values())} CUDA graph launches were"
            " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
            f" (collect with {schema.GRAPH.flag})"
        )
    names = signer.signatures.name
    operations = {
        key: RankOperations(
            _kernels_of(kernels, key, names),
            _copies_of(copies.rows(key), kinds),
            _copies_of(memsets.rows(key), kinds),
            Operations(*_base(graphs.rows(key))),
        )
        for key in sorted({*kernels.extents, *copies.extents, *memsets.extents, *graphs.extents})
    }
    return GpuOperationsData(operations, signer.signatures, frozenset(signer.names), tuple(notes))


def _kernels_of(table: _Table, key: RankKey, names: Int64) -> Kernels | KernelsOnDemand:
    """Return a rank's kernels, which a report has most of: of several ranks, only on demand."""
    pick = partial(_picked_kernels, table, key, names)
    if len(table.extents) == 1 or key not in table.extents:
        return pick()
    return KernelsOnDemand(*table.extents[key], pick)


def _picked_kernels(table: _Table, key: RankKey, names: Int64) -> Kernels:
    rows = table.rows(key)
    return Kernels(*_base(rows), _column(rows, _SIGNATURE), names)


class _Extent(NamedTuple):
    """How many rows a rank has, when the first one began, and when all were over."""

    number: int
    first_ns: int
    last_end_ns: int


class _Rows(NamedTuple):
    """The operations of one rank, ordered by start, then end."""

    starts: Column
    columns: Mapping[str, Column]


_NO_ROWS = _Rows(pack(np.empty(0, np.int64)), {})


@dataclass(frozen=True)
class _Table:
    """The rows of all ranks in the order of the export; a rank's are picked out when needed.

    Reading need not put them in order, and processes can, each those of a rank.

    Attributes:
        extents: of each rank's rows, in the order in which ranks are met.
        owner: for each row, which of these it is of.
        start_ns: when each began.
        columns: the others, by name.
    """

    extents: Mapping[RankKey, _Extent]
    owner: Column
    start_ns: Column
    columns: Mapping[str, Column]

    def rows(self, key: RankKey) -> _Rows:
        """Return a rank's rows."""
        if key not in self.extents:
            return _NO_ROWS
        if len(self.extents) == 1:
            return _sorted_by_time(self.start_ns.values, self.columns)
        place = [*self.extents].index(key)
        if len(self.extents) <= _MAX_SOUGHT:
            chosen = np.flatnonzero(self.owner.kept == place)
        else:
            chosen = self._by_owner[place]
        columns = {name: column.taken(chosen) for name, column in self.columns.items()}
        return _sorted_by_time(self.start_ns.at(chosen), columns)

    @cached_property
    def _by_owner(self) -> list[Int64]:
        owner = self.owner.kept
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


class _GrowingTable:
    """Takes rows as they are read, and makes a `_Table` of them."""

    def __init__(self) -> None:
        self._places: dict[RankKey, int] = {}
        self._owner, self._start_ns = ColumnBuilder(), ColumnBuilder()
        self._columns: dict[str, ColumnBuilder] = {}
        self._number = np.zeros(0, np.int64)
        self._first_ns, self._last_end_ns = self._number, self._number

    def __len__(self) -> int:
        """How many ranks there are."""
        return len(self._places)

    def add(self, chunk: Columns) -> None:
        """Add some rows; the columns of process, device and time are taken out of the chunk."""
        owner = self._owners(chunk.pop("globalPid"), chunk.pop("deviceId"))
        start, end = chunk.pop("start"), chunk.pop("end")
        self._extend(owner, start, end)
        chunk[_LENGTH] = end - start
        self._start_ns.append(start)
        self._columns = self._columns or {name: ColumnBuilder() for name in chunk}
        for name, values in chunk.items():
            self._columns[name].append(values)
        self._owner.append(owner, (0, len(self) - 1))

    def finish(self) -> _Table:
        """Return all that was added; nothing can be added any more."""
        known = (self._number, self._first_ns, self._last_end_ns)
        extents = (_Extent(*facts) for facts in zip(*(of.tolist() for of in known), strict=True))
        return _Table(
            dict(zip(self._places, extents, strict=True)),
            self._owner.finish(),
            self._start_ns.finish(),
            {name: column.finish() for name, column in self._columns.items()},
        )

    def _owners(self, process: Int64, device: Int64) -> Int64:
        """Return the place of each row's rank, int64[n]."""
        owner = np.empty(len(process), np.int64)
        for rows in pieces(process, device):
            key = RankKey(int(process[rows][0]), int(device[rows][0]))
            owner[rows] = self._places.setdefault(key, len(self._places))
        return owner

    def _extend(self, owner: Int64, start: Int64, end: Int64) -> None:
        """Count rows, and note from when to when they go."""
        more = len(self) - len(self._number)
        self._number = np.append(self._number, np.zeros(more, np.int64))
        self._first_ns = np.append(self._first_ns, np.full(more, np.iinfo(np.int64).max))
        self._last_end_ns = np.append(self._last_end_ns, np.full(more, NULL))
        run = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
        of_run = owner[run]
        np.add.at(self._number, of_run, np.diff(run, append=len(owner)))
        np.minimum.at(self._first_ns, of_run, np.minimum.reduceat(start, run))
        np.maximum.at(self._last_end_ns, of_run, np.maximum.reduceat(end, run))


def _read(database: Database, table: schema.Table, signer: Signer, notes: list[str]) -> _Table:
    """Read a table of GPU operations, of kernels with their signatures."""
    rows, unusable = _GrowingTable(), 0
    for chunk, dropped in _chunks(database, table, signer):
        unusable += dropped
        if len(chunk["start"]):
            rows.add(chunk)
            check_few_processes(database, table.name, len(rows))
    if unusable:
        notes.append(
            f"{unusable} rows of {table.name} have no start, end, process or device, or end"
            " before they start: left out"
        )
    return rows.finish()


def _chunks(
    database: Database, table: schema.Table, signer: Signer
) -> Iterator[tuple[Columns, int]]:
    """Yield the rows that can be used, and how many beside them cannot."""
    columns = _columns(database, table)
    if table is not schema.KERNEL:
        for chunk in read_columns(database, table.name, columns):
            yield _usable(database, table, chunk)
        return
    combined = {_SIGNATURE: signer.combinations}
    for chunk in read_columns(database, table.name, columns, rows=combined):
        chunk["globalPid"] = signer.process(chunk[_SIGNATURE])
        kept, dropped = _usable(database, table, chunk)
        if len(kept["start"]):
            kept[_SIGNATURE] = signer.signature(kept[_SIGNATURE])
        yield kept, dropped


def _columns(database: Database, table: schema.Table) -> list[str]:
    """Return the columns to read of a table; none where it is not there."""
    present = database.columns.get(table.name, ())
    if not present:
        return []
    database.require(table.name, table.required)
    columns = [name for name in (*table.required, *table.optional) if name in present]
    if "demangledName" in columns and "shortName" in columns:
        columns.remove("shortName")  # one name is enough; the demangled one tells more
    return columns


def _usable(database: Database, table: schema.Table, chunk: Columns) -> tuple[Columns, int]:
    start, end = chunk["start"], chunk["end"]
    needed = (start, end, chunk["globalPid"], chunk["deviceId"])
    kept, length = chunk, len(start)
    # NULL is the smallest integer.
    if any(column.min(initial=0) == NULL for column in needed) or (end < start).any():
        usable = np.logical_and.reduce([column != NULL for column in needed]) & (end >= start)
        kept = {name: values[usable] for name, values in chunk.items()}
    check_times(database, table.name, kept["start"], kept["end"])
    return kept, length - len(kept["start"])


def _sorted_by_time(start: Int64, columns: Mapping[str, Column]) -> _Rows:
    step = np.diff(start)
    if (step > 0).all():
        return _Rows(pack(start), columns)
    end = start + columns[_LENGTH].values
    if ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return _Rows(pack(start), columns)
    order = np.lexsort((end, start))
    return _Rows(
        pack(start[order]), {name: column.taken(order) for name, column in columns.items()}
    )


def _column(rows: _Rows, name: str) -> Column:
    if name in rows.columns:
        return rows.columns[name]
    return pack(np.full(len(rows.starts), NULL, np.int64))


def _base(rows: _Rows) -> tuple[Column, Column, Column, Column]:
    length, stream, correlation = (_column(rows, name) for name in _BASE)
    return rows.starts, length, stream, correlation


def _copies_of(rows: _Rows, kinds: Kinds) -> Copies:
    return Copies(
        *_base(rows),
        bytes=_column(rows, "bytes").values,
        kind=translated(_column(rows, "copyKind"), kinds.copies),
        source_device=_column(rows, "srcDeviceId").values,
        destination_device=_column(rows, "dstDeviceId").values,
        source_memory=translated(_column(rows, "srcKind"), kinds.memory),
        destination_memory=translated(_column(rows, "dstKind"), kinds.memory),
    )
