"""Reads the document of an analysis from JSON that anybody may have written or changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from traceprof.documents.analysis.model import SCHEMA, Document
from traceprof.errors import TraceFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DOCUMENT_BYTES = 1 << 28
"""Of a document, which holds some 50 kB for each rank."""

_MAX_NUMBER = 1 << 62  # sums of some, and their squares as floats, can be computed


def read_document(text: bytes, name: str) -> Document:
    """Return the document of an analysis from JSON; errors call its source by the name.

    Raises:
        TraceFileError: it is not JSON, another document, from another version, or damaged.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        why = f"it has more than {MAX_DOCUMENT_BYTES >> 20} MiB"
        raise TraceFileError(f"cannot read {name}", why, "analyse fewer reports at once")
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(
            f"cannot read {name}", f"it is not JSON: {error}", "write the analysis again"
        ) from error
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema != SCHEMA:
        why = f"it is {schema!r}, not an analysis"
        raise TraceFileError(f"cannot compare {name}", why, "use analyze --format json")
    try:
        document = msgspec.convert(values, Document)
    except msgspec.ValidationError as error:
        why = f"another version of traceprof wrote it ({error})"
        raise TraceFileError(
            f"cannot compare {name}", why, "analyse the reports again with this version"
        ) from error
    fault = next(_faults(values, document), None)
    if fault is not None:
        why = f"it was changed: {fault}"
        raise TraceFileError(f"cannot compare {name}", why, "write the analysis again")
    return document


def _faults(values: object, document: Document) -> Iterator[str]:
    """Yield what no analysis writes."""
    if _holds_large_number(values):
        yield "a number is too large"
    if not document.reports or not document.ranks:
        yield "it has no report or no rank"
    ranks = [rank.rank for rank in document.ranks]
    if len(set(ranks)) < len(ranks) or [rank.rank for rank in document.run.ranks] != ranks:
        yield "its ranks are not those of its run"
    if {totals.rank for totals in document.step_totals} - {*ranks}:
        yield "it has steps of other ranks"
    num_steps = Counter(step.rank for step in document.steps)
    for totals in document.step_totals:
        places = totals.steps
        if len(places) != totals.num_steps or max(places, default=-1) >= num_steps[totals.rank]:
            yield f"the steps of rank {totals.rank} are not those of its totals"


def _holds_large_number(values: object) -> bool:
    """Return whether a number, at any depth, is so large that it cannot be computed with."""
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, (int, float)) and not abs(value) <= _MAX_NUMBER:
            return True
    return False
