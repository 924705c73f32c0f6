"""Query: SQL over the tables that `traceprof export parquet` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from operator import itemgetter

from dash import dcc, html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards import queries
from dashboards.address import Address
from dashboards.queries import QueryQuestion, QueryResult, RowTime, Value
from dashboards.questions import PendingAnswer, questions_about
from dashboards.timeline.search import in_field
from dashboards.view import View
from dashboards.widgets import components as ui
from dashboards.widgets.tables import IDENTIFIER, Column, Row, record, table
from traceprof.errors import MissingExtraError, one_line
from traceprof.findings import Evidence
from traceprof.frames.results import columns, subject
from traceprof.reports.table_files import tables
from traceprof.units import counted

PATH = addresses.QUERY
TITLE = "Query"
ANSWERS = "query"
_MAX_SHORT = 40  # characters of a text that takes one line
_MAX_DECIMALS = 9

EXAMPLES = {
    "the longest kernels": """SELECT rank, start_ns, duration_ns, name, place
FROM kernels ORDER BY duration_ns DESC LIMIT 100""",
    "the parts of each step": """SELECT rank, step, start_ns, window_ns, compute_ns,
       exposed_communication_ns, exposed_copy_ns, idle_ns
FROM steps ORDER BY window_ns DESC""",
    "time by category": """SELECT rank, category, count(*) AS num, sum(duration_ns) AS total_ns,
       round(100 * sum(duration_ns) / sum(sum(duration_ns)) OVER (PARTITION BY rank), 1) AS percent
FROM kernels GROUP BY rank, category ORDER BY rank, total_ns DESC""",
}

_COLUMNS = (
    Column("table", "table", None, 120, has_filter=True),
    Column("name", "column", None, 180, has_filter=True),
    Column("kind", "values", None, 70),
    Column("unit", "unit", None, 60),
    Column("meaning", "meaning", None, 0, "where the name does not say it"),
    Column("subject", "what the table holds", None, 200, may_be_cut=True),
)


class _Shown(Column):
    """A column with a name of the reader's: its end is no unit to convert."""

    __slots__ = ()

    @property
    def unit(self) -> str:
        """None."""
        return ""

    def is_empty(self, rows: Sequence[Row]) -> bool:
        """Return False: what is asked for is shown, also where it is unknown."""
        del rows
        return False


def layout(view: View) -> Component:
    """Return the page: where a query is written, what it selects, and the tables."""
    most = f"{queries.MAX_S:.0f} s and {queries.MAX_BYTES >> 30} GiB"
    lead: list[Component | str] = [
        "One SELECT in DuckDB's SQL over the tables that ",
        html.Code("traceprof export parquet"),
        f" writes. It changes nothing, and takes at most {most}.",
    ]
    if not queries.is_installed():
        error = MissingExtraError.of("cannot run queries", "duckdb", "query")
        why = "Queries need DuckDB, which is not installed here."
        return ui.page(TITLE, lead, ui.nothing(why, error.remedy))
    result = ui.answered_later(ANSWERS, *answers(view))
    return ui.page(TITLE, lead, _form(view.address), *result, _tables())


def answers(view: View) -> tuple[list[Component], bool]:
    """Return the result so far, and whether it is all."""
    if not view.address.sql:
        return [], True
    question = questions_about(view.analysis).about(QueryQuestion(view.address.sql))
    return drawn(question, view), question.is_over


def _form(address: Address) -> Component:
    text = address.sql or next(iter(EXAMPLES.values()))
    written = dcc.Textarea(
        id="query-text", value=text, rows=max(5, text.count("\n") + 2), spellCheck=False
    )
    run = html.Button("Run", id="query-run", className="plain", title="Ctrl+Enter")
    links: list[Component | str] = ["Examples: "]
    for name, sql in EXAMPLES.items():
        links += [dcc.Link(name, href=address.to(PATH, sql=sql).href()), " · "]
    label = html.Label(["SQL", written], className="sql")
    asking = html.Div([run, html.Span(links[:-1], className="note")], className="ask")
    return ui.card("Ask", label, asking)


def drawn(question: PendingAnswer, view: View) -> list[Component]:
    """Return what a query selects, or why it selects nothing, or that it runs."""
    if not question.is_over:
        return [ui.waiting("Running …")]
    if question.answer is None:
        return [ui.card("No result", html.P(one_line(question.error or ""), role="alert"))]
    result: QueryResult = question.answer
    if not result.num_rows:
        return [ui.card("Result", ui.nothing("No row fulfils it."))]
    note: list[Component | str] = [counted(result.num_rows, "row")]
    if result.num_rows > len(result.rows):
        note.append(f"; the first {queries.MAX_ROWS:,} are shown and saved")
    if result.times:
        sql = in_field(view.address.sql or "")
        href = view.address.to(addresses.TIMELINE, search=sql, order="start").href()
        which = (
            "these"
            if result.num_rows <= queries.MAX_MARKED
            else f"the first {queries.MAX_MARKED:,}"
        )
        note += [" · ", dcc.Link(f"mark {which} events on the timeline", href=href)]
    return [ui.card("Result", _rows(result, view), note=note)]


def _rows(result: QueryResult, view: View) -> Component:
    fields = [f"c{number}" for number in range(len(result.columns))]
    rows = [
        {
            field: one_line(value) if isinstance(value, str) else value
            for field, value in zip(fields, values, strict=True)
        }
        for values in result.rows
    ]
    there = {rank.rank for rank in view.analysis.run.ranks}
    shown = [
        _column(field, name, [row[field] for row in rows])
        for field, name in zip(fields, result.columns, strict=True)
    ]
    if result.times:
        for row, time in zip(rows, result.times, strict=False):
            if time is not None and time.rank in there:
                row["href"] = _place(time, view)
    return table("query", shown, rows, "query.csv")


def _column(field: str, name: str, values: list[Value]) -> Column:
    known = [value for value in values if value is not None]
    leads = name == "start_ns"
    if not all(isinstance(value, (int, float)) for value in known):
        is_long = max(len(str(value)) for value in known) > _MAX_SHORT
        return _Shown(field, name, None, 0 if is_long else 100, leads=leads)
    most = max((abs(value) for value in known if isinstance(value, float)), default=None)
    decimals = 0 if name.endswith("_ns") else IDENTIFIER
    if most is not None:
        decimals = min(max(0, 3 - math.floor(math.log10(most))), _MAX_DECIMALS) if most else 0
    return _Shown(field, name, decimals, 80, leads=leads)


def _place(time: RowTime, view: View) -> str:
    end = time.start_ns + (time.length_ns or 0)
    return ui.interval_address(view, time.rank, Evidence(time.start_ns, end, "")).href()


@cache
def _tables() -> Component:
    rows = [
        record(_COLUMNS, column, table=name, subject=subject(row))
        for name, row in sorted(tables().items(), key=itemgetter(0))
        for column in columns(row)
    ]
    note = "rows of all ranks and all of the time; times are of each report's own clock"
    return ui.card("Tables", table("query-tables", _COLUMNS, rows, in_sight=15.5), note=note)
