"""What the columns of tables hold: their kinds, units and meanings, from where each is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_type_hints

from traceprof.documents.analysis.model import meanings
from traceprof.frames.results import kinds_of, nested_fields

if TYPE_CHECKING:
    from msgspec import Struct

_UNITS = {"_ns": "ns", "bytes": "bytes", "gb_per_s": "GB/s", "flops_per_s": "FLOP/s"}
"""By the end of a column's name."""
_KINDS = {bool: "true or false", float: "number", int: "integer", str: "text"}


class ColumnText(NamedTuple):
    """A column of a table, in words."""

    name: str  # the name
    kind: str  # the kind of its values
    unit: str  # the unit of its numbers; empty if they have none
    meaning: str  # the meaning, where the name does not say it


def columns(record: type[Struct]) -> list[ColumnText]:
    """Return the columns of a table in their order, by the type of its rows."""
    texts, nested = meanings(record), nested_fields(record)
    found = []
    for name, hint in get_type_hints(record).items():
        kind = next((kind for kind in _KINDS if kind in kinds_of(hint)), str)
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        if name in nested or kind in {bool, str}:
            unit = ""
        found.append(
            ColumnText(name, "JSON" if name in nested else _KINDS[kind], unit, texts.get(name, ""))
        )
    return found


def subject(record: type[Struct]) -> str:
    """Return what a row of a table is."""
    return (record.__doc__ or "").partition("\n")[0].replace("`", "").removesuffix(".")
