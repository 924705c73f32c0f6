"""A comparison as JSON, by the schema `traceprof.comparison/1` that ships beside the reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from traceprof.documents.comparison import Comparison


def render(comparison: Comparison) -> str:
    """Return the document `traceprof.comparison/1`, with a line break at its end."""
    return json.dumps(msgspec.to_builtins(comparison), indent=1, allow_nan=False) + "\n"
