"""Kinds of copies and of memory by the numbers of an Nsight export."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from traceprof.structs import Record
from traceprof.trace.model.kinds import CopyKind, MemoryKind
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.sqlite.database import Database

Kind = TypeVar("Kind", CopyKind, MemoryKind)


class Kinds(Record, frozen=True):
    """The kinds by the numbers of an export; other numbers are unknown kinds."""

    copies: Mapping[int, CopyKind]
    memory: Mapping[int, MemoryKind]


def read_kinds(database: Database) -> Kinds:
    """Read the export's own enumerations, if it has them."""
    return Kinds(
        _kinds(database, schema.MEMCPY_KINDS, schema.COPY_KINDS, CopyKind),
        _kinds(database, schema.MEM_KINDS, schema.MEMORY_KINDS, MemoryKind),
    )


def translated(column: Column, kinds: Mapping[int, CopyKind] | Mapping[int, MemoryKind]) -> Int64:
    """Translate the export's numbers of kinds into ours, int64[n]; NULL stays NULL.

    Args:
        column: n numbers of the export.
        kinds: by the export's number.
    """
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
