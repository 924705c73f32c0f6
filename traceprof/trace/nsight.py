"""An Nsight Systems SQLite export as a `Trace`."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceprof import labels, processes
from traceprof.trace import host, nccl_calls, nvtx, nvtx_domains, nvtx_table, schema
from traceprof.trace.call_labels import rank_of
from traceprof.trace.columns import Parts, check_few_processes, check_times, pieces
from traceprof.trace.counters import read_counters
from traceprof.trace.database import Database
from traceprof.trace.events import columns_of_events, forget_events, keep_events
from traceprof.trace.kernel_signatures import Signer
from traceprof.trace.label_ranges import read_label_ranges
from traceprof.trace.model import Copies, Kernels, Operations, RankKey, RankOperations, Session
from traceprof.trace.packed import Differences, pack
from traceprof.trace.reader import NULL, count_rows, expect_rows, read_columns
from traceprof.trace.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.counters import Counters
    from traceprof.trace.label_ranges import LabelRanges
    from traceprof.trace.model import (
        ApiCalls,
        LaunchStalls,
        NamedRanges,
        Progress,
        RangeTable,
        Signatures,
        Waits,
    )
    from traceprof.trace.nccl_calls import ProcessCalls
    from traceprof.trace.packed import Packed

# Times since a session's start never come near; `--ts-normalize` makes them ns since 1970.
_FIRST_UTC_NS = 1_000_000_000_000_000_000  # in 2001

_VERSION = re.compile(r"_v\d+(?:_ptsz|_ptds)?\Z")

# Bytes of an export that take longer to read than a copy of the process takes to be made.
_WORTH_SHARING = 24 << 20

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
        self._signer = Signer()

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def forget(self) -> None:
        """Let go of what can be read again, and most analyses do not need."""
        forget_events(self._database)

    def after_fork(self) -> None:
        """Open the file anew, in a copy of the process that opened it; tell nobody of progress."""
        self._database.after_fork()

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""
        return schema.pid_of_process(process)

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of this report should know about its data."""
        self.operations  # noqa: B018  (reading them is what finds unusable rows)
        said = [f"Nsight Systems says: {each}" for each in self.target.diagnostics()]
        unnamed = len(self._signer.names - self._names.keys())
        if unnamed:
            said.append(
                f"{unnamed} ids of kernel names mean nothing in this export: kernels of these names"
                " are counted as compute"
            )
        if self.has_unexported_stalls:
            said.append(
                "launches blocked by a full command buffer were recorded, but this version of nsys"
                " left the records out: export the .nsys-rep again with Nsight Systems 2026.1 or"
                " later"
            )
        if labels.DOMAIN in self._domains.values() and not self.label_ranges:
            said.append(nvtx_domains.silence_note(labels.DOMAIN))
        return [*self._notes, *said]

    @cached_property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        """GPU operations by rank, in order of process and device.

        Of a large export a copy of the process reads what the host did meanwhile; and another one
        these, where other threads want this process's time.
        """
        large = self._database.file.stat().st_size >= _WORTH_SHARING
        if "_api_calls" in self.__dict__ or not (large and processes.can_fork()):
            return self._read_operations()
        operations: Mapping[RankKey, RankOperations] = {}
        makes: list[processes.Make[_Piece]] = [self._pieces_of_host]
        if processes.has_company():
            makes.append(self._pieces_of_operations)
        with processes.ahead(makes, self.after_fork, self._database.progress) as found:
            if len(found) == 1:
                operations = self._read_operations()
            read = {name: one for made in found for piece in made() for name, one in piece.items()}
        keep_events(self._database, read.pop(_EVENTS))
        operations = read.pop(_OPERATIONS, operations)
        self.__dict__.update(read)
        return operations

    def _pieces_of_host(self, _: Progress | None) -> Iterator[_Piece]:
        """Yield what the host did, in a copy of the process."""
        yield {"_api_calls": dict(host.read_api_calls(self._database))}
        yield {_EVENTS: columns_of_events(self._database)}
        # Together, since one holds parts of another.
        yield {name: getattr(self, name) for name in _OF_EVENTS}

    def _pieces_of_operations(self, told: Progress | None) -> Iterator[_Piece]:
        """Yield what the GPU did, in a copy of the process that tells somebody how far it is."""
        if told is not None:
            self._database.progress = told
        yield {_OPERATIONS: self._read_operations()}
        yield {name: getattr(self, name) for name in _OF_OPERATIONS}

    def _read_operations(self) -> Mapping[RankKey, RankOperations]:
        expect_rows(self._database, [table.name for table in schema.GPU_OPERATIONS])
        kernels = self._by_rank(schema.KERNEL)
        copies = self._by_rank(schema.MEMCPY)
        memsets = self._by_rank(schema.MEMSET)
        graphs = self._by_rank(schema.GRAPH)
        if graphs:
            self._notes.append(
                f"{sum(len(each.starts) for each in graphs.values())} CUDA graph launches were"
                " traced as a whole: the kernels inside, NCCL's among them, are not in this export"
                f" (collect with {schema.GRAPH.flag})"
            )
        keys = sorted({*kernels, *copies, *memsets, *graphs})
        names = self._signer.signatures.name
        result = {}
        for key in keys:
            kernel, graph = kernels.pop(key, _NO_ROWS), graphs.pop(key, _NO_ROWS)
            result[key] = RankOperations(
                Kernels(*_base(kernel), _column(kernel, _SIGNATURE), names),
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
            for each in self._signer.names
        }
        return {**unknown, **self._names}

    @cached_property
    def signatures(self) -> Signatures:
        """Kernels by name, grid and block."""
        self.operations  # noqa: B018  (reading them is what finds the signatures)
        return self._signer.signatures

    @cached_property
    def copy_kinds(self) -> Mapping[int, str]:
        """Labels by MEMCPY.copyKind, as the export itself enumerates them where it does."""
        return self._labels(schema.MEMCPY_KINDS, schema.COPY_KINDS)

    @cached_property
    def memory_kinds(self) -> Mapping[int, str]:
        """Labels by MEMCPY.srcKind and dstKind, as the export enumerates them where it does."""
        return self._labels(schema.MEM_KINDS, schema.MEMORY_KINDS)

    @cached_property
    def api_names(self) -> Mapping[int, str]:
        """Names of API calls by StringIds.id, without the suffix of their version."""
        ids = set().union(
            *(each.packed_name.distinct.tolist() for each in self._api_calls.values())
        )
        return {key: _VERSION.sub("", name) for key, name in self._database.strings(ids).items()}

    def api_calls(self, process: int) -> ApiCalls | None:
        """Return the API calls of a process, or None where the export has no API calls."""
        if schema.API_CALL.name not in self._database.columns:
            return None
        return self._api_calls.get(process, host.NO_CALLS)

    def waits(self, process: int) -> Waits | None:
        """Return the synchronizations of a process, or None where the export has none."""
        if schema.WAIT.name not in self._database.columns:
            return None
        return self._waits.get(process, host.NO_WAITS)

    def launch_stalls(self, process: int) -> LaunchStalls | None:
        """Return the records of a full command buffer, or None where they are not exported."""
        if schema.DRIVER_OVERHEAD.name not in self._database.columns:
            return None
        return self._launch_stalls.get(process, host.NO_STALLS)

    def communication_calls(self, process: int) -> ProcessCalls:
        """Return who communicated what on the host, as NCCL's ranges and labels tell."""
        return self._communication_calls.get(process, nccl_calls.NO_PROCESS_CALLS)

    @cached_property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        """The ranges of `instrument` by process, where it has some."""
        return read_label_ranges(self._database, self._domains, self.target.capture_end_ns)

    @cached_property
    def counters(self) -> Counters:
        """Sampled counters of links."""
        return read_counters(self._database, list(self.operations))

    @cached_property
    def has_unexported_stalls(self) -> bool:
        """Whether the name of the records is in the export, but not the records.

        Nsight Systems 2024.5 to 2025.1 captured them and left them out of the export.
        """
        if schema.DRIVER_OVERHEAD.name in self._database.columns:
            return False
        named = [schema.COMMAND_BUFFER_FULL_NAME]
        return bool(self._database.rows(schema.STRINGS, {"id": int}, "value = ?", named))

    def ranges(self, matching: re.Pattern[str]) -> dict[int, NamedRanges]:
        """Return NVTX ranges by process: see `traceprof.trace.nvtx.read_ranges`."""
        return nvtx.read_ranges(self._database, matching)

    def range_table(self, process: int) -> RangeTable | None:
        """Return all NVTX ranges of a process, or None where it has none."""
        return self._range_tables.get(process)

    @cached_property
    def thread_names(self) -> Mapping[int, str]:
        """Names of threads by globalTid: those that NVTX gave, else those of the system."""
        return nvtx_table.read_thread_names(self._database)

    def longest_ranges(self, limit: int) -> list[str]:
        """Return the names of the longest NVTX ranges, to choose a step pattern from."""
        return nvtx.longest_names(self._database, limit)

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU where the export tells it."""
        return self.target.gpu_name(key)

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU or its place on the PCI bus, where it is told."""
        return self.target.gpu_id(key)

    def global_rank(self, process: int) -> int | None:
        """Return the rank of the process in its run, by its labels, else as MPI tells it."""
        told = self.labelled_rank(process)
        return told if told is not None else self.target.global_rank(process)

    def labelled_rank(self, process: int) -> int | None:
        """Return the rank of the process in its run, where its labels tell it."""
        return self._labelled_ranks.get(process)

    def num_threads(self, process: int) -> int | None:
        """Return how many threads of the process were seen; None where that is not told."""
        return self.target.num_threads(process)

    def silent_domains(self) -> list[str]:
        """Return the names of NVTX domains, not those of libraries, without any event."""
        return nvtx_domains.silent(self._database, self._domains)

    @cached_property
    def session(self) -> Session:
        """Where and when the report was captured."""
        return Session(
            host=self.target.hostname,
            num_cores=self.target.num_cores,
            start_utc_ns=self.target.session_start_ns,
            is_utc=self.target.is_utc
            or any(
                len(group) and group.starts.first >= _FIRST_UTC_NS
                for operations in self.operations.values()
                for group in operations.groups
            ),
            command_line=tuple(self.target.command_line),
            environment=self.target.environment,
        )

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

    def _by_rank(self, table: schema.Table) -> dict[RankKey, _Rows]:
        """Read a table of GPU operations: its columns by rank, ordered by start, then end."""
        if table.name not in self._database.columns:
            return {}
        columns = self._require(table)
        if "demangledName" in columns and "shortName" in columns:
            columns.remove("shortName")  # one name is enough; the demangled one tells more
        combined = {}
        if table is schema.KERNEL:
            self._signer = Signer(columns)
            combined[_SIGNATURE] = self._signer.combinations
        parts: Parts[RankKey] = Parts()
        unusable = 0
        for chunk in read_columns(self._database, table.name, columns, rows=combined):
            if combined:
                chunk["globalPid"] = self._signer.process(chunk[_SIGNATURE])
            kept, dropped = self._usable(chunk, table)
            unusable += dropped
            if len(kept["start"]) == 0:
                continue
            if combined:
                kept[_SIGNATURE] = self._signer.signature(kept[_SIGNATURE])
            process, device = kept.pop("globalPid"), kept.pop("deviceId")
            kept[_LENGTH] = kept.pop("end") - kept["start"]
            of_ranks = (
                (RankKey(int(process[rows][0]), int(device[rows][0])), rows)
                for rows in pieces(process, device)
            )
            parts.add(kept, of_ranks)
            check_few_processes(self._database, table.name, len(parts))
        if unusable:
            self._notes.append(
                f"{unusable} rows of {table.name} have no start, end, process or device, or end"
                " before they start: left out"
            )
        return {key: _sorted_by_time(columns) for key, columns in parts.finished()}

    def _usable(self, chunk: Columns, table: schema.Table) -> tuple[Columns, int]:
        start, end = chunk["start"], chunk["end"]
        needed = (start, end, chunk["globalPid"], chunk["deviceId"])
        kept, length = chunk, len(start)
        # NULL is the smallest integer.
        if any(each.min(initial=0) == NULL for each in needed) or (end < start).any():
            usable = np.logical_and.reduce([each != NULL for each in needed]) & (end >= start)
            kept = {name: values[usable] for name, values in chunk.items()}
        check_times(self._database, table.name, kept["start"], kept["end"])
        return kept, length - len(kept["start"])

    @cached_property
    def _api_calls(self) -> dict[int, ApiCalls]:
        return dict(host.read_api_calls(self._database))

    @cached_property
    def _range_tables(self) -> dict[int, RangeTable]:
        return nvtx_table.read_range_tables(self._database)

    @cached_property
    def _communication_calls(self) -> dict[int, ProcessCalls]:
        return nccl_calls.read_communication_calls(self._database, self._domains, self.label_ranges)

    @cached_property
    def _labelled_ranks(self) -> Mapping[int, int | None]:
        return {process: rank_of(ranges.kinds) for process, ranges in self.label_ranges.items()}

    @cached_property
    def _domains(self) -> dict[tuple[int, int], str]:
        return nvtx_domains.read_domains(self._database)

    @cached_property
    def _waits(self) -> dict[int, Waits]:
        return host.read_waits(self._database)

    @cached_property
    def _launch_stalls(self) -> dict[int, LaunchStalls]:
        return host.read_launch_stalls(self._database)

    @cached_property
    def _names(self) -> dict[int, str]:
        """Names of the kernels by those ids that the export tells the meaning of."""
        return self._database.strings(self._signer.names)

    def _labels(self, enumeration: str, usual: Mapping[int, str]) -> dict[int, str]:
        """Return the labels of an enumeration by id."""
        rows = self._database.rows(enumeration, {"id": int, "label": str})
        labels = {row["id"]: row["label"] for row in rows if row["id"] is not None}
        understood = usual.values()
        # A label that is not one of Nsight's says nothing: then the id does, which is Nsight's.
        return {
            **{each: label for each, label in labels.items() if label},
            **usual,
            **{each: label for each, label in labels.items() if label in understood},
        }


class _Rows(NamedTuple):
    """The operations of one rank, ordered by start, then end."""

    starts: Differences
    columns: Mapping[str, Packed]


_NO_ROWS = _Rows(Differences(np.empty(0, np.int64)), {})
_BASE = ("length", "streamId", "correlationId")
_COPY = ("bytes", "copyKind", "srcDeviceId", "dstDeviceId", "srcKind", "dstKind")
# What copies of the process read, and attributes that they make of it.
_Piece = dict[str, Any]
_EVENTS, _OPERATIONS = "events", "operations"
_OF_EVENTS = ("_domains", "label_ranges", "_communication_calls")
_OF_OPERATIONS = ("_notes", "_signer")
# Columns of ours beside those of the export.
_LENGTH, _SIGNATURE = "length", "signature"


def _column(rows: _Rows, name: str) -> Packed:
    if name in rows.columns:
        return rows.columns[name]
    return pack(np.full(len(rows.starts), NULL, np.int64))


def _base(rows: _Rows) -> tuple[Differences, Packed, Packed, Packed]:
    length, stream, correlation = (_column(rows, name) for name in _BASE)
    return rows.starts, length, stream, correlation


def _copies(rows: _Rows) -> Copies:
    return Copies(*_base(rows), *(_column(rows, name).values for name in _COPY))


def _sorted_by_time(columns: dict[str, Packed]) -> _Rows:
    start = columns.pop("start").values
    step = np.diff(start)
    if (step > 0).all():
        return _Rows(Differences(start), columns)
    end = start + columns[_LENGTH].values
    if ((step >= 0) & ((step > 0) | (np.diff(end) >= 0))).all():
        return _Rows(Differences(start), columns)
    order = np.lexsort((end, start))
    return _Rows(
        Differences(start[order]), {name: column.taken(order) for name, column in columns.items()}
    )
