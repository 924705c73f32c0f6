"""Metadata of an Nsight export: the file, the machine and the programs."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from traceprof.intervals import BEYOND_NS
from traceprof.patterns import lazy
from traceprof.trace.model.special_values import FIRST_UTC_NS, MAX_RANK, NULL, whole_number
from traceprof.trace.model.trace import Session
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.trace.model.operations import RankKey
    from traceprof.trace.sqlite.database import Database


_ENVIRONMENT = "PROCESS_0:ENVIRONMENT_VARIABLE"
_HOST_VARIABLES = ("SLURMD_NODENAME", "PMIX_HOSTNAME", "HOSTNAME")


_VERSIONS = {"NVIDIA driver": "NvDriverVersion", "CUDA of the driver": "CudaDriverVersion"}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_IN_PARTS = lazy(r"\bMIG\b")  # a GPU's name, where it is a part of a board
_OF_NSIGHT = "[[]NSys*"  # its own threads `[NSys]` and `[NSys Comms]`


class Target:
    """Facts about the capture, each None or empty if unknown.

    Attributes:
        metadata: of the export and the capture, by name.
    """

    def __init__(self, database: Database) -> None:
        """Read the metadata of an export; the rest is read on first use."""
        self._database = database
        self.metadata: dict[str, str] = {
            sys.intern(row["name"]): sys.intern(row["value"])  # reports of a run say the same
            for table in (*schema.EXPORT_METADATA, schema.CAPTURE_METADATA)
            for row in database.rows(table, {"name": str, "value": str})
            if row["name"] is not None and row["value"] is not None
        }

    def session(self, first_ns: Iterable[int]) -> Session:
        """Place and time of the capture.

        `first_ns`: starts of events, which distinguish times in UTC from times since the start.
        """
        return Session(
            host=self.hostname,
            start_text=self.session_start,
            num_cores=self.num_cores,
            start_utc_ns=self.session_start_ns,
            is_utc=self.is_utc or any(time >= FIRST_UTC_NS for time in first_ns),
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
    def session_start(self) -> str | None:
        """The UTC time of the capture's start, as the export has it."""
        rows = self._database.rows(schema.SESSION_START, {"utcTime": str})
        return rows[0]["utcTime"] or None if rows else None

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

    @property
    def hostname(self) -> str | None:
        """The name of the machine, if necessary from the environment of the program."""
        variables = (self.environment.get(variable) for variable in _HOST_VARIABLES)
        return self._machine("Hostname") or next(filter(None, variables), None)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment variables of the profiled program."""
        rows = self._database.rows(schema.CAPTURE_METADATA, {"name": str, "value": str})
        texts = [row["value"] for row in rows if row["name"] == _ENVIRONMENT and row["value"]]
        pairs = (text.partition("=") for text in texts)
        return {name: value.strip().strip('"') for name, _, value in pairs}

    @property
    def num_cores(self) -> int | None:
        """The number of logical processors of the machine."""
        count = self._machine("CpuCores")
        return whole_number(count)

    @property
    def gpus(self) -> list[str]:
        """Names of the machine's NVIDIA GPUs."""
        return list(self._boards.values())

    def program(self, process: int) -> str | None:
        """Return the name of the program of a process."""
        rows = self._database.rows(schema.PROCESSES, {"globalPid": int, "name": str})
        return next((row["name"] for row in rows if row["globalPid"] == process), None)

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the GPU's name, if the export maps the process's ordinal to a board."""
        boards, pid = self._boards, schema.pid_of_process(key.process)
        device = self._devices.get((pid, key.device))
        if device is not None:
            return boards.get(device["gpuId"])
        for row in self._database.rows(
            schema.GPU_INFO_2020, {"pid": int, "deviceId": int, "name": str}
        ):
            if row["pid"] == pid and row["deviceId"] == key.device:
                return row["name"] or None
        # CUDA_VISIBLE_DEVICES may hide the board, but not if all are of one kind.
        kinds = set(boards.values())
        return kinds.pop() if len(kinds) == 1 else None

    def compute_capability(self, key: RankKey) -> tuple[int, int] | None:
        """Return the compute capability of the rank's GPU, if known."""
        columns = {"id": int, "smCount": int, "computeMajor": int, "computeMinor": int}
        boards = [
            row
            for row in self._database.rows(schema.GPU_INFO, columns)
            if row["smCount"] != 0 and row["computeMajor"] and row["computeMinor"] is not None
        ]
        device = self._devices.get((schema.pid_of_process(key.process), key.device))
        kinds = {
            (row["computeMajor"], row["computeMinor"])
            for row in boards
            if device is None or row["id"] == device["gpuId"]
        }
        return kinds.pop() if len(kinds) == 1 else None

    def num_sms(self, key: RankKey) -> int | None:
        """Return the number of multiprocessors of the rank's GPU, if known.

        A board's number is not that of a part of it, as MIG makes them.
        """
        device = self._devices.get((schema.pid_of_process(key.process), key.device))
        if device is not None and device["numMultiprocessors"]:
            return int(device["numMultiprocessors"])
        columns = {"id": int, "name": str, "smCount": int}
        numbers = {
            row["smCount"]
            for row in self._database.rows(schema.GPU_INFO, columns)
            if row["smCount"] != 0 and (device is None or row["id"] == device["gpuId"])
        }
        columns = {"pid": int, "deviceId": int, "numMultiprocessors": int}
        numbers |= {
            row["numMultiprocessors"]
            for row in self._database.rows(schema.GPU_INFO_2020, columns)
            if (row["pid"], row["deviceId"]) == (schema.pid_of_process(key.process), key.device)
        }
        is_part = _IN_PARTS.search(self.gpu_name(key) or "") is not None
        return numbers.pop() if len(numbers) == 1 and not is_part else None

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU, else its place on the PCI bus, if known."""
        device = self._devices.get((schema.pid_of_process(key.process), key.device))
        if device is not None:
            return device["uuid"] or self._board_names.get(device["gpuId"])
        visible = self.environment.get(_VISIBLE)
        ordinal: int | None = key.device
        if visible is not None:
            names = visible.split(",")
            ordinal = whole_number(names[key.device]) if 0 <= key.device < len(names) else None
        candidates = self._by_ordinal.get(ordinal, []) if ordinal is not None else []
        return _name_of_board(candidates[0]) if len(candidates) == 1 else None

    @property
    def with_contexts(self) -> set[int]:
        """The pids of processes that made a CUDA context while CUDA was traced."""
        rows = self._database.rows(schema.CUDA_CONTEXTS, {"processId": int})
        return {row["processId"] for row in rows if row["processId"] is not None}

    def num_threads(self, process: int) -> int | None:
        """Return the number of threads of the process with events; None if unknown."""
        return self._threads.get(process)

    def mpi_ranks(self, process: int) -> set[int]:
        """Return the ranks of the process in MPI_RANKS: one, unless the rows disagree."""
        return self._mpi_ranks.get(process, set())

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
    def _boards(self) -> dict[int | None, str]:
        """Names of NVIDIA's boards by TARGET_INFO_GPU.id; on Windows others are listed too."""
        return {
            row["id"]: row["name"]
            for row in self._database.rows(
                schema.GPU_INFO, {"id": int, "name": str, "smCount": int}
            )
            if row["name"] and row["smCount"] != 0
        }

    @cached_property
    def _gpus(self) -> list[dict[str, Any]]:
        columns = {"id": int, "uuid": str, "busLocation": str, "cuDevice": int}
        return self._database.rows(schema.GPU_INFO, columns)

    @cached_property
    def _by_ordinal(self) -> dict[int | None, list[dict[str, Any]]]:
        boards = defaultdict(list)
        for board in self._gpus:
            boards[board["cuDevice"]].append(board)
        return dict(boards)

    @cached_property
    def _board_names(self) -> dict[int | None, str]:
        """First uuid or place on the PCI bus of each board, by TARGET_INFO_GPU.id."""
        names = ((board["id"], _name_of_board(board)) for board in reversed(self._gpus))
        return {number: name for number, name in names if name}

    @cached_property
    def _devices(self) -> dict[tuple[int | None, int | None], dict[str, Any]]:
        """The first row of CUDA's devices by pid and ordinal of that process."""
        columns = {"gpuId": int, "cudaId": int, "pid": int, "uuid": str, "numMultiprocessors": int}
        rows = self._database.rows(schema.CUDA_DEVICES, columns)
        return {(row["pid"], row["cudaId"]): row for row in reversed(rows)}

    @cached_property
    def _threads(self) -> Counter[int]:
        """Threads by process, without Nsight's own."""
        rows = self._database.rows(schema.THREAD_NAMES, {"globalTid": int, "nameId": int})
        strings = self._database.rows(schema.STRINGS, {"id": int}, "value GLOB ?", [_OF_NSIGHT])
        nsight = {row["id"] for row in strings}
        threads = {
            row["globalTid"]
            for row in rows
            if row["globalTid"] is not None and row["nameId"] not in nsight
        }
        return Counter(map(schema.process_of_thread, threads))

    @cached_property
    def _mpi_ranks(self) -> dict[int, set[int]]:
        ranks: dict[int, set[int]] = defaultdict(set)
        for row in self._database.rows(schema.MPI_RANKS, {"globalTid": int, "rank": int}):
            rank = NULL if row["rank"] is None else row["rank"]
            if row["globalTid"] is not None and 0 <= rank <= MAX_RANK:
                ranks[schema.process_of_thread(row["globalTid"])].add(rank)
        return ranks


def _name_of_board(board: dict[str, Any]) -> str | None:
    return board["uuid"] or board["busLocation"] or None
