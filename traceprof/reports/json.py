"""An analysis and what-if answers as JSON, by the schemas that ship beside this module."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from traceprof.documents import whatif
from traceprof.documents.analysis.records import document

if TYPE_CHECKING:
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.replay.answers.ask import Asked


def render(result: RunResult) -> str:
    """Return an analysis as JSON text that ends in a newline."""
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
    except msgspec.DecodeError:  # a path that is not UTF-8
        text = write(indent=1)
    return text + "\n"


def render_answers(asked: Asked) -> str:
    """Return what-if answers as JSON text that ends in a newline."""
    written = json.dumps(msgspec.to_builtins(whatif.document(asked)))
    return msgspec.json.format(written, indent=1) + "\n"
