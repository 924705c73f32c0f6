"""GPU operations of an Nsight export: kernels, copies, memory sets, graphs as a whole."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.columns import pack, pack_ahead
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
from traceprof.trace.nsight.extents import NO_ROWS, ExtentsBuilder
from traceprof.trace.nsight.gpu_tables import (
    BYTES,
    LENGTH,
    NEEDED,
    note_unknown_sizes,
    note_unusable,
    present_columns,
    read_table,
    usable,
    usable_chunks,
)
from traceprof.trace.nsight.kernel_signatures import NAMES, Signer
from traceprof.trace.nsight.kinds import read_kinds, translated
from traceprof.trace.nsight.rows import check_few_processes
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.nsight.extents import Extent
    from traceprof.trace.nsight.gpu_tables import Columns, GpuTable, Rows
    from traceprof.trace.nsight.kinds import Kinds
    from traceprof.trace.sqlite.database import Database

_SIGNATURE = "signature"  # a column of ours beside those of the export
_BASE = (LENGTH, "streamId", "correlationId")


class GpuOperationsData(SectionData, frozen=True):
    """GPU operations of all ranks.

    Attributes:
        operations: by rank, in order of process and device.
        signatures: of the kernels.
        name_ids: StringIds.id of the kernels' names.
        notes: for readers of the report.
    """

    operations: Mapping[RankKey, RankOperations]
    signatures: Signatures
    name_ids: frozenset[int]
    notes: tuple[str, ...]


class GpuOutlineData(SectionData, frozen=True):
    """GPU operations of all ranks, with only the extents and names of kernels.

    Attributes:
        operations: by rank, in order of process and device; kernels are read on first use.
        name_ids: StringIds.id of the kernels' names.
        notes: for readers of the report.
        whole: returns all operations, read once.
    """

    operations: Mapping[RankKey, RankOperations]
    name_ids: frozenset[int]
    notes: tuple[str, ...]
    whole: Callable[[], GpuOperationsData]

    @property
    def signatures(self) -> Signatures:
        """The signatures of the kernels, which are read for them."""
        return self.whole().signatures


def read_gpu_operations(database: Database) -> GpuOperationsData:
    """Read the GPU operations.

    Raises:
        TraceFormatError: the file is damaged.
    """
    expect_rows(database, [table.name for table in schema.GPU_OPERATIONS])
    signer, notes = Signer(present_columns(database, schema.KERNEL)), list[str]()
    kernels = read_table(database, schema.KERNEL, _signed_chunks(database, signer), notes)
    names = signer.signatures.name
    operations = _with_others(
        database, kernels.extents, lambda key: _kernels_of(kernels.rows(key), names), notes
    )
    return GpuOperationsData(operations, signer.signatures, frozenset(signer.names), tuple(notes))


def read_gpu_outline(database: Database) -> GpuOutlineData:
    """Read the GPU operations, with kernels only on first use: there may be millions.

    Raises:
        TraceFormatError: the file is damaged.
    """
    expect_rows(database, [table.name for table in schema.GPU_OPERATIONS])
    notes, name_ids = list[str](), set[int]()
    extents = _kernel_extents(database, name_ids, notes)
    whole = cache(partial(read_gpu_operations, database))
    operations = _with_others(
        database,
        extents,
        lambda key: KernelsOnDemand(
            *extents.get(key, NO_ROWS), lambda: whole().operations[key].kernels
        ),
        notes,
    )
    return GpuOutlineData(operations, frozenset(name_ids), tuple(notes), whole)


def _with_others(
    database: Database,
    ranks: Iterable[RankKey],
    kernels_of: Callable[[RankKey], Kernels | KernelsOnDemand],
    notes: list[str],
) -> dict[RankKey, RankOperations]:
    """Return the operations of each rank, reading all except kernels.

    Args:
        database: the export.
        ranks: with kernels.
        kernels_of: returns the kernels of a rank, perhaps none.
        notes: extended by those on other tables.
    """

    def others(table: schema.Table) -> GpuTable:
        columns = present_columns(database, table)
        return read_table(database, table, usable_chunks(database, table, columns), notes)

    kinds = read_kinds(database)
    copies, memsets, graphs = map(others, (schema.MEMCPY, schema.MEMSET, schema.GRAPH))
    note_unknown_sizes(copies, notes)
    if graphs.extents:
        notes.append(
            f"{sum(extent.number for extent in graphs.extents.values())} CUDA graph launches were"
            " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
            f" (collect with {schema.GRAPH.flag})"
        )
    return {
        key: RankOperations(
            kernels_of(key),
            _copies_of(copies.rows(key), kinds),
            _copies_of(memsets.rows(key), kinds),
            Operations(*_base(graphs.rows(key))),
        )
        for key in sorted({*ranks, *copies.extents, *memsets.extents, *graphs.extents})
    }


def _kernel_extents(
    database: Database, name_ids: set[int], notes: list[str]
) -> dict[RankKey, Extent]:
    """Return the extents of each rank's kernels, and add the ids of their names."""
    rows, unusable = ExtentsBuilder(), 0
    columns = present_columns(database, schema.KERNEL)
    name = next((name for name in NAMES if name in columns), None)
    needed = [column for column in columns if column in (*NEEDED, name)]
    for chunk, dropped in usable_chunks(database, schema.KERNEL, needed):
        unusable += dropped
        if len(chunk["start"]):
            rows.add(*(chunk[column] for column in NEEDED))
            check_few_processes(database, schema.KERNEL.name, len(rows))
            name_ids.update([NULL] if name is None else pack(chunk[name]).distinct.tolist())
    note_unusable(schema.KERNEL, unusable, notes)
    return rows.finish()


def _kernels_of(rows: Rows, names: Int64) -> Kernels:
    return Kernels(*_base(rows), _column(rows, _SIGNATURE), names)


def _signed_chunks(database: Database, signer: Signer) -> Iterator[tuple[Columns, int]]:
    """Yield the usable kernels with their signatures, and the number of unusable ones."""
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
    return Copies(
        *_base(rows),
        bytes=_column(rows, BYTES).values,
        kind=translated(_column(rows, "copyKind"), kinds.copies),
        source_device=_column(rows, "srcDeviceId").values,
        destination_device=_column(rows, "dstDeviceId").values,
        source_memory=translated(_column(rows, "srcKind"), kinds.memory),
        destination_memory=translated(_column(rows, "dstKind"), kinds.memory),
    )
