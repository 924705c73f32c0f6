"""A run as files of tables, Parquet or CSV: the frames of its events and of its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from traceprof.analysis import Analysis
from traceprof.documents.analysis.records import TABLES
from traceprof.errors import UsageError
from traceprof.frames.events import EVENTS
from traceprof.frames.open_run import RunFrames
from traceprof.frames.results import nested_fields, text_dtype
from traceprof.progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from msgspec import Struct


_OF_PROCESSES = frozenset({"api_calls", "ranges", "operators", "marks"})
"""Those once for all devices of a process."""


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that spreadsheets calculate."""


class _Writer(Protocol):
    """Writer of a table that comes in pieces."""

    def add(self, frame: pd.DataFrame) -> None: ...

    def close(self) -> None: ...


def write(
    analysis: Analysis,
    folder: Path,
    ending: str,
    progress: Progress | None = None,
    *,
    for_spreadsheets: bool = False,
) -> list[Path]:
    """Write each table of a run into a file of its own; return the files.

    `for_spreadsheets` puts an apostrophe before texts in CSV that begin like a formula.

    Raises UsageError: the run has no rank.
    """
    csv = _SpreadsheetCsv if for_spreadsheets else _Csv
    writer: Callable[[Path], _Writer] = _Parquet if ending == "parquet" else csv
    frames = RunFrames(analysis.run)
    if not frames.ranks:
        remedy = "see what the reports hold: traceprof info"
        raise UsageError("cannot write tables of this run", "it has no rank", remedy)
    opened_files: dict[str, _Writer] = {}
    paths = {name: folder / f"{name}.{ending}" for name in EVENTS}
    if progress is not None:
        progress.expect(len(frames.ranks))
    with ExitStack() as opened:  # all are closed, also where that fails for one
        for rank in frames.ranks:  # a rank at a time, so that no more is in memory
            for name in EVENTS:
                if name in _OF_PROCESSES and rank not in frames.first_ranks:
                    continue
                if name not in opened_files:
                    opened_files[name] = opened.enter_context(closing(writer(paths[name])))
                opened_files[name].add(getattr(frames, name)(rank))
            if progress is not None:
                progress.advance(1)
    for table in TABLES:
        name = file_of(table)
        paths[name] = folder / f"{name}.{ending}"
        with closing(writer(paths[name])) as file:
            file.add(_results(analysis, table))
    return [*paths.values()]


def file_of(table: str) -> str:
    """Return the file name of a table of results; event tables have the shorter names."""
    return f"{table}_totals" if table in EVENTS else table


def tables() -> dict[str, type[Struct]]:
    """Return the types of the rows of all tables, by file name."""
    return {**EVENTS, **{file_of(name): field.record for name, field in TABLES.items()}}


def whole_table(analysis: Analysis, file_name: str) -> pd.DataFrame:
    """Return a table as its file has it."""
    if file_name in EVENTS:
        frame: pd.DataFrame = getattr(RunFrames(analysis.run), file_name)()
        return frame
    return _results(analysis, next(name for name in TABLES if file_of(name) == file_name))


def _results(analysis: Analysis, name: str) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415  (takes longer than most reports)

    frame = analysis.to_pandas(name)
    texts: dict[str, list[str | None]] = {
        column: [
            json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else None
            for value in frame[column]
        ]
        for column in nested_fields(TABLES[name].record)
    }
    if "path" in frame.columns:  # of a file, whose name need not be text
        paths = frame["path"]
        texts["path"] = [path.encode("utf-8", "replace").decode("utf-8") for path in paths]
    for column, values in texts.items():  # texts also where none is
        frame[column] = pd.Series(values, frame.index, dtype=text_dtype())
    return frame


class _Csv:
    """CSV file; unknown values are empty."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._has_header = False

    def add(self, frame: pd.DataFrame) -> None:
        frame.to_csv(self._file, index=False, header=not self._has_header, lineterminator="\n")
        self._has_header = True

    def close(self) -> None:
        self._file.close()


class _SpreadsheetCsv(_Csv):
    """CSV file in which a spreadsheet takes no name of a kernel or range for a formula."""

    def add(self, frame: pd.DataFrame) -> None:
        import pandas as pd  # noqa: PLC0415

        columns = {name: frame[name] for name in frame.columns}
        for name, column in columns.items():
            if isinstance(column.dtype, pd.CategoricalDtype):
                columns[name] = column.astype(object).map(_no_formula)
            elif not pd.api.types.is_any_real_numeric_dtype(column.dtype):
                columns[name] = column.map(_no_formula)
        super().add(pd.DataFrame(columns))


def _no_formula(value: object) -> object:
    is_formula = isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if is_formula else value


class _Parquet:
    """Parquet file with a row group for each piece; unknown values are null."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._file: Any = None
        self._schema: pa.Schema | None = None

    def add(self, frame: pd.DataFrame) -> None:
        import pyarrow as pa  # noqa: PLC0415  (of an extra)
        from pyarrow import parquet  # noqa: PLC0415

        table = pa.Table.from_pandas(frame, preserve_index=False)
        if self._schema is None:
            fields = [_of_all_ranks(field) for field in table.schema]
            # With what pandas notes, to make the same columns of it again.
            self._schema = pa.schema(fields, table.schema.metadata)
            self._file = pa.OSFile(str(self._path), "wb")
            self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        self._writer.write_table(table.cast(self._schema))

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._writer.is_open = False  # else it writes again at its end, and fails
                self._file.close()


def _of_all_ranks(field: pa.Field) -> pa.Field:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, pa.dictionary(pa.int32(), pa.string()))
    if pa.types.is_null(field.type):  # pandas 2, of texts where there is none
        return pa.field(field.name, pa.string())
    return field
