"""GPU operations of a trace: kernels, copies, memory sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.columns import pack, pack_ahead
from traceprof.trace.grouping import groups
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.copy_kinds import copy_facts
from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.operations import (
    Copies,
    Kernels,
    Operations,
    RankKey,
    RankOperations,
    Signatures,
)
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.kineto.content import Content

_GROUPS = (Kind.KERNEL, Kind.COPY, Kind.MEMORY_SET)
_NOTHING = np.empty(0, np.int64)
_NO_COLUMN = pack(_NOTHING)


def read_operations(content: Content, process: int) -> dict[RankKey, RankOperations]:
    """Return the GPU operations of a process, by device; kernels instead of their table.

    Args:
        content: of the trace.
        process: the owner of the operations.
    """
    tables = {kind: content.tables.get(kind, {}) for kind in _GROUPS}
    content.take(Kind.KERNEL)
    rows = {kind: _rows_by_device(tables[kind]) for kind in _GROUPS}
    devices = sorted({device for by_device in rows.values() for device in by_device})
    names = np.array([name for name, *_ in content.signatures], np.int64)
    operations = {}
    for device in devices:
        kernels, copies, memsets = (
            _sorted(tables[kind], rows[kind].get(device, _NOTHING)) for kind in _GROUPS
        )
        operations[RankKey(process, device)] = RankOperations(
            Kernels(
                *_base(kernels, content),
                kernels.get(table.SIGNATURE, _NO_COLUMN),
                names,
                *_labels(kernels, content),
            ),
            _copies(copies, content),
            _copies(memsets, content),
            Operations(_NO_COLUMN, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN),
        )
    return operations


def read_signatures(content: Content) -> Signatures:
    """Return kernels by name, grid and block."""
    missing = (NULL, NULL, NULL)
    shapes = [[*(grid or missing), *(block or missing)] for _, grid, block in content.signatures]
    return Signatures(
        np.array([name for name, *_ in content.signatures], np.int64),
        np.array(shapes, np.int64).reshape(len(shapes), 6),
    )


def num_of_unknown_size(content: Content) -> int:
    """Return the number of memory copies without a size."""
    columns = content.tables.get(Kind.COPY)
    return 0 if columns is None else int((columns[table.BYTES].values == NULL).sum())


def _rows_by_device(columns: Mapping[str, Column]) -> dict[int, Int64]:
    if not columns:
        return {}
    device = columns[table.DEVICE].values
    return {int(device[rows[0]]): rows for rows in groups(device)}


def _sorted(columns: Mapping[str, Column], rows: Int64) -> dict[str, Column]:
    """Return some rows of a table, ordered by start, then end."""
    if len(rows) == 0:
        return {}
    start, length = columns[table.START].at(rows), columns[table.LENGTH].at(rows)
    rows = rows[np.lexsort((start + length, start))]
    return {name: column.taken(rows) for name, column in columns.items()}


def _base(rows: Mapping[str, Column], content: Content) -> tuple[Column, Column, Column, Column]:
    if not rows:
        return _NO_COLUMN, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN
    start = pack(rows[table.START].values - (content.first_ns or 0))
    ahead = pack_ahead(rows[table.CORRELATION].values)
    return start, rows[table.LENGTH], rows[table.STREAM], ahead


def _labels(rows: Mapping[str, Column], content: Content) -> tuple[Column | None, tuple[str, ...]]:
    """Return the labels of kernels and their texts; none where no kernel has one."""
    if not rows or not rows[table.LABEL].highest:
        return None, ()
    return rows[table.LABEL], content.names


def _copies(rows: Mapping[str, Column], content: Content) -> Copies:
    if not rows:
        return Copies(*_base(rows, content), *[_NOTHING] * 6)
    size = rows[table.BYTES].values
    number = rows[table.NAME].values
    distinct, which = np.unique(number, return_inverse=True)
    facts = np.array([copy_facts(content.names[name]) for name in distinct.tolist()], np.int64)
    kind, source, destination = facts[which.reshape(-1)].T
    unknown = np.full(len(size), NULL, np.int64)  # of memory sets
    devices = [
        rows[end].values if end in rows else unknown for end in (table.SOURCE, table.DESTINATION)
    ]
    return Copies(
        *_base(rows, content),
        bytes=np.where(size == NULL, 0, size),
        kind=kind,
        source_device=devices[0],
        destination_device=devices[1],
        source_memory=source,
        destination_memory=destination,
    )
