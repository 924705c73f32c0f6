"""GPU operations of an Nsight export: kernels, copies, memory sets, graphs as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from traceprof.intervals import Int64
from traceprof.structs import Record
from traceprof.trace.columns import Column, pack, pack_ahead
from traceprof.trace.grouping import distinct_values, pieces
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
from traceprof.trace.model.trace import SectionData
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import RowsByProcess, check_few_processes, check_times
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.numbering import NumberedRows
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns, replaced
from traceprof.units import counted

Columns = dict[str, Int64]

Kind = TypeVar("Kind", CopyKind, MemoryKind)


class Kinds(Record, frozen=True):
    """The kinds by the numbers of an export; other numbers are unknown kinds."""

    copies: Mapping[int, CopyKind]
    memory: Mapping[int, MemoryKind]


def translated(column: Column, kinds: Mapping[int, CopyKind] | Mapping[int, MemoryKind]) -> Int64:
    """Translate an export's numbers of kinds into ours, int64[n]; NULL stays NULL."""
    numbers = column.distinct
    meanings = [number if number == NULL else kinds.get(number, 0) for number in numbers.tolist()]
    if numbers.tolist() == meanings:
        return column.values
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


_NAME, _PROCESS = "name", "globalPid"
NAMES = ("demangledName", "shortName")
"""The possible columns of a kernel's name."""


class Signer:
    """Numbers for kernel signatures in order of first occurrence.

    A kernel's process, name, grid and block are read as one number, since they are neighbours in an
    export, and there are few combinations of them: see `NumberedRows`.

    Attributes:
        names: StringIds.id of the kernels' names.
        combinations: numbers for the combinations of columns.
    """

    def __init__(
        self,
        columns: Sequence[str] = (_PROCESS,),
        replaced: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """Prepare for kernels with these columns, including the combined ones.

        `replaced`: by the name of a column, numbers and their replacements.
        """
        self._replaced = replaced or {}
        self.names: set[int] = set()
        combined = (_PROCESS, *NAMES, *schema.GRID)
        self.combinations = NumberedRows([column for column in columns if column in combined])
        self._signatures = NumberedRows((_NAME, *schema.GRID))
        self._of_combination = np.empty(0, np.int64)  # -1 for new ones

    @property
    def signatures(self) -> Signatures:
        """The signatures so far."""
        rows = self._signatures.rows
        return Signatures(rows[:, 0], rows[:, 1:])

    def process(self, combination: Int64) -> Int64:
        """Return the process of each kernel, int64[n]."""
        place = self.combinations.names.index(_PROCESS)
        return self.combinations.rows[:, place].take(combination)

    def signature(self, combination: Int64) -> Int64:
        """Return the number of each kernel's signature, int64[n]."""
        more = len(self.combinations) - len(self._of_combination)
        if more:
            self._of_combination = np.append(self._of_combination, np.full(more, -1))
        numbers = self._of_combination.take(combination)
        new = numbers < 0
        if new.any():
            self._learn(distinct_values(combination[new]))
            numbers = self._of_combination.take(combination)
        return numbers

    def _learn(self, combinations: Int64) -> None:
        rows = self.combinations.rows[combinations]
        columns = dict(zip(self.combinations.names, rows.T, strict=True))
        missing = np.full(len(rows), NULL, np.int64)
        (name,) = [
            replaced(columns[column], self._replaced[column])
            if column in self._replaced
            else columns[column]
            for column in NAMES
            if column in columns
        ] or [missing]
        shape = {column: columns.get(column, missing) for column in schema.GRID}
        self.names.update(name.tolist())
        self._of_combination[combinations] = self._signatures.of({_NAME: name, **shape})


LENGTH = "length"
"""An additional column, which the export does not have."""

BYTES = "bytes"

NEEDED = ("globalPid", "deviceId", "start", "end")
"""The columns without which a row is unusable."""


class Rows(NamedTuple):
    """The operations of one rank, ordered by start, then end."""

    starts: Column
    columns: Mapping[str, Column]


_NO_ROWS = Rows(pack(np.empty(0, np.int64)), {})


def read_table(
    database: Database, table: schema.Table, chunks: Iterable[tuple[Columns, int]], notes: list[str]
) -> dict[RankKey, Rows]:
    """Rows of each rank in a table of GPU operations; adds a note on unusable rows.

    `chunks`: as `usable` returns them.
    """
    places: dict[RankKey, int] = {}  # in order of first occurrence
    parts, unusable = RowsByProcess(), 0
    for chunk, dropped in chunks:
        unusable += dropped
        process, device = chunk.pop("globalPid"), chunk.pop("deviceId")
        chunk[LENGTH] = chunk.pop("end") - chunk["start"]
        owner = np.empty(len(process), np.int64)
        for rows in pieces(process, device):
            key = RankKey(int(process[rows][0]), int(device[rows][0]))
            owner[rows] = places.setdefault(key, len(places))
        parts.add(chunk, owner)
        check_few_processes(database, table.name, len(places))
    if unusable:
        notes.append(
            f"{counted(unusable, 'row')} of {table.name} left out: without a start, an end, a"
            " process or a device, or with an end before the start"
        )
    return {
        key: _sorted_by_time(columns)
        for key, (_, columns) in zip(places, parts.finished(), strict=True)
    }


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
    needed = [chunk[name] for name in NEEDED]
    kept, length = chunk, len(start)
    # NULL is the smallest integer.
    if any(column.min(initial=0) == NULL for column in needed) or (end < start).any():
        is_usable = np.logical_and.reduce([column != NULL for column in needed]) & (end >= start)
        kept = {name: values[is_usable] for name, values in chunk.items()}
    check_times(database, table.name, kept["start"], kept["end"])
    if BYTES in kept and not are_sizes(kept[BYTES]).all():
        kept = kept | {BYTES: known_sizes(kept[BYTES])}
    return kept, length - len(kept["start"])


def _sorted_by_time(columns: dict[str, Column]) -> Rows:
    starts = columns.pop("start")
    start = starts.values
    step = np.diff(start)
    if (step > 0).all():
        return Rows(starts, columns)
    end = start + columns[LENGTH].values
    if ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return Rows(starts, columns)
    order = np.lexsort((end, start))
    return Rows(
        pack(start.take(order)), {name: column.taken(order) for name, column in columns.items()}
    )


_SIGNATURE = "signature"  # a column of ours beside those of the export
_BASE = (LENGTH, "streamId", "correlationId")


class GpuOperationsData(SectionData, frozen=True):
    """GPU operations of all ranks."""

    operations: Mapping[RankKey, RankOperations]  # by rank, in order of process and device
    signatures: Signatures  # of the kernels
    name_ids: frozenset[int]  # StringIds.id of the kernels' names
    notes: tuple[str, ...]  # for readers of the report


def read_gpu_operations(database: Database) -> GpuOperationsData:
    """Read the GPU operations."""
    expect_rows(database, [table.name for table in schema.GPU_OPERATIONS])
    signer = Signer(present_columns(database, schema.KERNEL), database.replaced)
    notes = list[str]()
    kernels = read_table(database, schema.KERNEL, _signed_chunks(database, signer), notes)
    names = signer.signatures.name
    copies, memsets, graphs = (
        read_table(
            database,
            table,
            (
                usable(database, table, chunk)
                for chunk in read_columns(database, table.name, present_columns(database, table))
            ),
            notes,
        )
        for table in (schema.MEMCPY, schema.MEMSET, schema.GRAPH)
    )
    sizes = [rows.columns[BYTES].values for rows in copies.values() if BYTES in rows.columns]
    unknown = sum(int((of_rank == NULL).sum()) for of_rank in sizes)
    if unknown:
        notes.append(f"{counted(unknown, 'memory copy')} without a size: counted as 0 bytes")
    if graphs:
        notes.append(
            f"{sum(len(rows.starts) for rows in graphs.values())} CUDA graph launches were"
            " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
            " (collect with --cuda-graph-trace=node)"
        )
    kinds = Kinds(
        _kinds(database, schema.MEMCPY_KINDS, schema.COPY_KINDS, CopyKind),
        _kinds(database, schema.MEM_KINDS, schema.MEMORY_KINDS, MemoryKind),
    )
    operations = {
        key: RankOperations(
            Kernels(*_base(of_key), _column(of_key, _SIGNATURE), names),
            _copies_of(copies.get(key, _NO_ROWS), kinds),
            _copies_of(memsets.get(key, _NO_ROWS), kinds),
            Operations(*_base(graphs.get(key, _NO_ROWS))),
        )
        for key in sorted({*kernels, *copies, *memsets, *graphs})
        for of_key in (kernels.get(key, _NO_ROWS),)
    }
    return GpuOperationsData(operations, signer.signatures, frozenset(signer.names), tuple(notes))


def _signed_chunks(database: Database, signer: Signer) -> Iterator[tuple[Columns, int]]:
    """Usable kernels with their signatures, and the number of unusable ones."""
    combined = {_SIGNATURE: signer.combinations}
    columns = present_columns(database, schema.KERNEL)
    for chunk in read_columns(database, schema.KERNEL.name, columns, rows=combined):
        chunk["globalPid"] = signer.process(chunk[_SIGNATURE])
        kept, dropped = usable(database, schema.KERNEL, chunk)
        if len(kept["start"]):
            kept[_SIGNATURE] = signer.signature(kept[_SIGNATURE])
        yield kept, dropped


def _column(rows: Rows, name: str) -> Column:
    if name in rows.columns:
        return rows.columns[name]
    return pack(np.full(len(rows.starts), NULL, np.int64))


def _base(rows: Rows) -> tuple[Column, Column, Column, Column]:
    length, stream, correlation = (_column(rows, name) for name in _BASE)
    return rows.starts, length, stream, pack_ahead(correlation.values)


def _copies_of(rows: Rows, kinds: Kinds) -> Copies:
    written = "memKind" if "memKind" in rows.columns else "dstKind"
    return Copies(
        *_base(rows),
        bytes=_column(rows, BYTES).values,
        kind=translated(_column(rows, "copyKind"), kinds.copies),
        source_device=_column(rows, "srcDeviceId").values,
        destination_device=_column(rows, "dstDeviceId").values,
        source_memory=translated(_column(rows, "srcKind"), kinds.memory),
        destination_memory=translated(_column(rows, written), kinds.memory),
    )
