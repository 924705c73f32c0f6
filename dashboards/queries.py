"""Queries of SQL over the tables of a run that `traceprof export parquet` writes: read-only.

DuckDB answers them in memory. It opens no file, loads no extension and changes no setting, and it
is stopped when it takes too long or needs too much memory.
"""

from __future__ import annotations

import re
import threading
from contextlib import closing
from decimal import Decimal
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeGuard

from traceprof.analysis import Analysis
from traceprof.errors import MissingExtraError, UsageError
from traceprof.intervals import BEYOND_NS
from traceprof.reports.table_files import tables, whole_table

MAX_S = 20.0
"""Time that a query may take."""
MAX_BYTES = 2 << 30
"""Memory of a query, besides the tables that it reads."""
MAX_ROWS = 5_000
"""Rows of a result that are shown and saved."""
MAX_MARKED = 20_000
"""Rows of a result that are marked on the timeline."""
_MAX_TEXT = 2_000  # characters of a value
_EXACT = 1 << 53  # up to which the browser's numbers are exact
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "temp_directory": "",
    "memory_limit": f"{MAX_BYTES >> 20}MiB",
    "threads": 2,
}
_LOCKED = ("SET python_enable_replacements = false", "SET lock_configuration = true")
_WHAT = "cannot answer this query"

Value = str | int | float | None


class QueryQuestion(NamedTuple):
    """A query, as a question about a run."""

    sql: str


class RowTime(NamedTuple):
    """The time of a row, on a rank."""

    rank: int
    start_ns: int  # on the clock of the rank's report
    length_ns: int | None  # None if it is not known


class QueryResult(NamedTuple):
    """What a query selects."""

    columns: tuple[str, ...]  # their names
    rows: list[tuple[Value, ...]]  # the first ones
    num_rows: int  # all of them
    times: list[RowTime | None]  # the time of each row, of more rows than are shown


def is_installed() -> bool:
    """Return whether DuckDB is there."""
    return find_spec("duckdb") is not None


def answer(analysis: Analysis, sql: str) -> QueryResult:
    """Return what a query selects from the tables of a run.

    Raises:
        MissingExtraError: DuckDB is not installed.
        UsageError: it is no single SELECT, it is wrong, or it needs too much time or memory.
    """
    if not is_installed():
        raise MissingExtraError.of("cannot run queries", "duckdb", "query")
    import duckdb  # noqa: PLC0415  (of an extra)

    words = {word.lower() for word in re.findall(r"\w+", sql)}
    with closing(duckdb.connect(":memory:", config=_SETTINGS)) as connection:
        for setting in _LOCKED:
            connection.execute(setting)
        timer = threading.Timer(MAX_S, connection.interrupt)
        try:
            statements = connection.extract_statements(sql)
            kinds = [one.type.name.replace("_", " ") for one in statements]
            if kinds != ["SELECT"]:
                what = f"{len(kinds)} statements" if len(kinds) > 1 else "".join(kinds) or "empty"
                why = f"it must be one SELECT, and is {what}"
                raise UsageError(_WHAT, why, "write SELECT … FROM a table below")
            for name in tables().keys() & words:
                connection.register(name, whole_table(analysis, name))
            timer.start()
            connection.execute(f"CREATE TEMP TABLE result AS {statements[0].query}")
            return _result(connection)
        except duckdb.Error as error:
            raise UsageError(_WHAT, *_said(error)) from error
        finally:
            timer.cancel()


def _result(connection: Any) -> QueryResult:  # noqa: ANN401
    (num_rows,) = connection.execute("SELECT count(*) FROM result").fetchone()
    selected = connection.execute("FROM result")
    columns = tuple(column[0] for column in selected.description)
    rows = [tuple(map(_value, row)) for row in selected.fetchmany(MAX_ROWS)]
    times: list[RowTime | None] = []
    if {"rank", "start_ns"} <= {*columns}:
        of_length = next((name for name in _OF_LENGTH if name in columns), "NULL")
        timed = connection.execute("SELECT rank, start_ns, " + of_length + " FROM result")  # noqa: S608
        is_end = of_length == "end_ns"
        times = [_time(*row, is_end=is_end) for row in timed.fetchmany(MAX_MARKED)]
    return QueryResult(columns, rows, num_rows, times)


_OF_LENGTH = ("duration_ns", "end_ns", "window_ns")
"""Columns that tell how long the time of a row is; the first that is there counts."""


def _time(rank: object, start_ns: object, length_ns: object, *, is_end: bool) -> RowTime | None:
    if not (_is_whole(rank) and _is_whole(start_ns)):
        return None
    if not _is_whole(length_ns):
        return RowTime(rank, start_ns, None)
    length_ns -= start_ns if is_end else 0
    return RowTime(rank, start_ns, length_ns if length_ns >= 0 else None)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < BEYOND_NS >> 1


def _value(value: object) -> Value:
    """Return a value as a table shows it; of numbers that browsers do not hold, the digits."""
    if isinstance(value, Decimal):
        value = float(value)
    if value is None or (isinstance(value, float) and value != value):  # noqa: PLR0124  (not a number)
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < _EXACT:
        return value
    if isinstance(value, float) and abs(value) != float("inf"):
        return value
    return str(value)[:_MAX_TEXT]


def _said(error: Exception) -> tuple[str, str]:
    """Return why DuckDB refused a query or stopped, and what to do."""
    kind = type(error).__name__
    if kind == "InterruptException":
        return f"it was stopped after {MAX_S:.0f} s", "select fewer rows, or join fewer"
    if kind == "OutOfMemoryException":
        why = f"it needs more than {MAX_BYTES >> 30} GiB of memory"
        return why, "select fewer rows or columns"
    if kind == "PermissionException":
        return "it may read the tables of this run only, and no file", "select from a table below"
    # Without the place in the text, and without guesses of tables that are not of the run.
    first = re.split(r"\nLINE \d|\n\n|\nDid you mean", str(error))[0]
    return " ".join(first.split()), "see the tables and columns below"
