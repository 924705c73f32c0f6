"""Sortable tables: AG Grid with numbers at the right, units in the heads, and text as text.

Rows carry the values of the analysis under their own names and in their own units. A column's head
names the unit that is shown and saved, and the browser converts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash.development.base_component import Component
from dash_ag_grid import AgGrid

from dashboards.widgets.charts import PARTS
from dashboards.widgets.components import UNKNOWN, part_id
from traceprof.analyses.breakdown import Measures
from traceprof.errors import one_line

Row = dict[str, Any]

IDENTIFIER = -1
_MAX_SHOWN = 16  # rows without a scroll bar
_SCROLLED = 7.5  # rows in sight of more: the half one says that it goes on
_ROW, _HEAD = 32, 58
_LETTER, _HEAD_PADDING = 8.5, 26  # of a head, in pixels; no letter of it is wider on average
_DIGIT, _CELL_PADDING = 8.9, 30  # of a cell
_SMALL = 8.0  # a small letter of a cell, on average
_MIN_WIDTH = 60
_SMALL_WINDOW = 1200  # what a window of 1280 pixels leaves to a table
_MIN_CUT = 100  # of a column whose text is cut
_MIN_WRAPPED = 190  # of a column of long names, which take several lines
_MAX_TEXT = 330  # pixels that text is given before it is cut; its tooltip has all of it
_MAX_NAME = 280  # pixels that a long name is given at least, where there is room
_FILTER = 22  # of the button in the head
_DIVISORS = {"(ms)": 1e6, "(µs)": 1e3, "(%)": 0.01, "TFLOP/s": 1e12}
"""By the last word of a head: of ns, of shares from 0 to 1, of operations a second."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    field: str  # of the rows
    head: str  # its name, with the unit in brackets
    # of its numbers; `IDENTIFIER` for numbers that only name; None for text
    decimals: int | None = None
    # in pixels, in proportion to which columns share spare width; 0 for long names, which take up
    # to three lines
    width: int = 0
    tip: str = ""  # the meaning of the head
    is_hidden: bool = False  # whether it is saved, but not shown
    has_filter: bool = False  # whether rows can be chosen by its text, as by long names
    # whether it gets narrower, and its text takes several lines, before the table gets wider than
    # a small window
    may_be_cut: bool = False
    leads: bool = False  # whether its text leads to where the field `href` of the row says

    def definition(self, rows: Sequence[Row] = (), width: int = 0) -> dict[str, Any]:
        """Return the column's definition for AG Grid: no number of the rows is cut.

        `width` is the least, in pixels; 0 for what its head and the rows need.
        """
        options: dict[str, Any] = {
            "field": self.field,
            "headerName": self.head,
            "headerTooltip": self.tip or self.head,
        }
        is_shown = not self.is_hidden and not (rows and self.is_empty(rows))
        if not is_shown:
            options["hide"] = True
        options |= {"minWidth": width or self.least_width(rows), "flex": self.width or 300}
        if self.leads:
            options["cellRenderer"] = "Place"
        if self.is_wrapped or self.may_be_cut:
            options |= {"wrapText": True, "autoHeight": True, "cellClass": "wrapped"}
        if self.decimals is None:
            if self.is_filtered and is_shown:  # else there is a row of filters without any
                options |= {"filter": "agTextColumnFilter", "floatingFilter": True}
            return options | {"tooltipField": self.field}
        options["type"] = "rightAligned"
        if self.decimals == IDENTIFIER:
            return options
        if self.unit in _DIVISORS:
            value, divisor = f"params.data.{self.field}", _DIVISORS[self.unit]
            options["valueGetter"] = {"function": f"{value} == null ? null : {value} / {divisor}"}
        shown = f"d3.format(',.{self.decimals}f')(params.value)"
        return options | {
            "valueFormatter": {"function": f"params.value == null ? '{UNKNOWN}' : {shown}"}
        }

    @property
    def unit(self) -> str:
        """The last word of its head, which is the unit if it has one."""
        return self.head.rpartition(" ")[2]

    @property
    def is_filtered(self) -> bool:
        """True if readers can filter rows by its text."""
        return self.has_filter or self.is_wrapped

    @property
    def is_wrapped(self) -> bool:
        """True if it holds long names, which take several lines."""
        return self.decimals is None and not self.width

    def is_empty(self, rows: Sequence[Row]) -> bool:
        """Return whether none of these rows has anything in it: then it is saved, but not shown."""
        return all(row.get(self.field) in (None, "") for row in rows)

    def least_width(self, rows: Sequence[Row] = ()) -> int:
        """Return the pixels that its head and these rows need."""
        head = _LETTER * max(map(len, self.head.split())) + _HEAD_PADDING
        cell = max((_width(self._text(row.get(self.field))) for row in rows), default=0.0)
        if self.decimals is None:
            cell = min(cell, _MAX_NAME if self.is_wrapped else _MAX_TEXT)
            head += _FILTER if self.is_filtered else 0
        return round(max(head, cell + _CELL_PADDING, _MIN_WIDTH))

    def _text(self, value: float | str | None) -> str:
        if self.decimals is None or isinstance(value, str):
            return "" if value is None else str(value)
        if value is None:
            return UNKNOWN
        value /= _DIVISORS.get(self.unit, 1)
        return str(value) if self.decimals == IDENTIFIER else f"{value:,.{self.decimals}f}"


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """Return the least widths of columns, so that all of them fit a small window if they can."""
    widths = [
        0 if column.is_hidden or column.is_empty(rows) else column.least_width(rows)
        for column in columns
    ]
    over = sum(widths) - _SMALL_WINDOW
    # Names get narrower last: they need the room most.
    for place, column in sorted(enumerate(columns), key=lambda item: item[1].is_wrapped):
        if over > 0 and (column.may_be_cut or not column.width):
            least = min(widths[place], _MIN_WRAPPED if column.is_wrapped else _MIN_CUT)
            gain = min(over, widths[place] - least)
            widths[place] -= gain
            over -= gain
    return widths


def record(columns: Sequence[Column], *sources: object, **values: Any) -> Row:  # noqa: ANN401
    """Return a row: these values, and for other columns the attribute of that name of a source."""
    row: Row = {}
    for name in (column.field for column in columns):
        value = next((getattr(source, name) for source in sources if hasattr(source, name)), None)
        row[name] = one_line(value) if isinstance(value, str) else value
    return row | values


def fraction_of(measure: str) -> str:
    """Return the field of a part's share of a window."""
    return f"{measure.removesuffix('_ns')}_fraction"


def fractions(measures: Measures) -> dict[str, float]:
    """Return the parts of a window as shares of it, by field."""
    return {fraction_of(measure): measures.fraction(measure) for measure, *_ in PARTS}


def _width(text: str) -> float:
    """Return how many pixels a text takes in a cell, about."""
    small = sum(map(str.islower, text))
    return _SMALL * small + _DIGIT * (len(text) - small)


def table(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    csv: str = "",
    *,
    in_sight: float = _SCROLLED,
) -> Component:
    """Return a table, and if `csv` names a file, a button that saves it there.

    Of more rows than fit, `in_sight` are visible without scrolling.
    """
    scrolls = len(rows) > _MAX_SHOWN
    grid = AgGrid(
        id=part_id("table", name),
        columnDefs=[
            column.definition(rows, width)
            for column, width in zip(columns, _widths(columns, rows), strict=True)
        ],
        rowData=list(rows),
        columnSize=None,
        defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True},
        # `saved` in tables.js makes the cells.
        csvExportParams={
            "fileName": csv,
            "allColumns": True,
            "processCellCallback": {"function": "saved(params)"},
        }
        if csv
        else None,
        dashGridOptions={
            "domLayout": "normal" if scrolls else "autoHeight",
            "rowHeight": _ROW,
            "headerHeight": _HEAD,
            "floatingFiltersHeight": 40,
            "tooltipShowDelay": 300,
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "suppressFieldDotNotation": True,
        },
        style={"height": f"{_HEAD + _ROW * in_sight:.0f}px" if scrolls else None},
    )
    if not csv:
        return html.Div(grid, className="table")
    save = html.Button("Save as CSV", id=part_id("save", name), className="save")
    return html.Div([save, grid], className="table")
