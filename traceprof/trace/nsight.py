"""An Nsight Systems SQLite export as a `Trace`."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.trace import nvtx, schema
from traceprof.trace.database import Database
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
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.model import NamedRanges, Progress

# A report is of one machine, with a few processes to each of its GPUs. Ids that are noise would
# otherwise make every operation a rank.
_MOST_PROCESSES = 1024
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

    def __init__(
        self, path: Path, progress: Progress | None = None, *, file: Path | None = None
    ) -> None:
        """Open the export.

        Args:
            path: the report.
            progress: told of the rows that are read.
            file: the export, where it is not the report itself.

        Raises:
            TraceFormatError: damaged, or the database of another program.
        """
        self.path = path
        self._database = Database(path, progress, file=file)
        try:
            self._check_is_export()
            self.target = Target(self._database)
        except BaseException:
            self.close()
            raise
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
        unnamed = len(self._seen_names - self._names.keys())
        if unnamed:
            said.append(
                f"{unnamed} ids of kernel names mean nothing in this export: kernels of these names"
                " are counted as compute"
            )
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
        unknown = {
            each: "(unnamed kernel)" if each == NULL else f"(unknown string {each})"
            for each in self._seen_names
        }
        return {**unknown, **self._names}

    @cached_property
    def copy_kinds(self) -> Mapping[int, str]:
        """Labels by MEMCPY.copyKind, as the export itself enumerates them where it does."""
        rows = self._database.rows(schema.MEMCPY_KINDS, {"id": int, "label": str})
        labels = {row["id"]: row["label"] for row in rows if row["id"] is not None}
        understood = schema.COPY_KINDS.values()
        # A label that is not one of Nsight's says nothing: then the id does, which is CUPTI's.
        return {
            **{kind: label for kind, label in labels.items() if label},
            **schema.COPY_KINDS,
            **{kind: label for kind, label in labels.items() if label in understood},
        }

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
        views = sorted(self._database.views & {*schema.EVENT_TABLES, schema.STRINGS})
        if views:
            raise self._database.damaged(f"{views[0]} is a view where Nsight writes a table")
        known = any(name in columns for name in schema.EVENT_TABLES)
        if self._database.has(schema.STRINGS, "id", "value") and (
            known or any(mark in columns for mark in schema.MARKS)
        ):
            return
        names = ", ".join(sorted(columns)[:5]) or "no table"
        raise self._database.damaged(
            f"an SQLite database, but no Nsight Systems export (it holds {names})",
            "give the .sqlite file that `nsys export --type=sqlite` writes",
        )

    def _require(self, table: schema.Table) -> list[str]:
        """Return the columns to read of a table that is there."""
        self._database.require(table.name, table.required)
        present = self._database.columns[table.name]
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
            self._check_few(len(parts), table.name)
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
        limit = intervals.BEYOND_NS
        if len(start) and (int(start.min()) <= -limit or int(end.max()) >= limit):
            raise self._database.damaged(f"{table} holds times beyond any clock")

    def _check_few(self, num_processes: int, table: str) -> None:
        if num_processes > _MOST_PROCESSES:
            raise self._database.damaged(f"{table} names more than {_MOST_PROCESSES} processes")

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
            start, correlation = chunk["start"][usable], chunk["correlationId"][usable]
            process = schema.process_of_thread(chunk["globalTid"][usable])
            for rows in _groups(process):
                part = {"start": start[rows], "correlationId": correlation[rows]}
                parts[int(process[rows[0]])].append(part)
            self._check_few(len(parts), table.name)
        launches = {}
        for each in sorted(parts):
            pieces = parts.pop(each)
            start = np.concatenate([piece["start"] for piece in pieces])
            correlation = np.concatenate([piece["correlationId"] for piece in pieces])
            self._check_times(start, start, table.name)
            order = np.lexsort((start, correlation))
            launches[each] = Launches(correlation[order], start[order])
        return launches

    @cached_property
    def _names(self) -> dict[int, str]:
        """Names of the kernels by those ids that the export tells the meaning of."""
        wanted = sorted(self._seen_names)
        found: dict[int, str] = {}
        for first in range(0, len(wanted), _IDS_PER_QUERY):
            some = wanted[first : first + _IDS_PER_QUERY]
            marks = ", ".join("?" * len(some))
            for row in self._database.rows(
                schema.STRINGS, {"id": int, "value": str}, f"id IN ({marks})", some
            ):
                if row["value"] is not None:
                    found[row["id"]] = row["value"]
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


def _split(columns: Columns) -> Iterator[tuple[RankKey, Columns]]:
    """Yield the rows of each rank of a chunk."""
    process, device = columns.pop("globalPid"), columns.pop("deviceId")
    for rows in _groups(process, device):
        key = RankKey(int(process[rows[0]]), int(device[rows[0]]))
        yield key, {name: values[rows] for name, values in columns.items()}


def _groups(*keys: Int64) -> Iterator[Int64]:
    """Yield the indices of the rows that agree in every key, in the order of the rows."""
    order = np.lexsort(keys)
    changes = [np.flatnonzero(np.diff(key[order])) + 1 for key in keys]
    for rows in np.split(order, np.unique(np.concatenate(changes))):
        if len(rows):
            yield rows


def _sorted_by_time(columns: Columns) -> Columns:
    start, end = columns["start"], columns["end"]
    step = np.diff(start)
    if (step > 0).all() or ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return columns
    order = np.lexsort((end, start))
    return {name: values[order] for name, values in columns.items()}
