"""An Nsight Systems SQLite export as a `Trace`."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from traceprof.errors import TraceFormatError
from traceprof.trace import nvtx, schema
from traceprof.trace.database import RE_EXPORT, Database
from traceprof.trace.model import (
    Copies,
    Kernels,
    Launches,
    Operations,
    RankKey,
    RankOperations,
)
from traceprof.trace.reader import NULL, count_rows, expect_rows, read_columns
from traceprof.trace.target import Target

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.model import NamedRanges, Progress

# Beyond any clock (146 years): differences of such times would overflow 64 bits.
_LATEST_TIME = 1 << 62
_IDS_PER_QUERY = 500  # SQLite before 3.32 takes at most 999 arguments

Columns = dict[str, "Int64"]


class NsightTrace:
    """Reads an export lazily: nothing but the schema until it is asked for.

    Attributes:
        path: the export.
        format: always `nsight-sqlite`.
        product_version: the Nsight Systems that exported it, or None (2020 and 2021).
        schema_version: of the export, not of the capture, or None.
        target: what the export says of itself, the machine and the programs.
    """

    format = "nsight-sqlite"

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Open the export.

        Raises:
            TraceFormatError: damaged, or the database of another program.
        """
        self.path = path
        self._database = Database(path, progress)
        self._check_is_export()
        self.target = Target(self._database)
        self.product_version = self.target.metadata.get(schema.PRODUCT_VERSION)
        self.schema_version = self.target.metadata.get(schema.SCHEMA_VERSION)
        self._notes: list[str] = []
        self._seen_names: set[int] = set()
        self._launches: dict[int, Launches] | None = None

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""
        return schema.pid_of_process(process)

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of this report should know about its data."""
        self.operations  # noqa: B018  (reading them is what finds unusable rows)
        said = [f"Nsight Systems says: {each}" for each in self.target.diagnostics()]
        return [*self._notes, *said]

    @cached_property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        """GPU operations by rank, in order of process and device."""
        expect_rows(self._database, [table.name for table in schema.GPU_OPERATIONS])
        kernels = self._by_rank(schema.KERNEL)
        copies = self._by_rank(schema.MEMCPY)
        memsets = self._by_rank(schema.MEMSET)
        graphs = self._by_rank(schema.GRAPH)
        named = (
            "demangledName"
            if self._database.has(schema.KERNEL.name, "demangledName")
            else ("shortName")
        )
        if graphs:
            self._notes.append(
                f"{sum(len(each['start']) for each in graphs.values())} CUDA graph launches were"
                " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
                f" (collect with {schema.GRAPH.flag})"
            )
        keys = sorted({*kernels, *copies, *memsets, *graphs})
        result = {}
        for key in keys:
            kernel, graph = kernels.pop(key, _NO_ROWS), graphs.pop(key, _NO_ROWS)
            names = _column(kernel, named)
            self._seen_names.update(np.unique(names).tolist())
            result[key] = RankOperations(
                Kernels(*_base(kernel), names),
                _copies(copies.pop(key, _NO_ROWS)),
                _copies(memsets.pop(key, _NO_ROWS)),
                Operations(*_base(graph)),
            )
        return result

    @cached_property
    def kernel_names(self) -> Mapping[int, str]:
        """Demangled kernel names by StringIds.id."""
        self.operations  # noqa: B018  (reading them is what finds the ids)
        known = self._strings(self._seen_names)
        return {
            each: known.get(
                each, "(unnamed kernel)" if each == NULL else f"(unknown string {each})"
            )
            for each in self._seen_names
        }

    @cached_property
    def copy_kinds(self) -> Mapping[int, str]:
        """Labels by MEMCPY.copyKind, as the export itself enumerates them where it does."""
        rows = self._database.rows(schema.MEMCPY_KINDS)
        return {row["id"]: str(row["label"]) for row in rows if row.get("label")} or (
            schema.COPY_KINDS
        )

    def launches(self, process: int) -> Launches | None:
        """Return the API calls of a process, or None where the export has no API calls."""
        if schema.API_CALL.name not in self._database.columns:
            return None
        if self._launches is None:
            self._launches = self._read_launches()
        nothing = np.empty(0, np.int64)
        return self._launches.get(process, Launches(nothing, nothing))

    def ranges(self, matching: re.Pattern[str], like: Sequence[str] = ()) -> dict[int, NamedRanges]:
        """Return NVTX ranges by process: see `traceprof.trace.nvtx.read_ranges`."""
        return nvtx.read_ranges(self._database, matching, like)

    def longest_ranges(self, limit: int) -> list[str]:
        """Return the names of the longest NVTX ranges, to choose a step pattern from."""
        return nvtx.longest_names(self._database, limit)

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU where the export tells it."""
        return self.target.gpu_name(key)

    def global_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where the export tells it."""
        return self.target.global_rank(process)

    def contents(self) -> dict[str, int]:
        """Return the number of rows of each event table that is not empty."""
        counts = {name: count_rows(self._database, name) for name in schema.EVENT_TABLES}
        return {name: count for name, count in counts.items() if count}

    # -- reading ---------------------------------------------------------------------------------

    def _check_is_export(self) -> None:
        columns = self._database.columns
        known = any(table.name in columns for table in schema.GPU_OPERATIONS)
        if self._database.has(schema.STRINGS, "id", "value") and (
            known or any(mark in columns for mark in schema.MARKS)
        ):
            return
        names = ", ".join(sorted(columns)[:5]) or "no table"
        raise TraceFormatError(
            f"cannot read {self.path}",
            f"an SQLite database, but no Nsight Systems export (it holds {names})",
            "give the .sqlite file that `nsys export --type=sqlite` writes",
        )

    def _require(self, table: schema.Table) -> list[str]:
        """Return the columns to read of a table that is there."""
        present = self._database.columns[table.name]
        missing = [name for name in table.required if name not in present]
        if missing:
            raise TraceFormatError(
                f"cannot read {self.path}",
                f"table {table.name} lacks the column {', '.join(missing)}"
                f" (it has {', '.join(present[:8])}, …)",
                RE_EXPORT,
            )
        return [name for name in (*table.required, *table.optional) if name in present]

    def _by_rank(self, table: schema.Table) -> dict[RankKey, Columns]:
        """Read a table of GPU operations: its columns by rank, ordered by start, then end."""
        if table.name not in self._database.columns:
            return {}
        columns = self._require(table)
        if "demangledName" in columns and "shortName" in columns:
            columns.remove("shortName")  # one name is enough; the demangled one tells more
        parts: dict[RankKey, list[Columns]] = defaultdict(list)
        unusable = 0
        for chunk in read_columns(self._database, table.name, columns):
            kept, dropped = self._usable(chunk, table)
            unusable += dropped
            for key, part in _split(kept):
                parts[key].append(part)
        if unusable:
            self._notes.append(
                f"{unusable} rows of {table.name} have no start, end, process or device, or end"
                " before they start: left out"
            )
        ordered = {}
        for key in sorted(parts):
            # Popped as they are joined, so that a rank's rows are never held more than twice.
            pieces = parts.pop(key)
            joined = {name: np.concatenate([each[name] for each in pieces]) for name in pieces[0]}
            ordered[key] = _sorted_by_time(joined)
        return ordered

    def _usable(self, chunk: Columns, table: schema.Table) -> tuple[Columns, int]:
        start, end = chunk["start"], chunk["end"]
        usable = (
            (start != NULL)
            & (end != NULL)
            & (chunk["globalPid"] != NULL)
            & (chunk["deviceId"] != NULL)
            & (end >= start)
        )
        kept = chunk
        if not usable.all():
            kept = {name: values[usable] for name, values in chunk.items()}
        self._check_times(kept["start"], kept["end"], table.name)
        return kept, int(len(usable) - usable.sum())

    def _check_times(self, start: Int64, end: Int64, table: str) -> None:
        if len(start) and (int(start.min()) < -_LATEST_TIME or int(end.max()) > _LATEST_TIME):
            raise TraceFormatError(
                f"cannot read {self.path}",
                f"{table} holds times beyond any clock: the file is damaged",
                RE_EXPORT,
            )

    def _read_launches(self) -> dict[int, Launches]:
        table = schema.API_CALL
        columns = self._require(table)
        expect_rows(self._database, [table.name])
        parts: dict[int, list[Columns]] = defaultdict(list)
        for chunk in read_columns(self._database, table.name, columns):
            usable = (
                (chunk["start"] != NULL)
                & (chunk["globalTid"] != NULL)
                & (chunk["correlationId"] != NULL)
            )
            process = schema.process_of_thread(chunk["globalTid"])
            for each in np.unique(process[usable]).tolist():
                chosen = usable & (process == each)
                parts[each].append(
                    {name: chunk[name][chosen] for name in ("start", "correlationId")}
                )
        launches = {}
        for each in sorted(parts):
            pieces = parts.pop(each)
            start = np.concatenate([piece["start"] for piece in pieces])
            correlation = np.concatenate([piece["correlationId"] for piece in pieces])
            self._check_times(start, start, table.name)
            order = np.lexsort((start, correlation))
            launches[each] = Launches(correlation[order], start[order])
        return launches

    def _strings(self, ids: Iterable[int]) -> dict[int, str]:
        wanted = sorted(ids)
        found: dict[int, str] = {}
        for first in range(0, len(wanted), _IDS_PER_QUERY):
            some = wanted[first : first + _IDS_PER_QUERY]
            marks = ", ".join("?" * len(some))
            for row in self._database.rows(schema.STRINGS, f"id IN ({marks})", some):
                found[row["id"]] = str(row["value"])
        return found


_NO_ROWS: Columns = {}
_BASE = ("start", "end", "streamId", "correlationId")


def _column(columns: Columns, name: str) -> Int64:
    if name in columns:
        return columns[name]
    return np.full(len(columns.get("start", ())), NULL, np.int64)


def _base(columns: Columns) -> tuple[Int64, Int64, Int64, Int64]:
    start, end, stream, correlation = (_column(columns, name) for name in _BASE)
    return start, end, stream, correlation


def _copies(columns: Columns) -> Copies:
    return Copies(
        *_base(columns),
        *(_column(columns, name) for name in ("bytes", "copyKind", "srcDeviceId", "dstDeviceId")),
    )


def _split(columns: Columns) -> Iterable[tuple[RankKey, Columns]]:
    """Yield the rows of each rank of a chunk."""
    process, device = columns.pop("globalPid"), columns.pop("deviceId")
    for each in np.unique(process).tolist():
        of_process = process == each
        for ordinal in np.unique(device[of_process]).tolist():
            chosen = of_process & (device == ordinal)
            yield (
                RankKey(each, ordinal),
                {name: values[chosen] for name, values in columns.items()},
            )


def _sorted_by_time(columns: Columns) -> Columns:
    start, end = columns["start"], columns["end"]
    step = np.diff(start)
    if (step > 0).all() or ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return columns
    order = np.lexsort((end, start))
    return {name: values[order] for name, values in columns.items()}
