"""An Nsight Systems SQLite export as a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from traceprof import labels
from traceprof.intervals import Int64, Mask
from traceprof.kernel_names.categories import forget_names
from traceprof.progress import Progress
from traceprof.structs import Record
from traceprof.trace.columns import Column
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model import host as model
from traceprof.trace.model.communication_calls import (
    NO_MPI_CALLS,
    NO_PROCESS_CALLS,
    MpiCalls,
    ProcessCalls,
)
from traceprof.trace.model.operations import Counters, RankKey, RankOperations, Signatures
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.ranges import LabelRanges, Marks, NamedRanges, RangeTable, longest_names
from traceprof.trace.model.special_values import NULL
from traceprof.trace.model.trace import NSIGHT_FORMAT, Content
from traceprof.trace.nsight import host, nvtx, schema
from traceprof.trace.nsight.counters import read_counters
from traceprof.trace.nsight.gpu import GpuOperations, read_gpu_operations
from traceprof.trace.nsight.host import read_api_calls
from traceprof.trace.nsight.metadata import (
    HOW_TO_COLLECT,
    RE_EXPORT,
    Capture,
    check_is_export,
    holds,
)
from traceprof.trace.nsight.mpi import mpi_processes, read_mpi_calls
from traceprof.trace.nsight.nccl import read_communication_calls
from traceprof.trace.nsight.nvtx import Events, domain_names, read_events, read_label_ranges
from traceprof.trace.nsight.rows import read_strings, read_thread_names, refers_to
from traceprof.trace.sqlite.database import Database, FileUse
from traceprof.trace.sqlite.read_columns import count_rows
from traceprof.units import counted


class _NamedRanges(Record, frozen=True):
    """What is known of NVTX ranges by process, and the communication calls in them."""

    domains: Mapping[tuple[int, int], str]  # names of domains by process and id
    label_ranges: Mapping[int, LabelRanges]  # ranges of `instrument` by process
    communication_calls: Mapping[int, ProcessCalls]  # by process


_WHOLE = (
    "nsys profile --trace=cuda,nvtx --cuda-flush-interval=1000 … until the program has ended (it"
    " used CUDA, but no operation was written)"
)


def _num_short(ranges: LabelRanges) -> int:
    is_short = [
        label.facts.get("bytes") == labels.NO_SIZE or str(label) == labels.UNNAMED
        for label in ranges.kinds
    ]
    return int(np.array(is_short, np.bool_)[ranges.kind].sum()) if any(is_short) else 0


_UNNAMED = "unnamed call"  # where the export has lost its name
_VERSION = re.compile(r"_v\d+(?:_ptsz|_ptds)?\Z")
_OF_CUDA = re.compile(r"(?i)cuda|cupti")
Table = TypeVar("Table")


class _ReadAgain(cached_property[Table]):
    """A cached property whose value `unload` releases."""


class NsightTrace(Capture):
    """An export that is read lazily: only the schema is read at once.

    Attributes:
        product_version: the Nsight Systems that exported it, or None (2020 and 2021).
        schema_version: of the export, not of the capture, or None.
    """

    format = NSIGHT_FORMAT

    def __init__(
        self, path: Path, progress: Progress | None = None, *, file: Path | None = None
    ) -> None:
        """Open the export of a report: `file`, if it is not the report itself.

        Raises TraceFormatError: damaged, or the database of another program.
        """
        self.path = path
        self._database = Database(path, progress, file=file, remedy=RE_EXPORT)
        self._held: dict[Part, bool] = {}
        self.moved: Mapping[RankKey, int] = {}
        self._range_tables: dict[int, RangeTable] = {}
        try:
            check_is_export(self._database)
            self.product_version = self.metadata.get(schema.PRODUCT_VERSION)
            self.schema_version = self.metadata.get(schema.SCHEMA_VERSION)
        except BaseException:
            self.close()
            raise

    @property
    def in_use(self) -> FileUse:
        return self._database.in_use

    def close(self) -> None:
        self.in_use.close()
        forget_names()

    def reopen(self) -> None:
        self._database.reopen()

    def load(self) -> None:
        _ = self._gpu_operations, self._named_ranges, self._api_calls

    def move_operations(self, key: RankKey, by_ns: int) -> None:
        data = self._gpu_operations
        moved = {**data.operations, key: data.operations[key].moved(by_ns)}
        self._gpu_operations = replace(data, operations=moved)
        self.moved = {**self.moved, key: by_ns}

    @cached_property  # kept, as ranks hold the operations
    def _gpu_operations(self) -> GpuOperations:
        with self.in_use:
            return read_gpu_operations(self._database)

    @_ReadAgain
    def _named_ranges(self) -> _NamedRanges:
        with self.in_use:
            events = self._nvtx_events
            domains = domain_names(events)
            label_ranges = read_label_ranges(events, domains)
            calls = read_communication_calls(events, domains, label_ranges)
        return _NamedRanges(domains, label_ranges, calls)

    @_ReadAgain
    def _api_calls(self) -> Mapping[int, model.ApiCalls]:
        with self.in_use:
            return dict(read_api_calls(self._database))

    @_ReadAgain
    def _nvtx_events(self) -> Events:
        with self.in_use:
            return Events(self._database, read_events(self._database), self.capture_end_ns)

    def release(self) -> None:
        vars(self).pop("_nvtx_events", None)
        self._range_tables.clear()
        self._database.shrink()

    def unload(self) -> None:
        self.release()
        for name, property_ in vars(NsightTrace).items():
            if isinstance(property_, _ReadAgain):
                vars(self).pop(name, None)
        self._database.disconnect()

    @_ReadAgain
    def _nvtx_thread_names(self) -> list[tuple[int, str]]:
        return nvtx.thread_names(self._nvtx_events)

    # -- what was recorded -----------------------------------------------------------------------

    def pid(self, process: int) -> int:
        return schema.pid_of_process(process)

    def thread_number(self, thread: int) -> int:
        return schema.thread_number(thread)

    @property
    def origin(self) -> str:
        if self.product_version is None:
            return "an Nsight Systems without a version (2020 or 2021)"
        return f"Nsight Systems {self.product_version}"

    def holds(self, part: Part) -> bool:
        if part is Part.EVERY_OPERATION:
            return not self.losses
        if part not in self._held:  # every rank asks for many
            self._held[part] = holds(self, self._database, part)
        return self._held[part]

    @property
    def losses(self) -> Sequence[str]:
        """Nsight's warnings that events of CUDA were lost."""
        warnings = self.diagnostics()
        return tuple(text for text in warnings if _OF_CUDA.search(text))

    @cached_property
    def how_to_collect(self) -> HowToCollect:
        if self.operations or not self.with_contexts:
            return HOW_TO_COLLECT
        return HowToCollect(
            HOW_TO_COLLECT.format_name, {**HOW_TO_COLLECT.texts, Part.GPU_OPERATIONS: _WHOLE}
        )

    @property
    def notes(self) -> Sequence[str]:
        gpu, ranges = self._gpu_operations, self._named_ranges
        warnings = self.diagnostics()
        notes = [*gpu.notes, *(f"Nsight Systems says: {warning}" for warning in warnings)]
        num_unknown = len({*gpu.signatures.name.tolist()} - self._names.keys())
        if num_unknown:
            notes.append(
                f"{counted(num_unknown, 'kernel name')} missing in this export: kernels of these"
                " names are counted as compute"
            )
        if self.has_unexported_stalls:
            notes.append(
                "launches blocked by a full command buffer were recorded, but this version of nsys"
                " left the records out: export the .nsys-rep again with Nsight Systems 2026.1 or"
                " later"
            )
        pids = self.with_contexts - {schema.pid_of_process(k.process) for k in self.operations}
        if pids:
            names = ", ".join(str(pid) for pid in sorted(pids))
            notes.append(
                f"CUDA was traced in {counted(len(pids), 'process')} ({names}), but no GPU"
                " operation was written there. Known reasons: the process ended before Nsight"
                " Systems had written them (let all threads end before it does, or add"
                " --cuda-flush-interval=1000), its CUDA is newer than Nsight Systems, or it"
                " launched none while it was recorded"
            )
        if labels.DOMAIN in ranges.domains.values() and not ranges.label_ranges:
            notes.append(nvtx.silence_note(labels.DOMAIN))
        num_short = sum(map(_num_short, ranges.label_ranges.values()))
        if num_short:
            notes.append(
                f"{counted(num_short, 'range')} of instrument without a size, since the process had"
                " over 10,000 different labels: bytes of such operations, and sums with them, are"
                " unknown"
            )
        return notes

    @property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        return self._gpu_operations.operations

    @_ReadAgain
    def kernel_names(self) -> Mapping[int, str]:
        unknown = {
            name: "(unnamed kernel)" if name == NULL else f"(unknown string {name})"
            for name in self.signatures.name.tolist()
        }
        return {**unknown, **self._names}

    @property
    def signatures(self) -> Signatures:
        return self._gpu_operations.signatures

    @_ReadAgain
    def api_names(self) -> Mapping[int, str]:
        ids: set[int] = set().union(
            *(call.packed_name.distinct.tolist() for call in self._api_calls.values())
        )
        names = read_strings(self._database, ids)
        return {key: _VERSION.sub("", names.get(key, _UNNAMED)) for key in sorted(ids)}

    def calls_any(self, part_of_name: str) -> bool:
        if "_api_calls" in vars(self):
            return any(part_of_name in name for name in self.api_names.values())
        return refers_to(self._database, schema.API_CALL.name, "nameId", part_of_name)

    def api_calls(self, process: int) -> model.ApiCalls | None:
        if schema.API_CALL.name not in self._database.columns:
            return None
        return self._api_calls.get(process, model.NO_API_CALLS)

    @property
    def calling_processes(self) -> Collection[int]:
        return [*self._api_calls] if "_api_calls" in vars(self) else []

    def synchronizations(self, process: int) -> model.Synchronizations | None:
        if schema.WAIT.name not in self._database.columns:
            return None
        columns = self._synchronizations.get(process)
        if columns is None:
            return model.NO_SYNCHRONIZATIONS
        # They are large in a long run, and rarely used: only the packed columns are kept.
        return host.synchronizations_of(columns, self._api_calls.get(process), self.api_names)

    def event_records(self, process: int) -> model.EventRecords | None:
        if schema.EVENT_RECORD.name not in self._database.columns:
            return None
        columns = self._event_records.get(process)
        if columns is None:
            return model.NO_EVENT_RECORDS
        return host.event_records_of(columns, self._api_calls.get(process))

    def launch_stalls(self, process: int) -> model.LaunchStalls | None:
        if schema.DRIVER_OVERHEAD.name not in self._database.columns:
            return None
        return self._launch_stalls.get(process, model.NO_LAUNCH_STALLS)

    def host_activity(self, process: int) -> model.HostActivity:
        return self._host_activities.get(process, model.NO_ACTIVITY)

    def others_ran(self, times_ns: Int64, threads: Int64) -> Mask | None:
        return host.others_ran(self._database, times_ns, threads)

    def quiet_switches(self, process: int) -> model.ThreadSwitches:
        return host.quiet_switches(self._database, process, self._calling_threads)

    def workers_ran(self, process: int, start_ns: int, end_ns: int) -> Int64:
        """Return how long each worker of a process was on a CPU, by switches of named threads."""
        with_gpu = {key.process for key in self.operations}
        threads = host.worker_threads(self._database, process, with_gpu)
        return host.time_on_cpu(self._database, threads, start_ns, end_ns)

    def samples(self, process: int) -> model.ThreadSamples:
        return self._samples.get(process, model.NO_SAMPLES)

    def profiler_overhead(self, process: int) -> model.ThreadSpans:
        return self._profiler_overhead.get(process, model.NO_SPANS)

    def communication_calls(self, process: int) -> ProcessCalls:
        return self._named_ranges.communication_calls.get(process, NO_PROCESS_CALLS)

    @property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        return self._named_ranges.label_ranges

    @_ReadAgain
    def counters(self) -> Counters:
        return read_counters(self._database, list(self.operations))

    @cached_property
    def has_unexported_stalls(self) -> bool:
        """True if the name of the records is in the export, but not the records.

        Nsight Systems 2024.5 to 2025.1 captured them and left them out of the export.
        """
        if schema.DRIVER_OVERHEAD.name in self._database.columns:
            return False
        named = [schema.COMMAND_BUFFER_FULL_NAME]
        return bool(self._database.rows(schema.STRINGS, {"id": int}, "value = ?", named))

    def ranges(
        self,
        matching: re.Pattern[str],
        process: int | None = None,
        until: re.Pattern[str] | None = None,
    ) -> dict[int, NamedRanges]:
        return nvtx.ranges_named(self._nvtx_events, matching, process, until)

    def range_ends(self, process: int) -> tuple[Int64, Int64]:
        return nvtx.range_ends(self._nvtx_events, process)

    def range_table(self, process: int) -> RangeTable:
        if process not in self._range_tables:
            self._range_tables[process] = nvtx.range_table(self._nvtx_events, process)
        return self._range_tables[process]

    def marks(self, process: int) -> Marks:
        return nvtx.marks_of(self._nvtx_events, process)

    @_ReadAgain
    def thread_names(self) -> Mapping[int, str]:
        """Names of threads by globalTid: from NVTX, else from the system."""
        names = dict([*read_thread_names(self._database), *self._nvtx_thread_names])
        return {thread: name for thread, name in names.items() if name}

    def longest_ranges(self, limit: int) -> list[str]:
        events = self._nvtx_events
        rows = np.flatnonzero(events.is_range)
        number, names = events.numbered_names(rows)
        return longest_names(number, events.columns.length_ns.at(rows), names, limit)

    def global_rank(self, process: int) -> int | None:
        rank = self.labelled_rank(process)
        return self._mpi_rank(process) if rank is None else rank

    def _mpi_rank(self, process: int) -> int | None:
        ranks = self.mpi_ranks.get(process)
        ranks = ranks or nvtx.mpi_ranks(self._nvtx_thread_names).get(process, set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def empty_domain_notes(self) -> list[str]:
        silent = nvtx.silent_domains(self._nvtx_events, self._named_ranges.domains)
        return [nvtx.silence_note(name) for name in silent]

    @cached_property
    def mpi_processes(self) -> frozenset[int]:
        return mpi_processes(self._database)

    def mpi_calls(self, process: int) -> MpiCalls:
        return self._mpi_calls.get(process, NO_MPI_CALLS)

    @cached_property
    def _mpi_calls(self) -> dict[int, MpiCalls]:
        ranks = {process: self._mpi_rank(process) for process in self.mpi_processes}
        known = {process: rank for process, rank in ranks.items() if rank is not None}
        return read_mpi_calls(self._database, known)

    def contents(self) -> Sequence[Content]:
        return self._contents

    @cached_property
    def _contents(self) -> Sequence[Content]:
        tables = (
            Content(name, what, count_rows(self._database, name))
            for name, what in schema.EVENT_TABLES.items()
        )
        return [table for table in tables if table.num_rows]

    # -- reading ---------------------------------------------------------------------------------

    @_ReadAgain
    def _synchronizations(self) -> Mapping[int, Mapping[str, Column]]:
        return dict(host.by_process(self._database, schema.WAIT, "globalPid"))

    @_ReadAgain
    def _event_records(self) -> Mapping[int, Mapping[str, Column]]:
        return dict(host.by_process(self._database, schema.EVENT_RECORD, "globalPid"))

    @_ReadAgain
    def _launch_stalls(self) -> dict[int, model.LaunchStalls]:
        return host.read_launch_stalls(self._database)

    @_ReadAgain
    def _host_activities(self) -> dict[int, model.HostActivity]:
        return host.read_host_activity(self._database, self._calling_threads)

    @_ReadAgain
    def _samples(self) -> dict[int, model.ThreadSamples]:
        return host.read_samples(self._database, self._calling_threads)

    @_ReadAgain
    def _profiler_overhead(self) -> dict[int, model.ThreadSpans]:
        tables = [(schema.PROFILER_OVERHEAD, schema.SPAN_NAME)]
        return host.read_spans(self._database, tables, threads=None)

    @_ReadAgain
    def _calling_threads(self) -> Int64:
        threads = [calls.packed_thread.distinct for calls in self._api_calls.values()]
        return distinct_values(np.concatenate([np.empty(0, np.int64), *threads]))

    @_ReadAgain
    def _names(self) -> dict[int, str]:
        return read_strings(self._database, {*self.signatures.name.tolist()})
