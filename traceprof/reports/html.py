"""The text report as one HTML file that needs nothing else: rich draws and escapes it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from traceprof.reports import text

if TYPE_CHECKING:
    from traceprof.analyses.run_result import RunResult


def render(analysis: RunResult) -> str:
    """Return the report as a self-contained HTML page."""
    console = Console(
        file=io.StringIO(), record=True, width=text.PLAIN_WIDTH, force_terminal=True, no_color=False
    )
    console.print(text.report(analysis))
    return console.export_html(inline_styles=True)
