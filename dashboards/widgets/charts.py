"""Colours of kinds of work, the same on every page, which colour-blind readers can distinguish.

M. Okabe, K. Ito: Color Universal Design, https://jfly.uni-koeln.de/color/.
Surfaces, text and lines differ between light and dark: they are variables of `assets/style.css`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from dash import html

from traceprof import intervals
from traceprof.intervals import Float64, Int64, Intervals, even_limits

Values = list[float | None]

GREEN = "#009E73"
VERMILLION = "#D55E00"
ORANGE = "#E69F00"
BLUE = "#0072B2"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#F0E442"
GREY = "#999999"  # not one of the eight, for what is absent

COMPUTE = GREEN
COMMUNICATION = VERMILLION
COPY = ORANGE
IDLE = GREY
HOST = SKY
NVTX = PURPLE
MARK = YELLOW
SELECTED = BLUE
STALLED = VERMILLION

PARTS: tuple[tuple[str, str, str], ...] = (
    ("compute_ns", "compute", COMPUTE),
    ("exposed_communication_ns", "exposed communication", COMMUNICATION),
    ("exposed_copy_ns", "exposed copy", COPY),
    ("idle_ns", "idle", IDLE),
)
"""The parts of a window that add up to it: field of `Measures`, name, colour."""

CATEGORIES = {
    "matmul": BLUE,
    "attention": PURPLE,
    "convolution": SKY,
    "normalization": YELLOW,
    "elementwise": GREEN,
    "reduction": "#8C6D31",
    "optimizer": ORANGE,
    "communication": VERMILLION,
    "other": GREY,
}
"""Colours of kernels by what they do."""


def plots(name: str, data: Mapping[str, Any], label: str) -> html.Figure:
    """Return a chart: its id, the data that `assets/charts` draws by their `kind`, and its name."""
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


MAX_POINTS = 1500
"""About as many as a wide chart has pixels across."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The least and the greatest value of a series in each of n pieces of time."""

    start_ns: Int64  # int64[n], where each piece begins; the next one's start is its end
    least: npt.NDArray[Any]  # [n]
    most: npt.NDArray[Any]  # [n]


def envelope(
    times_ns: Int64, values: npt.NDArray[Any], start_ns: int, end_ns: int, num: int = MAX_POINTS
) -> Envelope:
    """Return the extremes of a step function within each piece of a window, `num` at most.

    Each of `values` holds from its time on, the first one also before.
    """
    first = max(int(np.searchsorted(times_ns, start_ns, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(times_ns, end_ns, side="left")), first + 1)
    times, values = times_ns[first:stop], values[first:stop]
    if len(times) == 0 or end_ns <= start_ns:
        return Envelope(times[:0], values[:0], values[:0])
    if len(times) <= num:
        times = np.maximum(times, start_ns)
        return Envelope(times, values, values)
    limits = even_limits(start_ns, end_ns, num)
    # Of each piece the value that holds as it begins, and those that come before it ends.
    held = np.maximum(np.searchsorted(times, limits[:-1], side="right") - 1, 0)
    until = np.searchsorted(times, limits[1:], side="left")
    slices = np.stack((held, np.maximum(until, held + 1)), axis=1).ravel()
    padded = np.append(values, values[-1])  # the last slice may end where the values do
    return Envelope(
        limits[:-1],
        np.minimum.reduceat(padded, slices)[::2],
        np.maximum.reduceat(padded, slices)[::2],
    )


def covered_share(covered: Intervals, limits: Int64) -> Float64:
    """Return the share of each piece that is covered, 0 to 1, float64[m] for m + 1 limits."""
    length = np.diff(limits)
    within = intervals.covered_within(covered, limits[:-1], limits[1:])
    share: Float64 = within / np.maximum(length, 1)
    return share


def group_starts(count: int, most: int) -> Int64:
    """Return the starts of groups of almost equal size, int64[min(count, most)]."""
    num = min(count, most)
    starts: Int64 = np.arange(num, dtype=np.int64) * count // max(num, 1)
    return starts


Mark = Literal["bar", "dot", "ring", "tick", "diamond"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A row."""

    title: str  # its name beside the axis
    name: str  # its full name, for the note beside the pointer
    href: str | None = None  # the target of a click; None for none


@dataclass(slots=True)
class Series:
    """Bars or points of one kind."""

    name: str  # its name in the legend
    mark: Mark  # the shape of each
    color: str | None  # of all marks; None for the colour of text
    rows: list[int] = field(default_factory=list)  # the row's index of each mark
    values: list[float] = field(default_factory=list)  # of each mark
    notes: list[list[str]] = field(default_factory=list)  # lines below the row's name, of each

    def add(self, row: int, value: float, *notes: str) -> None:
        """Add a bar or a point."""
        self.rows.append(row)
        self.values.append(value)
        self.notes.append([*notes])


def lanes(
    axis: str,
    rows: Sequence[Lane],
    series: Sequence[Series],
    *,
    row_height: int,
    per: float = 1,
    scale: Literal["linear", "log"] = "linear",
    joins: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return a chart of rows from top to bottom, with the marks of series in them.

    Values are divided by `per` for the axis: by 1e6 for ns on one of ms. `joins` are lines between
    two values of a `row`: `from`, `to` and `color`.
    """
    return {
        "kind": "lanes",
        "axis": axis,
        "scale": scale,
        "per": per,
        "row_height": row_height,
        "rows": [*map(asdict, rows)],
        "series": [*map(asdict, series)],
        "joins": [*joins],
    }


def shortened(name: str, most: int = 42) -> str:
    """Shorten a name to this many characters by leaving out its middle."""
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"
