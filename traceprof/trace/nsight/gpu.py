"""GPU operations of an Nsight export: kernels, copies, memory sets, graphs as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.structs import Record
from traceprof.trace.columns import Column, pack, pack_ahead
from traceprof.trace.model.kinds import CopyKind, MemoryKind
from traceprof.trace.model.operations import (
    Copies,
    Kernels,
    Operations,
    RankKey,
    RankOperations,
    Signatures,
)
from traceprof.trace.model.special_values import NULL, are_sizes, known_sizes
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import RowsByKey, check_times
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns
from traceprof.units import counted

Columns = dict[str, Int64]
Rows = dict[str, Column]
"""The operations of one rank, ordered by start, then end."""
Kind = TypeVar("Kind", CopyKind, MemoryKind)


def translated(column: Column, kinds: Mapping[int, CopyKind] | Mapping[int, MemoryKind]) -> Int64:
    """Translate an export's numbers of kinds into ours, int64[n]; NULL stays NULL."""
    numbers = column.distinct
    meanings = [number if number == NULL else kinds.get(number, 0) for number in numbers.tolist()]
    translation: Int64 = np.array(meanings, np.int64)
    return translation[column.places_in(numbers)]


def _kinds(
    database: Database, enumeration: str, usual: Mapping[int, str], kinds: Iterable[Kind]
) -> dict[int, Kind]:
    by_label = {kind.label: kind for kind in kinds}
    rows = database.rows(enumeration, {"id": int, "label": str})
    # For a label that is not one of Nsight's, use Nsight's meaning of the number.
    known = {row["id"]: by_label[row["label"]] for row in rows if row["label"] in by_label}
    known.pop(None, None)
    return {**{number: by_label[label] for number, label in usual.items()}, **known}


class SignatureNumbers:
    """Numbers for kernels' signatures in order of first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    @property
    def signatures(self) -> Signatures:
        """The signatures so far."""
        rows = np.array([*self._numbers], np.int64).reshape(-1, 1 + len(schema.GRID))
        return Signatures(rows[:, 0], rows[:, 1:])

    def of(self, columns: Sequence[Int64]) -> Int64:
        """Return the number of each kernel's name, grid and block, int64[n].

        They are mixed into 64 bits, since one key sorts several times as fast as seven. With a
        hundred thousand signatures, two share a key in one of four billion exports.
        """
        mixed = np.zeros(len(columns[0]), np.uint64)
        for column in columns:
            mixed ^= column.view(np.uint64)
            mixed *= _MIX
            mixed ^= mixed >> _MIX_SHIFT
        _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
        number = np.empty(len(first), np.int64)
        order = np.argsort(first)
        rows = zip(*(column[first[order]].tolist() for column in columns), strict=True)
        number[order] = [self._numbers.setdefault(row, len(self._numbers)) for row in rows]
        return number[which.reshape(-1)]


_MIX, _MIX_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)

START = "start"
_NAMES = ("demangledName", "shortName")
LENGTH = "length"
"""An additional column, which the export does not have."""

BYTES = "bytes"

NEEDED = ("globalPid", "deviceId", "start", "end")
"""The columns without which a row is unusable."""


def read_table(
    database: Database, table: schema.Table, numbers: SignatureNumbers, notes: list[str]
) -> dict[RankKey, Rows]:
    """Rows of each rank in a table of GPU operations; adds a note on unusable rows."""
    parts, unusable = RowsByKey(database, table.name), 0
    for every in read_columns(database, table.name, present_columns(database, table)):
        chunk, dropped = usable(database, table, every)
        unusable += dropped
        if table is schema.KERNEL:
            missing = np.full(len(chunk["start"]), NULL, np.int64)
            (name,) = [chunk.pop(column) for column in _NAMES if column in chunk] or [missing]
            shape = [chunk.pop(column, missing) for column in schema.GRID]
            chunk[_SIGNATURE] = numbers.of([name, *shape])
        chunk[LENGTH] = chunk.pop("end") - chunk["start"]
        parts.add(chunk, chunk.pop("globalPid"), chunk.pop("deviceId"))
    if unusable:
        notes.append(
            f"{counted(unusable, 'row')} of {table.name} left out: without a start, an end, a"
            " process or a device, or with an end before the start"
        )
    return {RankKey(*key): _sorted_by_time(columns) for key, columns in parts.finished()}


def present_columns(database: Database, table: schema.Table) -> list[str]:
    """Return the columns to read of a table; none if it is absent."""
    present = database.columns.get(table.name, ())
    if not present:
        return []
    database.require(table.name, table.required)
    columns = [name for name in (*table.required, *table.optional) if name in present]
    if "demangledName" in columns and "shortName" in columns:
        columns.remove("shortName")  # one name is enough; the demangled one says more
    return columns


def usable(database: Database, table: schema.Table, chunk: Columns) -> tuple[Columns, int]:
    """Return the usable rows of a chunk, and the number of unusable ones.

    Raises TraceFormatError: times are beyond any clock.
    """
    start, end = chunk["start"], chunk["end"]
    is_usable = np.logical_and.reduce([chunk[name] != NULL for name in NEEDED]) & (end >= start)
    kept, length = chunk, len(start)
    if not is_usable.all():
        kept = {name: values[is_usable] for name, values in chunk.items()}
    check_times(database, table.name, kept["start"], kept["end"])
    if BYTES in kept and not are_sizes(kept[BYTES]).all():
        kept = kept | {BYTES: known_sizes(kept[BYTES])}
    return kept, length - len(kept["start"])


def _sorted_by_time(rows: Rows) -> Rows:
    start = rows[START].values
    if (np.diff(start) > 0).all():
        return rows
    order = np.lexsort((start + rows[LENGTH].values, start))
    return {name: column.taken(order) for name, column in rows.items()}


_SIGNATURE = "signature"  # a column of ours beside those of the export
_NO_ROWS: Rows = {START: pack(NO_NUMBERS)}
_BASE = (LENGTH, "streamId", "correlationId")


class GpuOperations(Record, frozen=True):
    """GPU operations of all ranks."""

    operations: Mapping[RankKey, RankOperations]  # by rank, in order of process and device
    signatures: Signatures  # of the kernels
    notes: tuple[str, ...]  # for readers of the report


def read_gpu_operations(database: Database) -> GpuOperations:
    """Read the GPU operations."""
    expect_rows(database, [table.name for table in schema.GPU_OPERATIONS])
    notes, numbers = list[str](), SignatureNumbers()
    kernels, copies, memsets, graphs = (
        read_table(database, table, numbers, notes) for table in schema.GPU_OPERATIONS
    )
    signatures = numbers.signatures
    sizes = [rows[BYTES].values for rows in copies.values() if BYTES in rows]
    unknown = sum(int((of_rank == NULL).sum()) for of_rank in sizes)
    if unknown:
        notes.append(f"{counted(unknown, 'memory copy')} without a size: counted as 0 bytes")
    if graphs:
        notes.append(
            f"{sum(len(rows[START]) for rows in graphs.values())} CUDA graph launches were"
            " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
            " (collect with --cuda-graph-trace=node)"
        )
    kinds = _kinds(database, schema.MEMCPY_KINDS, schema.COPY_KINDS, CopyKind)
    memory = _kinds(database, schema.MEM_KINDS, schema.MEMORY_KINDS, MemoryKind)
    operations = {
        key: RankOperations(
            Kernels(*_base(of_key), _column(of_key, _SIGNATURE), signatures.name),
            _copies_of(copies.get(key, _NO_ROWS), kinds, memory),
            _copies_of(memsets.get(key, _NO_ROWS), kinds, memory),
            Operations(*_base(graphs.get(key, _NO_ROWS))),
        )
        for key in sorted({*kernels, *copies, *memsets, *graphs})
        for of_key in (kernels.get(key, _NO_ROWS),)
    }
    return GpuOperations(operations, signatures, tuple(notes))


def _column(rows: Rows, name: str) -> Column:
    if name in rows:
        return rows[name]
    return pack(np.full(len(rows[START]), NULL, np.int64))


def _base(rows: Rows) -> tuple[Column, Column, Column, Column]:
    length, stream, correlation = (_column(rows, name) for name in _BASE)
    return rows[START], length, stream, pack_ahead(correlation.values)


def _copies_of(
    rows: Rows, kinds: Mapping[int, CopyKind], memory: Mapping[int, MemoryKind]
) -> Copies:
    written = "memKind" if "memKind" in rows else "dstKind"
    return Copies(
        *_base(rows),
        bytes=_column(rows, BYTES).values,
        kind=translated(_column(rows, "copyKind"), kinds),
        source_device=_column(rows, "srcDeviceId").values,
        destination_device=_column(rows, "dstDeviceId").values,
        source_memory=translated(_column(rows, "srcKind"), memory),
        destination_memory=translated(_column(rows, written), memory),
    )
