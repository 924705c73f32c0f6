"""An Nsight Systems SQLite export as a `Trace`."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from traceprof import labels
from traceprof.trace.model.operations import RankKey, RankOperations, Session
from traceprof.trace.nsight import (
    host,
    nccl_calls,
    nvtx_domains,
    nvtx_table,
    schema,
)
from traceprof.trace.nsight import (
    nvtx_names as nvtx,
)
from traceprof.trace.nsight.call_labels import rank_of
from traceprof.trace.nsight.counters import read_counters
from traceprof.trace.nsight.gpu import read_device
from traceprof.trace.nsight.kernel_signatures import Signer
from traceprof.trace.nsight.label_ranges import read_label_ranges
from traceprof.trace.nsight.metadata import Target
from traceprof.trace.nsight.nvtx_events import columns_of_events, forget_events, keep_events
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import NULL, count_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.model.operations import (
        ApiCalls,
        LaunchStalls,
        NamedRanges,
        Progress,
        RangeTable,
        Signatures,
        Synchronizations,
    )
    from traceprof.trace.nsight.counters import Counters
    from traceprof.trace.nsight.label_ranges import LabelRanges
    from traceprof.trace.nsight.nccl_calls import ProcessCalls

# Times since a session's start never come near; `--ts-normalize` makes them ns since 1970.
_FIRST_UTC_NS = 1_000_000_000_000_000_000  # in 2001

_VERSION = re.compile(r"_v\d+(?:_ptsz|_ptds)?\Z")

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
        self._source = None
        self._loaded = set()
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

    def release(self) -> None:
        """Let go of what can be read again, and most analyses do not need."""
        forget_events(self._database)

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
        """GPU operations by rank, in order of process and device."""
        if self._source is not None and "operations" not in self.__dict__:
            self._load("operations")
            return self.__dict__["operations"]
        return self._read_operations()

    sections = ("operations", "events", "calls")

    def set_section_source(self, source) -> None:
        """Have sections that are needed come from somewhere."""
        self._source = source

    def _load(self, section) -> None:
        if self._source is not None and section not in self._loaded:
            self._loaded.add(section)
            self.keep_section(section, self._source(section))

    def read_section(self, section):
        """Return what a section holds."""
        if section == "operations":
            made = {"operations": self._read_operations()}
            return {**made, **{name: getattr(self, name) for name in _OF_OPERATIONS}}
        if section == "calls":
            return {"_api_calls": dict(host.read_api_calls(self._database))}
        self._loaded.add("events")
        made = {_EVENTS: columns_of_events(self._database)}
        return {**made, **{name: getattr(self, name) for name in _OF_EVENTS}}

    def keep_section(self, section, data) -> None:
        """Keep what a section holds."""
        self._loaded.add(section)
        data = dict(data)
        keep_events(self._database, data.pop(_EVENTS, {}))
        self.__dict__.update(data)

    def reopen(self) -> None:
        """Connect anew."""
        self._database.after_fork(self._database.progress)

    def _read_operations(self) -> Mapping[RankKey, RankOperations]:
        read = read_device(self._database)
        self._signer = read.signer
        self._notes += read.notes
        return read.operations

    @cached_property
    def kernel_names(self) -> Mapping[int, str]:
        """Demangled kernel names by StringIds.id."""
        self.operations  # noqa: B018  (reading them is what finds the ids)
        unknown = {
            name: "(unnamed kernel)" if name == NULL else f"(unknown string {name})"
            for name in self._signer.names
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
            *(call.packed_name.distinct.tolist() for call in self._api_calls.values())
        )
        return {key: _VERSION.sub("", name) for key, name in self._database.strings(ids).items()}

    def api_calls(self, process: int) -> ApiCalls | None:
        """Return the API calls of a process, or None where the export has no API calls."""
        if schema.API_CALL.name not in self._database.columns:
            return None
        return self._api_calls.get(process, host.NO_CALLS)

    def synchronizations(self, process: int) -> Synchronizations | None:
        """Return the synchronizations of a process, or None where the export has none."""
        if schema.WAIT.name not in self._database.columns:
            return None
        return self._synchronizations.get(process, host.NO_SYNCHRONIZATIONS)

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
        self._load("events")
        if "label_ranges" in self.__dict__:
            return self.__dict__["label_ranges"]
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
        """Return NVTX ranges by process: see `traceprof.trace.nsight.nvtx_names.read_ranges`."""
        self._load("events")
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
                first >= _FIRST_UTC_NS
                for operations in self.operations.values()
                for first in operations.starts_ns
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

    @cached_property
    def _api_calls(self) -> dict[int, ApiCalls]:
        if self._source is not None and "_api_calls" not in self.__dict__:
            self._load("calls")
            return self.__dict__["_api_calls"]
        return dict(host.read_api_calls(self._database))

    @cached_property
    def _range_tables(self) -> dict[int, RangeTable]:
        return nvtx_table.read_range_tables(self._database)

    @cached_property
    def _communication_calls(self) -> dict[int, ProcessCalls]:
        self._load("events")
        if "_communication_calls" in self.__dict__:
            return self.__dict__["_communication_calls"]
        return nccl_calls.read_communication_calls(self._database, self._domains, self.label_ranges)

    @cached_property
    def _labelled_ranks(self) -> Mapping[int, int | None]:
        return {process: rank_of(ranges.kinds) for process, ranges in self.label_ranges.items()}

    @cached_property
    def _domains(self) -> dict[tuple[int, int], str]:
        self._load("events")
        if "_domains" in self.__dict__:
            return self.__dict__["_domains"]
        return nvtx_domains.read_domains(self._database)

    @cached_property
    def _synchronizations(self) -> dict[int, Synchronizations]:
        return host.read_synchronizations(self._database)

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


# What copies of the process read, and attributes that they make of it.
_Piece = dict[str, Any]
_EVENTS, _OPERATIONS = "events", "operations"
_OF_EVENTS = ("_domains", "label_ranges", "_communication_calls")
_OF_OPERATIONS = ("_notes", "_signer")
