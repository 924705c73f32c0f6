"""Lanes: bars and points in rows with names, as `assets/charts/lanes.js` draws them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Mark = Literal["bar", "dot", "ring", "tick", "diamond"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A row.

    Attributes:
        title: its name beside the axis.
        name: its full name, for the note beside the pointer.
        href: the target of a click; None for none.
    """

    title: str
    name: str
    href: str | None = None


@dataclass(slots=True)
class Series:
    """Bars or points of one kind.

    Attributes:
        name: its name in the legend.
        mark: the shape of each.
        color: of all marks; None for the colour of text.
        rows: the row's index of each mark.
        x: the value of each mark.
        notes: the lines of each mark's note, below the row's name.
    """

    name: str
    mark: Mark
    color: str | None
    rows: list[int] = field(default_factory=list)
    x: list[float] = field(default_factory=list)
    notes: list[list[str]] = field(default_factory=list)

    def add(self, row: int, x: float, *notes: str) -> None:
        """Add a bar or a point."""
        self.rows.append(row)
        self.x.append(x)
        self.notes.append([*notes])


def lanes(
    axis: str,
    rows: Sequence[Lane],
    series: Sequence[Series],
    *,
    row_height: int,
    scale: Literal["linear", "log"] = "linear",
    joins: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return a chart of lanes.

    Args:
        axis: its title, with its unit.
        rows: from top to bottom.
        series: bars and points in the rows.
        row_height: in pixels.
        scale: of the axis.
        joins: lines from one value of a `row` to another one: `from`, `to` and `color`.
    """
    return {
        "kind": "lanes",
        "axis": axis,
        "scale": scale,
        "row_height": row_height,
        "rows": [{"title": row.title, "name": row.name, "href": row.href} for row in rows],
        "series": [
            {
                "name": layer.name,
                "mark": layer.mark,
                "color": layer.color,
                "rows": layer.rows,
                "x": layer.x,
                "notes": layer.notes,
            }
            for layer in series
        ],
        "joins": [*joins],
    }


def shortened(name: str, most: int = 42) -> str:
    """Shorten a name to this many characters by leaving out its middle."""
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"
