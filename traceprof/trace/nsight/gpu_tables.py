"""Tables of GPU operations of an Nsight export, by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.structs import Record
from traceprof.trace.columns import pack
from traceprof.trace.grouping import pieces
from traceprof.trace.model.limits import are_sizes, known_sizes
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight.extents import ExtentsBuilder
from traceprof.trace.nsight.rows import RowsByProcess, check_few_processes, check_times
from traceprof.trace.sqlite.read_columns import read_columns
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.model.operations import RankKey
    from traceprof.trace.nsight import schema
    from traceprof.trace.nsight.extents import Extent
    from traceprof.trace.sqlite.database import Database

    Columns = dict[str, Int64]

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


class GpuTable(Record, frozen=True):
    """The rows of all ranks.

    Attributes:
        extents: of each rank's rows, in order of first occurrence.
        of_rank: the rows of each.
    """

    extents: Mapping[RankKey, Extent]
    of_rank: Mapping[RankKey, Rows]

    def rows(self, key: RankKey) -> Rows:
        """Return a rank's rows."""
        return self.of_rank.get(key, _NO_ROWS)


class _GrowingTable:
    """A `GpuTable` under construction, as rows are read."""

    def __init__(self) -> None:
        self._extents, self._parts = ExtentsBuilder(), RowsByProcess()

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._extents)

    def add(self, chunk: Columns) -> None:
        """Add some rows; the columns of process, device and end are removed from the chunk."""
        start, end = chunk["start"], chunk.pop("end")
        run, owner = self._extents.add(chunk.pop("globalPid"), chunk.pop("deviceId"), start, end)
        chunk[LENGTH] = end - start
        of_row = np.repeat(owner, np.diff(run, append=len(start)))
        self._parts.add(chunk, ((int(of_row[rows][0]), rows) for rows in pieces(of_row)))

    def finish(self) -> GpuTable:
        """Return the complete table; nothing can be added afterwards."""
        extents, parts = self._extents.finish(), self._parts.finished()
        of_rank = {
            key: _sorted_by_time(columns) for key, (_, columns) in zip(extents, parts, strict=True)
        }
        return GpuTable(extents, of_rank)


def read_table(
    database: Database, table: schema.Table, chunks: Iterable[tuple[Columns, int]], notes: list[str]
) -> GpuTable:
    """Return the rows of a table of GPU operations.

    Args:
        database: the export.
        table: the table.
        chunks: from `usable`.
        notes: extended if some rows are unusable.

    Raises:
        TraceFormatError: the file is damaged.
    """
    rows, unusable = _GrowingTable(), 0
    for chunk, dropped in chunks:
        unusable += dropped
        if len(chunk["start"]):
            rows.add(chunk)
            check_few_processes(database, table.name, len(rows))
    note_unusable(table, unusable, notes)
    return rows.finish()


def note_unusable(table: schema.Table, unusable: int, notes: list[str]) -> None:
    """Add a note on the number of unusable rows of a table."""
    if unusable:
        notes.append(
            f"{counted(unusable, 'row')} of {table.name} left out: without a start, an end, a"
            " process or a device, or with an end before the start"
        )


def note_unknown_sizes(table: GpuTable, notes: list[str]) -> None:
    """Add a note on the number of copies whose size is missing or beyond any memory."""
    sizes = [rows.columns[BYTES].values for rows in table.of_rank.values() if BYTES in rows.columns]
    unknown = sum(int((of_rank == NULL).sum()) for of_rank in sizes)
    if unknown:
        notes.append(f"{counted(unknown, 'memory copy')} without a size: counted as 0 bytes")


def usable_chunks(
    database: Database, table: schema.Table, columns: Sequence[str]
) -> Iterator[tuple[Columns, int]]:
    """Yield the usable rows of a table, and the number of unusable ones.

    Args:
        database: the export.
        table: the table.
        columns: to read, including those in `NEEDED`.
    """
    for chunk in read_columns(database, table.name, columns):
        yield usable(database, table, chunk)


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

    Raises:
        TraceFormatError: times are beyond any clock.
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
