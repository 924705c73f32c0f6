"""Tables of GPU operations of an Nsight export, with rows selected by rank on demand."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.structs import Record
from traceprof.trace.columns import ColumnBuilder, pack
from traceprof.trace.model.limits import are_sizes, known_sizes
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight.extents import ExtentsBuilder
from traceprof.trace.nsight.rows import check_few_processes, check_times
from traceprof.trace.sqlite.read_columns import read_columns

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

# With more ranks, sorting all rows is quicker than searching for those of each.
_MAX_SOUGHT = 32


class Rows(NamedTuple):
    """The operations of one rank, ordered by start, then end."""

    starts: Column
    columns: Mapping[str, Column]


_NO_ROWS = Rows(pack(np.empty(0, np.int64)), {})


class GpuTable(Record, frozen=True, dict=True):
    """The rows of all ranks in the order of the export; those of a rank are selected on demand.

    So reading need not sort them, and several processes can, each for one rank.

    Attributes:
        extents: of each rank's rows, in order of first occurrence.
        owner: for each row, the number of its rank among these.
        start_ns: the start of each.
        columns: the others, by name.
    """

    extents: Mapping[RankKey, Extent]
    owner: Column
    start_ns: Column
    columns: Mapping[str, Column]

    def rows(self, key: RankKey) -> Rows:
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
    """A `GpuTable` under construction, as rows are read."""

    def __init__(self) -> None:
        self._extents = ExtentsBuilder()
        self._owner, self._start_ns = ColumnBuilder(), ColumnBuilder()
        self._columns: dict[str, ColumnBuilder] = {}

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._extents)

    def add(self, chunk: Columns) -> None:
        """Add some rows; the columns of process, device and time are removed from the chunk."""
        start, end = chunk.pop("start"), chunk.pop("end")
        run, owner = self._extents.add(chunk.pop("globalPid"), chunk.pop("deviceId"), start, end)
        chunk[LENGTH] = end - start
        self._start_ns.append(start)
        self._columns = self._columns or {name: ColumnBuilder() for name in chunk}
        for name, values in chunk.items():
            self._columns[name].append(values)
        owners = np.repeat(owner, np.diff(run, append=len(start)))
        self._owner.append(owners, (0, len(self) - 1))

    def finish(self) -> GpuTable:
        """Return the complete table; nothing can be added afterwards."""
        return GpuTable(
            self._extents.finish(),
            self._owner.finish(),
            self._start_ns.finish(),
            {name: column.finish() for name, column in self._columns.items()},
        )


def read_table(
    database: Database,
    table: schema.Table,
    chunks: Iterable[tuple[Columns, int]],
    notes: list[str],
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
            f"{unusable} rows of {table.name} have no start, end, process or device, or end"
            " before they start: left out"
        )


def note_unknown_sizes(table: GpuTable, notes: list[str]) -> None:
    """Add a note on the number of copies whose size is missing or beyond any memory."""
    unknown = int((table.columns[BYTES].values == NULL).sum()) if BYTES in table.columns else 0
    if unknown:
        notes.append(f"{unknown} memory copies have no size: they are counted as 0 bytes")


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


def _sorted_by_time(start: Int64, columns: Mapping[str, Column]) -> Rows:
    step = np.diff(start)
    if (step > 0).all():
        return Rows(pack(start), columns)
    end = start + columns[LENGTH].values
    if ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return Rows(pack(start), columns)
    order = np.lexsort((end, start))
    return Rows(pack(start[order]), {name: column.taken(order) for name, column in columns.items()})
