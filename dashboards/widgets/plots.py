"""Charts of thousands of bars and points, which `assets/charts` draws on canvases.

The data goes to the browser as columns of rounded numbers, so that replies are small and pages
appear at once. Times are whole nanoseconds from a base, so that they are exact.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from dash import html

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Float64, Int64

    Values = list[float | None]


def plots(name: str, data: Mapping[str, Any], label: str) -> html.Figure:
    """Return a chart.

    Args:
        name: its id in the page.
        data: for the module of `assets/charts` named by its `kind`.
        label: its content in words, for screen readers.
    """
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    attributes: dict[str, Any] = {"data-plots": written, "data-label": label}
    return html.Figure(html.Div(id=name, className="plots", **attributes))


def rounded(values: Float64, decimals: int) -> Values:
    """Return numbers for JSON: rounded to this many decimals, null for NaN."""
    return [None if value != value else value for value in np.round(values, decimals).tolist()]  # noqa: PLR0124


def decimals_for(most: float) -> int:
    """Return the decimals for numbers up to this one, so that there are a million levels.

    Even if one warm-up step takes a hundred times as long, the others keep enough levels.
    """
    return max(0, 6 - int(np.floor(np.log10(most)))) if most > 0 else 0


def offsets(times_ns: Int64, base_ns: int) -> list[int]:
    """Return times as distances from a base, which JavaScript's numbers hold exactly."""
    after: list[int] = (times_ns - base_ns).tolist()
    return after
