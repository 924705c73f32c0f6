"""The analysis and the comparison as JSON, by the schemas that ship beside this module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import msgspec

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.documents.analysis.records import document
from traceprof.documents.comparison import Comparison
from traceprof.structs import given_fields


def render(result: RunResult) -> str:
    """Return an analysis as JSON text that ends in a newline."""
    return "".join(pieces(result))


def render_document(document: msgspec.Struct) -> str:
    """Return a document as JSON text that ends in a newline; a path may be no UTF-8."""
    return json.dumps(msgspec.to_builtins(document), indent=1, allow_nan=False) + "\n"


def render_comparison(comparison: Comparison) -> str:
    """Return the document `traceprof.comparison/1`, with a line break at its end."""
    return render_document(comparison)


def pieces(result: RunResult) -> Iterator[str]:
    """Yield the same in pieces, which take less memory than the whole: one for each of its keys."""
    before = "{"
    for name, value in msgspec.structs.asdict(document(result)).items():
        yield before + _indented({name: value}).removeprefix("{").removesuffix("\n}")
        before = ","
    yield "\n}\n"


def _indented(content: object) -> str:
    # A struct becomes a dict when its turn comes: all of them at once would take megabytes.
    write = partial(json.dumps, content, default=given_fields, allow_nan=False)
    try:
        # A quarter of the time that Python takes for indented text.
        return msgspec.json.format(write(separators=(",", ":")), indent=1)
    except msgspec.DecodeError:  # a path that is not UTF-8
        return write(indent=1)
