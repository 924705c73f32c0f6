"""What the columns of frames hold: their kinds, units and meanings, from where each is declared."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import NamedTuple, get_type_hints

from traceprof.documents.analysis.model import meanings
from traceprof.documents.analysis.records import TABLES
from traceprof.frames.open_run import RunFrames
from traceprof.frames.results import kinds_of, nested_fields

_UNITS = {"_ns": "ns", "bytes": "bytes", "gb_per_s": "GB/s", "flops_per_s": "FLOP/s"}
"""By the end of a column's name."""
_KINDS = {bool: "true or false", float: "number", int: "integer", str: "text"}
_OF_EVENTS = {
    **dict.fromkeys(("tensor_cores", "is_unified", "nests"), bool),
    **dict.fromkeys(("rank", "stream", "thread", "correlation", "bytes", "peer", "root"), int),
    **dict.fromkeys(("source_device", "destination_device", "num_ranks", "flops"), int),
    **dict.fromkeys(("external_id", "sequence_number"), int),
}
"""Values that are no text, besides times."""
_LISTED = re.compile(r"(\w+)(?: \(([^()]*(?:\([^()]*\)[^()]*)*)\))?")


class ColumnText(NamedTuple):
    """A column of a table, in words."""

    name: str  # the name
    kind: str  # the kind of its values
    unit: str  # the unit of its numbers; empty if they have none
    meaning: str  # the meaning, where the name does not say it


def columns(table: str, *, of_events: bool) -> list[ColumnText]:
    """Return the columns of a table of events, or of a list of the JSON document, in their order.

    Those of events are named in the docstrings of `RunFrames`.
    """
    if of_events:
        listed = cleandoc(getattr(RunFrames, table).__doc__ or "")
        listed = listed.partition("Returns:\n")[2].partition("\n\n")[0]
        found = _LISTED.findall(" ".join(listed.split()))
        return [
            _column(name, int if name.endswith("_ns") else _OF_EVENTS.get(name, str), meaning)
            for name, meaning in found
            if name != "and"
        ]
    record, _ = TABLES[table]
    texts, nested = meanings(record), nested_fields(table)
    kinds = {
        name: next((kind for kind in _KINDS if kind in kinds_of(hint)), str)
        for name, hint in get_type_hints(record).items()
    }
    return [
        ColumnText(name, "JSON", "", texts.get(name, ""))
        if name in nested
        else _column(name, kind, texts.get(name, ""))
        for name, kind in kinds.items()
    ]


def _column(name: str, kind: type, meaning: str) -> ColumnText:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return ColumnText(name, _KINDS[kind], "" if kind in {bool, str} else unit, meaning)


def subject(table: str, *, of_events: bool) -> str:
    """Return what a row of a table of events, or of a list of the JSON document, is."""
    described = getattr(RunFrames, table) if of_events else TABLES[table].record
    line = (described.__doc__ or "").partition("\n")[0].removeprefix("Return ").replace("`", "")
    begin = line.partition(" ")[0]
    return (line if "_" in begin else line[:1].upper() + line[1:]).removesuffix(".")
