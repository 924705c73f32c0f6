"""Writer of SQLite files in the schema of Nsight Systems' exports, for simulations and tests."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator import schema_layouts
from traceprof.errors import TraceFileError, UsageError
from traceprof.structs import Record
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from traceprof.intervals import Int64

    Scalar = int | str | None
    Column = Int64 | Sequence[Scalar] | Scalar

# Rows that exist as Python objects at the same time; more are not faster.
_ROWS_PER_SLICE = 16_384
# A simulated run uses some ten statements for each of its processes in every step.
_CACHED_STATEMENTS = 1024


class NsightWriter:
    """Writer of one new export, a context manager.

    The common tables of all exports are there from the beginning: version, enumerations, strings.
    Other tables are created when rows are first added. After an exception no file is left behind.

    Attributes:
        path: the file.
        schema_version: a key of `schema_layouts.PRODUCTS`.
    """

    def __init__(self, path: Path, schema_version: str = "3.25.0") -> None:
        """Prepare to write; the file is created when the context is entered.

        Raises:
            UsageError: the writer does not know the schema version.
        """
        if schema_version not in schema_layouts.PRODUCTS:
            raise UsageError(
                f"cannot write schema version {schema_version}",
                "traceprof does not know its tables",
                f"choose one of {', '.join(schema_layouts.PRODUCTS)}",
            )
        self.path = path
        self.schema_version = schema_version
        self._is_latest = schema_version == next(reversed(schema_layouts.PRODUCTS))
        self._is_oldest = schema_version == next(iter(schema_layouts.PRODUCTS))
        self._columns: dict[str, list[_Column]] = {}
        self._string_ids: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Create the file.

        Raises:
            UsageError: the file exists already, or cannot be created.
        """
        _create(self.path)
        self._connection = sqlite3.connect(
            self.path, isolation_level=None, cached_statements=_CACHED_STATEMENTS
        )
        try:
            self._begin()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete the file, or remove it after an exception.

        Raises:
            TraceFileError: SQLite could not write it, because the disk is full for example.
        """
        if error is None:
            try:
                self._connection.execute("COMMIT")
                self._connection.close()
            except sqlite3.Error as failure:
                error = failure
        if error is not None:
            self._discard()
        if isinstance(error, sqlite3.OperationalError):
            raise TraceFileError(
                f"cannot write {self.path}", str(error), "check the space on its disk"
            ) from error

    def string(self, text: str) -> int:
        """Return the StringIds.id of `text`, which is added if it is new."""
        known = self._string_ids.get(text)
        if known is not None:
            return known
        number = self._string_ids[text] = len(self._string_ids) + 1
        self.add(schema.STRINGS, {"id": number, "value": text})
        return number

    def create(self, table: str) -> None:
        """Create a table if it is missing, empty as in exports with `--lazy=false`.

        Raises:
            ValueError: no version of the schema has it.
        """
        if table not in self._columns:
            self._columns[table] = self._declare(table)

    def add(self, table: str, columns: Mapping[str, Column]) -> None:
        """Add rows to a table.

        A column is an array or a sequence with a value for each row, or one value for all of them;
        if all columns are single values, there is one row. Missing columns are NULL, or 0 or empty
        text if the schema forbids NULL. Tables and columns that only later versions of the schema
        have are left out.

        Raises:
            ValueError: no version of the schema has the table or the column, or lengths differ.
        """
        self.create(table)
        declared = self._columns[table]
        unknown = columns.keys() - {column.name for column in declared}
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
        values: list[str] = []
        per_row: list[Int64 | Sequence[Scalar]] = []
        for column in declared:
            if not column.written:
                continue
            given = columns.get(column.name)
            if column.name not in columns:
                values.append(column.default)
            elif given is None or isinstance(given, int):
                # A constant of the statement costs no Python object for each row.
                values.append("NULL" if given is None else str(int(given)))
            else:
                values.append("?")
                per_row.append(given)
        if values:
            statement = f"INSERT INTO {quote(table)} VALUES ({', '.join(values)})"  # noqa: S608
            self._insert(statement, per_row)

    def _insert(self, statement: str, columns: Sequence[Int64 | Sequence[Scalar]]) -> None:
        lengths = {len(column) for column in columns if not isinstance(column, str)}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        count = lengths.pop() if lengths else 1
        for first in range(0, count, _ROWS_PER_SLICE):
            rows = slice(first, min(first + _ROWS_PER_SLICE, count))
            values = [_values(column, rows) for column in columns]
            if values:
                self._connection.executemany(statement, zip(*values, strict=True))
            else:
                self._connection.execute(statement)

    def _begin(self) -> None:
        for name, value in (
            # The file is new and is removed after a failure: it needs no journal.
            ("journal_mode", "OFF"),
            ("synchronous", "OFF"),
            ("locking_mode", "EXCLUSIVE"),
        ):
            self._connection.execute(f"PRAGMA {name} = {value}")
        self._connection.execute("BEGIN")
        self.create(schema.STRINGS)
        self.create(schema.CAPTURE_METADATA)
        product = schema_layouts.PRODUCTS[self.schema_version]
        facts = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            schema.PRODUCT_VERSION: product,
            schema.SCHEMA_VERSION: self.schema_version,
            schema.TIME_NORMALIZED: "false",
        }
        for table in schema.EXPORT_METADATA:  # this version has one of them
            self.add(table, {"name": list(facts), "value": list(facts.values())})
        for table, rows in schema_layouts.ENUMERATIONS.items():
            names, labels = zip(*rows.values(), strict=True)
            self.add(table, {"id": list(rows), "name": names, "label": labels})

    def _declare(self, table: str) -> list[_Column]:
        """Create a table and return its columns."""
        if table not in schema_layouts.LAYOUTS:
            raise ValueError(f"no version of the schema has a table {table}")
        missing = "-" if self._is_latest else "+~" if self._is_oldest else "+"
        columns = [
            _column(word, in_version=self._has(table), missing=missing)
            for word in schema_layouts.LAYOUTS[table].split()
        ]
        present = [column for column in columns if column.written]
        keys = [quote(column.name) for column in present if column.in_key]
        declarations = [
            f"{column.declaration} PRIMARY KEY"
            if keys == [quote(column.name)]
            else column.declaration
            for column in present
        ]
        if len(keys) > 1:
            declarations.append(f"PRIMARY KEY ({', '.join(keys)})")
        if declarations:
            self._connection.execute(f"CREATE TABLE {quote(table)} ({', '.join(declarations)})")
        return columns

    def _has(self, table: str) -> bool:
        """Return whether the written version has a table."""
        if table == schema.EXPORT_METADATA[1]:
            return self._is_oldest
        if self._is_oldest and table in schema_layouts.LATER_THAN_2:
            return False
        return self._is_latest or table not in schema_layouts.LATER_TABLES

    def _discard(self) -> None:
        self._connection.close()
        self.path.unlink(missing_ok=True)


class _Column(Record, frozen=True):
    """A column of a table.

    Attributes:
        name: in the schema.
        declaration: in SQL.
        default: the value of rows without one, in SQL.
        written: whether the written version has the column.
        in_key: whether it is part of the primary key.
    """

    name: str
    declaration: str
    default: str
    written: bool
    in_key: bool


def _column(word: str, *, in_version: bool, missing: str) -> _Column:
    """Parse a column of `LAYOUTS`; those with a mark of `missing` are left out."""
    name, _, marks = word.partition(":")
    kind = "TEXT" if "T" in marks else "REAL" if "R" in marks else "INTEGER"
    required = " NOT NULL" if "!" in marks else ""
    default = "NULL" if not required else "''" if kind == "TEXT" else "0"
    written = in_version and not set(missing) & set(marks)
    in_key = written and "P" in marks
    return _Column(name, f"{quote(name)} {kind}{required}", default, written, in_key)


def _values(column: Int64 | Sequence[Scalar], rows: slice) -> Sequence[Scalar]:
    if isinstance(column, str):
        return [column] * (rows.stop - rows.start)
    if isinstance(column, np.ndarray):
        values: list[Scalar] = column[rows].tolist()
        return values
    return column[rows]


def _create(path: Path) -> None:
    """Create an empty file, so that no existing file can be overwritten."""
    try:
        path.open("xb").close()
    except FileExistsError as error:
        raise UsageError(
            f"cannot write {path}", "it exists already", "choose another name, or remove it"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot write {path}",
            error.strerror or str(error),
            "choose a folder that exists and can be written",
        ) from error
