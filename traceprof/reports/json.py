"""An analysis as JSON, by the schema `traceprof.analysis/1` that ships beside this module."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from traceprof.documents.analysis.records import document

if TYPE_CHECKING:
    from traceprof.analyses.verdict.run_result import RunResult

__all__ = ["document", "render"]


def render(result: RunResult) -> str:
    """Return the analysis as JSON text that ends in a newline."""
    write = partial(
        json.dumps,
        document(result),
        # A struct becomes a dict when its turn comes: all of them at once would take megabytes.
        default=msgspec.structs.asdict,
        allow_nan=False,
    )
    try:
        # A quarter of the time that Python takes for indented text.
        text = msgspec.json.format(write(separators=(",", ":")), indent=1)
    except msgspec.DecodeError:  # a path that is no UTF-8
        text = write(indent=1)
    return text + "\n"
