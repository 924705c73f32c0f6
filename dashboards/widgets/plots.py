"""Charts of thousands of bars and points, which `assets/charts` draws on canvases.

What is drawn goes to the browser as columns of rounded numbers: a page is to be there at once, and
its reply small. Times are whole nanoseconds from a base, so that they are exact.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from dash import html

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from traceprof.intervals import Int64

    Float64 = npt.NDArray[np.float64]
    Values = list[float | None]


def plots(name: str, drawn: Mapping[str, Any], label: str) -> html.Figure:
    """Return a chart.

    Args:
        name: its id in the page.
        drawn: what the module of `assets/charts` named by `kind` takes.
        label: what it shows, for those who do not see it.
    """
    written = json.dumps(drawn, separators=(",", ":"), allow_nan=False)
    attributes: dict[str, Any] = {"data-plots": written, "data-label": label}
    return html.Figure(html.Div(id=name, className="plots", **attributes))


def rounded(values: Float64, decimals: int) -> Values:
    """Return numbers as JSON has them: so many decimals, null for NaN."""
    return [None if value != value else value for value in np.round(values, decimals).tolist()]  # noqa: PLR0124


def decimals_for(most: float) -> int:
    """Return how many decimals are drawn of numbers up to this one: a million levels.

    As many as one warm-up step of a hundred times the others leaves to these.
    """
    return max(0, 6 - int(np.floor(np.log10(most)))) if most > 0 else 0


def offsets(times_ns: Int64, base_ns: int) -> list[int]:
    """Return times as numbers from a base, which the browser's numbers hold exactly."""
    after: list[int] = (times_ns - base_ns).tolist()
    return after
