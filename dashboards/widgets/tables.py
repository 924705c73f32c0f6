"""Sortable tables: AG Grid with numbers at the right, units in the heads, and text as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dash import html
from dash_ag_grid import AgGrid

from dashboards.widgets.components import UNKNOWN, part_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    Row = dict[str, Any]

IDENTIFIER = -1
_MAX_SHOWN = 16  # rows without a scroll bar
_ROW, _HEAD = 32, 58
_LETTER, _PADDING = 8.5, 36  # of a head, in pixels; no letter of it is wider on average
_DIGIT = 8.0  # of a cell, likewise


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        field: of the rows.
        head: its name, with the unit in brackets.
        decimals: of its numbers; `IDENTIFIER` for numbers that only name; None for text.
        width: in pixels, at least, or what the longest word of the head takes; 0 for long names.
        tip: what the head means.
    """

    field: str
    head: str
    decimals: int | None = None
    width: int = 0
    tip: str = ""

    def definition(self, rows: Sequence[Row] = ()) -> dict[str, Any]:
        """Return it as AG Grid takes it.

        Args:
            rows: what it will show: none of its numbers is cut.
        """
        taken: dict[str, Any] = {
            "field": self.field,
            "headerName": self.head,
            "headerTooltip": self.tip or self.head,
        }
        # Columns share what is left of the width, and none is narrower than it says.
        longest = max(map(len, self.head.split()))
        width = max(self.width, round(_LETTER * longest) + _PADDING)
        if self.decimals is not None:
            digits = max((len(self._text(row.get(self.field))) for row in rows), default=0)
            width = max(width, round(_DIGIT * digits) + _PADDING)
        taken |= {"minWidth": width if self.width else 180, "flex": width if self.width else 300}
        if self.decimals is None:
            filtered = {} if self.width else {"filter": "agTextColumnFilter"}
            return taken | filtered | {"tooltipField": self.field}
        taken["type"] = "rightAligned"
        if self.decimals == IDENTIFIER:
            return taken
        shown = f"d3.format(',.{self.decimals}f')(params.value)"
        return taken | {
            "valueFormatter": {"function": f"params.value == null ? '{UNKNOWN}' : {shown}"}
        }

    def _text(self, value: float | None) -> str:
        """Return a number as the table shows it."""
        if value is None:
            return UNKNOWN
        return str(value) if self.decimals == IDENTIFIER else f"{value:,.{self.decimals}f}"


def table(name: str, columns: Sequence[Column], rows: Sequence[Row], csv: str = "") -> Component:
    """Return a table, with a button that saves it where it has a file name.

    Args:
        name: its id in the page.
        columns: from left to right.
        rows: their values by field; None where there is none.
        csv: file name under which it can be saved.
    """
    scrolls = len(rows) > _MAX_SHOWN
    grid = AgGrid(
        id=part_id("table", name),
        columnDefs=[column.definition(rows) for column in columns],
        rowData=list(rows),
        columnSize=None,
        defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True},
        csvExportParams=_saved_as(csv) if csv else None,
        dashGridOptions={
            "domLayout": "normal" if scrolls else "autoHeight",
            "rowHeight": _ROW,
            "headerHeight": _HEAD,
            "tooltipShowDelay": 300,
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "suppressFieldDotNotation": True,
        },
        style={"height": f"{_HEAD + _ROW * _MAX_SHOWN}px" if scrolls else None},
    )
    if not csv:
        return html.Div(grid, className="table")
    save = html.Button("Save as CSV", id=part_id("save", name), className="save")
    return html.Div([save, grid], className="table")


def _saved_as(csv: str) -> dict[str, Any]:
    """Return how a table is saved: see `saved` in tables.js for its cells."""
    return {"fileName": csv, "processCellCallback": {"function": "saved(params)"}}
