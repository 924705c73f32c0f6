"""GPU operations of a trace: kernels, copies, memory sets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.trace.columns import pack, pack_ahead
from traceprof.trace.grouping import groups
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.kinds import CopyKind, MemoryKind
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

# Kineto's names, such as `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)`.
_COPY = re.compile(r"\w+ (?P<kind>\w+)(?: \((?P<source>[\w ]+) -> (?P<destination>[\w ]+)\))?")
_SET = re.compile(r"\w+ \((?P<destination>[\w ]+)\)")
COPY_KINDS = {
    "HtoD": CopyKind.HOST_TO_DEVICE,
    "DtoH": CopyKind.DEVICE_TO_HOST,
    "HtoA": CopyKind.HOST_TO_ARRAY,
    "AtoH": CopyKind.ARRAY_TO_HOST,
    "AtoA": CopyKind.ARRAY_TO_ARRAY,
    "AtoD": CopyKind.ARRAY_TO_DEVICE,
    "DtoA": CopyKind.DEVICE_TO_ARRAY,
    "DtoD": CopyKind.DEVICE_TO_DEVICE,
    "HtoH": CopyKind.HOST_TO_HOST,
    "PtoP": CopyKind.PEER_TO_PEER,
}
MEMORY_KINDS = {
    "Pageable": MemoryKind.PAGEABLE,
    "Pinned": MemoryKind.PINNED,
    "Device": MemoryKind.DEVICE,
    "Array": MemoryKind.ARRAY,
    "Managed": MemoryKind.MANAGED,
    "Device Static": MemoryKind.DEVICE_STATIC,
    "Managed Static": MemoryKind.MANAGED_STATIC,
}


class CopyFacts(NamedTuple):
    """Facts from a name; NULL if unknown."""

    kind: int = NULL
    source_memory: int = NULL
    destination_memory: int = NULL


def copy_facts(name: str) -> CopyFacts:
    """Return the facts in the name of a copy or memory set."""
    match = _COPY.fullmatch(name)
    if match is not None:
        return CopyFacts(
            COPY_KINDS.get(match["kind"], CopyKind.UNKNOWN),
            MEMORY_KINDS.get(match["source"] or "", NULL),
            MEMORY_KINDS.get(match["destination"] or "", NULL),
        )
    match = _SET.fullmatch(name)
    return CopyFacts(destination_memory=MEMORY_KINDS.get(match[1], NULL) if match else NULL)


_GROUPS = (Kind.KERNEL, Kind.COPY, Kind.MEMORY_SET)
_NOTHING = np.empty(0, np.int64)
_NO_COLUMN = pack(_NOTHING)


def read_operations(content: Content, process: int) -> dict[RankKey, RankOperations]:
    """GPU operations of a process, by device; their kernels leave the `content`."""
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
    """Labels of kernels and their texts; none where no kernel has one."""
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
