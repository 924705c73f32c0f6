"""What an Nsight export is of and holds: machine and programs, parts, and how to collect others."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from traceprof.intervals import BEYOND_NS
from traceprof.trace.grouping import median_of
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.special_values import FIRST_UTC_NS, MAX_RANK, NULL, whole_number
from traceprof.trace.model.trace import Session, Trace
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import read_thread_names
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import has_rows

_ENVIRONMENT = "PROCESS_0:ENVIRONMENT_VARIABLE"
_HOST_VARIABLES = ("SLURMD_NODENAME", "PMIX_HOSTNAME", "HOSTNAME")


_VERSIONS = {"NVIDIA driver": "NvDriverVersion", "CUDA of the driver": "CudaDriverVersion"}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_IN_PARTS = re.compile(r"\bMIG\b")  # a GPU's name, where it is a part of a board
_OF_NSIGHT = "[NSys"  # its own threads `[NSys]` and `[NSys Comms]`

Value = TypeVar("Value")


class Capture(Trace):
    """The facts about the machine and the programs in an export, each None or empty if unknown."""

    _database: Database

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The metadata of the export and the capture, by name."""
        return {
            sys.intern(row["name"]): sys.intern(row["value"])  # reports of a run say the same
            for table in (*schema.EXPORT_METADATA, schema.CAPTURE_METADATA)
            for row in self._database.rows(table, {"name": str, "value": str})
            if row["name"] is not None and row["value"] is not None
        }

    @cached_property
    def session(self) -> Session:
        start = self._database.rows(schema.SESSION_START, {"utcTime": str})
        variables = (self.environment.get(variable) for variable in _HOST_VARIABLES)
        # Events distinguish times in UTC from times since the start.
        is_utc = any(of_rank.span_ns[0] >= FIRST_UTC_NS for of_rank in self.operations.values())
        return Session(
            host=self._machine("Hostname") or next(filter(None, variables), None),
            start_text=start[0]["utcTime"] or None if start else None,
            num_cores=whole_number(self._machine("CpuCores")),
            start_utc_ns=self.session_start_ns,
            is_utc=self.is_utc or is_utc,
            command_line=tuple(self.command_line),
            environment=self.environment,
            end_ns=self.capture_end_ns,
            versions={
                what: version
                for what, name in _VERSIONS.items()
                if (version := self._machine(name)) is not None
            },
        )

    @property
    def command_line(self) -> list[str]:
        """The profiled command."""
        command = self.metadata.get("PROCESS_0:COMMAND")
        if command is None:
            return []
        words = [command]
        while (word := self.metadata.get(f"PROCESS_0:ARGUMENT_{len(words) - 1}")) is not None:
            words.append(word)
        return words

    @property
    def session_start_ns(self) -> int | None:
        """The time of the capture's start in ns since 1970."""
        rows = self._database.rows(schema.SESSION_START, {"utcEpochNs": int})
        start = rows[0]["utcEpochNs"] if rows else None
        return start if start is not None and 0 < start < BEYOND_NS else None

    @property
    def is_utc(self) -> bool:
        """True if the report's times are themselves ns since 1970."""
        return self.metadata.get(schema.TIME_NORMALIZED, "").lower() == "true"

    @property
    def capture_end_ns(self) -> int | None:
        """The end of the capture, in the report's own time."""
        rows = self._database.rows(schema.ANALYSIS_DETAILS, {"duration": int})
        duration = rows[0]["duration"] if rows else None
        if duration is None or not 0 <= duration < BEYOND_NS:
            return None
        start = self.session_start_ns if self.is_utc else 0
        return None if start is None else start + int(duration)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment variables of the profiled program."""
        rows = self._database.rows(schema.CAPTURE_METADATA, {"name": str, "value": str})
        texts = [row["value"] for row in rows if row["name"] == _ENVIRONMENT and row["value"]]
        pairs = (text.partition("=") for text in texts)
        return {name: value.strip().strip('"') for name, _, value in pairs}

    @property
    def gpus(self) -> Sequence[str]:
        return [board["name"] for board in self._boards if board["name"]]

    def program(self, process: int) -> str | None:
        rows = self._database.rows(schema.PROCESSES, {"globalPid": int, "name": str})
        return next((row["name"] for row in rows if row["globalPid"] == process), None)

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the GPU's name, if the export maps the process's ordinal to a board.

        CUDA_VISIBLE_DEVICES may hide the board, but not if all are of one kind.
        """
        device, of_2020 = self._device(key)
        if device is None and of_2020 is not None:
            return of_2020["name"] or None
        names = (board["name"] for board in self._boards if _may_be(board, device))
        return _only({name for name in names if name})

    def compute_capability(self, key: RankKey) -> tuple[int, int] | None:
        device, _ = self._device(key)
        boards = [board for board in self._boards if _may_be(board, device)]
        kinds = {(board["computeMajor"], board["computeMinor"]) for board in boards}
        return _only({kind for kind in kinds if kind[0] and kind[1] is not None})

    def num_sms(self, key: RankKey) -> int | None:
        """Return the number of multiprocessors of the rank's GPU, if known.

        A board's number is not that of a part of it, as MIG makes them.
        """
        device, of_2020 = self._device(key)
        if device is not None and device["numMultiprocessors"]:
            return int(device["numMultiprocessors"])
        numbers = {board["smCount"] for board in self._boards if _may_be(board, device)}
        numbers |= set() if of_2020 is None else {of_2020["numMultiprocessors"]}
        is_part = _IN_PARTS.search(self.gpu_name(key) or "") is not None
        return None if is_part else _only(numbers)

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU, else its place on the PCI bus, if known."""
        device, _ = self._device(key)
        if device is not None:
            own = (_name_of_board(one) for one in self._gpus if one["id"] == device["gpuId"])
            return device["uuid"] or next(filter(None, own), None)
        visible = self.environment.get(_VISIBLE)
        ordinal: int | None = key.device
        if visible is not None:
            names = visible.split(",")
            ordinal = whole_number(names[key.device]) if 0 <= key.device < len(names) else None
        boards = [board for board in self._gpus if board["cuDevice"] == ordinal is not None]
        return _name_of_board(boards[0]) if len(boards) == 1 else None

    @property
    def with_contexts(self) -> set[int]:
        """The pids of processes that made a CUDA context while CUDA was traced."""
        rows = self._database.rows(schema.CUDA_CONTEXTS, {"processId": int})
        return {row["processId"] for row in rows if row["processId"] is not None}

    def num_threads(self, process: int) -> int | None:
        return self._threads.get(process)

    def diagnostics(self) -> list[str]:
        """Return Nsight's own warnings about incomplete data."""
        telling = re.compile(
            r"not all .* events|events? (?:were |was )?(?:lost|dropped)", re.IGNORECASE
        )
        rows = self._database.rows(schema.DIAGNOSTICS, {"text": str})
        texts = {row["text"] or "" for row in rows}
        return sorted(text for text in texts if telling.search(text))

    def _machine(self, name: str) -> str | None:
        rows = self._database.rows(schema.SYSTEM_ENVIRONMENT, {"name": str, "value": str})
        return next((row["value"] for row in rows if row["name"] == name), None)

    @cached_property
    def _gpus(self) -> list[dict[str, Any]]:
        columns = {"id": int, "name": str, "uuid": str, "busLocation": str, "cuDevice": int}
        numbers = dict.fromkeys(("smCount", "computeMajor", "computeMinor"), int)
        return self._database.rows(schema.GPU_INFO, columns | numbers)

    @property
    def _boards(self) -> list[dict[str, Any]]:
        """NVIDIA's boards; on Windows others are listed too."""
        return [board for board in self._gpus if board["smCount"] != 0]

    def _device(self, key: RankKey) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return CUDA's device of a process, as exports have it since 2021 and of 2020."""
        pid = schema.pid_of_process(key.process)
        of_2020 = (row for row in self._devices_2020 if row["pid"] == pid)
        return self._devices.get((pid, key.device)), next(
            (row for row in of_2020 if row["deviceId"] == key.device), None
        )

    @cached_property
    def _devices(self) -> dict[tuple[int | None, int | None], dict[str, Any]]:
        """The first row of CUDA's devices by pid and ordinal of that process."""
        columns = {"gpuId": int, "cudaId": int, "pid": int, "uuid": str, "numMultiprocessors": int}
        rows = self._database.rows(schema.CUDA_DEVICES, columns)
        return {(row["pid"], row["cudaId"]): row for row in reversed(rows)}

    @cached_property
    def _devices_2020(self) -> list[dict[str, Any]]:
        columns = {"pid": int, "deviceId": int, "name": str, "numMultiprocessors": int}
        return self._database.rows(schema.GPU_INFO_2020, columns)

    @cached_property
    def _threads(self) -> Counter[int]:
        """Threads by process, without Nsight's own."""
        names = read_thread_names(self._database)
        threads = {thread for thread, name in names if not name.startswith(_OF_NSIGHT)}
        return Counter(map(schema.process_of_thread, threads))

    @cached_property
    def mpi_ranks(self) -> dict[int, set[int]]:
        """The ranks of each process in MPI_RANKS: one, unless the rows disagree."""
        ranks: dict[int, set[int]] = defaultdict(set)
        for row in self._database.rows(schema.MPI_RANKS, {"globalTid": int, "rank": int}):
            rank = NULL if row["rank"] is None else row["rank"]
            if row["globalTid"] is not None and 0 <= rank <= MAX_RANK:
                ranks[schema.process_of_thread(row["globalTid"])].add(rank)
        return ranks


def _may_be(board: dict[str, Any], device: dict[str, Any] | None) -> bool:
    return device is None or board["id"] == device["gpuId"]


def _only(values: set[Value]) -> Value | None:
    return next(iter(values)) if len(values) == 1 else None


def _name_of_board(board: dict[str, Any]) -> str | None:
    return board["uuid"] or board["busLocation"] or None


_DENSE_NS = 20_000  # between samples: 50 kHz; Nsight's usual 10 kHz are 100 µs
# The export holds a part if one of these tables has a row.
_TABLES = {
    Part.GPU_OPERATIONS: tuple(table.name for table in schema.GPU_OPERATIONS),
    Part.KERNELS: (schema.KERNEL.name,),
    Part.COPIES: (schema.MEMCPY.name,),
    Part.API_CALLS: (schema.API_CALL.name,),
    Part.SYNCHRONIZATIONS: (schema.WAIT.name,),
    Part.EVENT_RECORDS: (schema.EVENT_RECORD.name,),
    Part.STALL_RECORDS: (schema.DRIVER_OVERHEAD.name,),
    Part.RANGES: (schema.NVTX.name,),
    Part.HOST_CODE: (schema.OS_CALLS, schema.SAMPLES),
    Part.THREAD_SWITCHES: (schema.SWITCHES,),
    Part.SYSTEM_CALLS: (schema.OS_CALLS,),
    Part.SAMPLES: (schema.CALL_CHAINS,),
    Part.MPI_CALLS: (
        "MPI_P2P_EVENTS",
        "MPI_COLLECTIVES_EVENTS",
        "MPI_START_WAIT_EVENTS",
        "MPI_OTHER_EVENTS",
    ),
    Part.LINK_COUNTERS: (schema.GPU_METRICS,),
    Part.NETWORK_COUNTERS: (schema.NIC_METRICS,),
}

RE_EXPORT = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
"""What to do about a damaged export."""

_WITH_BLOBS = "nsys export --type=sqlite --include-blobs=true"

HOW_TO_COLLECT = HowToCollect(
    "Nsight Systems",
    {
        Part.GPU_OPERATIONS: "nsys profile --trace=cuda,nvtx …",
        Part.KERNELS: "nsys profile --trace=cuda,nvtx …",
        Part.COPIES: "nsys profile --trace=cuda,nvtx …",
        Part.COPY_MEMORY: (
            "export the .nsys-rep again with a newer Nsight Systems (srcKind and dstKind of"
            f" {schema.MEMCPY.name})"
        ),
        Part.EVERY_OPERATION: (
            "record fewer steps: nsys profile --capture-range=cudaProfilerApi …; a long recording"
            " keeps more with --cuda-flush-interval=10000, and CUDA graphs need fewer records with"
            " --cuda-graph-trace=graph"
        ),
        Part.END: "export it again: nsys export --type=sqlite …",
        Part.GRAPH_KERNELS: "nsys profile --cuda-graph-trace=node …",
        Part.API_CALLS: "nsys profile --trace=cuda …",
        Part.SYNCHRONIZATIONS: "nsys profile --trace=cuda …",
        Part.EVENT_RECORDS: "--cuda-event-trace=true",
        Part.STALL_RECORDS: (
            "export the .nsys-rep again with Nsight Systems 2026.1 or later:"
            " nsys export -t sqlite -o REPORT.sqlite REPORT.nsys-rep"
        ),
        Part.RANGES: "nsys profile --trace=cuda,nvtx …",
        Part.COMMUNICATION_CALLS: (
            "nsys profile --trace=cuda,nvtx … (without NCCL_NVTX_DISABLE), then"
            f" {_WITH_BLOBS}; or record with python -m instrument, which names every call"
        ),
        Part.MESSAGE_SIZES: (
            f"export the same report with {_WITH_BLOBS}, from"
            " Nsight Systems 2024.5 on (NCCL records sizes from 2.16 on); or record with"
            " python -m instrument, which names every call"
        ),
        Part.COMMUNICATORS: (
            "NCCL 2.25 or later"
            f" (PyTorch 2.7), nsys profile --trace=cuda,nvtx and {_WITH_BLOBS},"
            " from Nsight Systems 2024.5 on; or record with python -m instrument,"
            " which names every call with its peer and group"
        ),
        Part.HOST_CODE: "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true …",
        Part.THREAD_SWITCHES: "nsys profile --cpuctxsw=process-tree …",
        Part.SYSTEM_CALLS: "nsys profile --trace=cuda,nvtx,osrt …",
        Part.SAMPLES: "nsys profile --sample=process-tree …",
        Part.MPI_CALLS: "nsys profile --trace=cuda,nvtx,mpi …",
        Part.LINK_COUNTERS: f"nsys profile {schema.GPU_METRICS_FLAG} …",
        Part.NETWORK_COUNTERS: (
            f"nsys profile {schema.GPU_METRICS_FLAG} {schema.NIC_METRICS_FLAG} …"
        ),
        Part.DENSE_COUNTERS: "nsys profile --gpu-metrics-frequency=100000 … (up to 200000 Hz)",
        Part.COUNTED_GPUS: (
            "export again with Nsight Systems 2025.1 or later, which maps ordinals to GPUs"
        ),
    },
)
"""Advice for exports of every version; it names the required versions."""

assert HOW_TO_COLLECT.texts.keys() == set(Part)  # noqa: S101  (no part may be forgotten)


def holds(trace: Trace, database: Database, part: Part) -> bool:
    """Return whether an export holds a part."""
    if part in _TABLES:
        return any(has_rows(database, name) for name in _TABLES[part])
    if part is Part.COPY_MEMORY:
        return database.has(schema.MEMCPY.name, "srcKind", "dstKind")
    if part is Part.GRAPH_KERNELS:
        return not has_rows(database, schema.GRAPH.name)
    if part is Part.COUNTED_GPUS:
        return bool(trace.counters.gpu_of_rank)
    if part is Part.DENSE_COUNTERS:
        series = [samples for several in trace.counters.by_gpu.values() for samples in several]
        periods = [median_of(samples.end_ns - samples.start_ns) for samples in series]
        return any(period <= _DENSE_NS for period in periods)
    return part is Part.END  # a database that is cut short cannot be read


def check_is_export(database: Database) -> None:
    """Reject a database that is not Nsight Systems export.

    Raises TraceFormatError: it is of another program.
    """
    columns = database.columns
    views = sorted(database.views & {*schema.EVENT_TABLES, schema.STRINGS})
    if views:
        raise database.damaged(f"{views[0]} is a view where Nsight writes a table")
    known = any(name in columns for name in schema.EVENT_TABLES)
    if database.has(schema.STRINGS, "id", "value") and (
        known or any(mark in columns for mark in schema.MARKS)
    ):
        return
    if any(name.startswith("rocpd_") for name in columns):
        raise database.damaged(
            "it was written by rocprofv3, whose databases are not read",
            "record the program with torch.profiler",
        )
    names = ", ".join(sorted(columns)[:5]) or "no table"
    raise database.damaged(
        f"an SQLite database, but no Nsight Systems export (it holds {names})",
        "give the .sqlite file that `nsys export --type=sqlite` writes",
    )
