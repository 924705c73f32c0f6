"""What an Nsight export says of itself, of the machine and of the programs that ran."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from traceprof.trace import nvtx, schema

if TYPE_CHECKING:
    from traceprof.trace.database import Database
    from traceprof.trace.model import RankKey


class Target:
    """Facts about the capture, each None or empty where the export does not tell.

    Attributes:
        metadata: all that the export says of itself and of the capture.
    """

    def __init__(self, database: Database) -> None:
        """Read the metadata; the rest is read when it is asked for."""
        self._database = database
        self.metadata: dict[str, str] = {
            str(row["name"]): str(row["value"])
            for table in (*schema.EXPORT_METADATA, schema.CAPTURE_METADATA)
            if database.has(table, "name", "value")
            for row in database.rows(table)
            if row["value"] is not None
        }

    @property
    def command_line(self) -> list[str]:
        """The command that was profiled."""
        command = self.metadata.get("PROCESS_0:COMMAND")
        if command is None:
            return []
        words = [command]
        while (word := self.metadata.get(f"PROCESS_0:ARGUMENT_{len(words) - 1}")) is not None:
            words.append(word)
        return words

    @property
    def session_start(self) -> str | None:
        """The UTC time at which the capture began, as the export writes it."""
        rows = self._database.rows(schema.SESSION_START)
        return str(rows[0]["utcTime"]) if rows and rows[0].get("utcTime") else None

    @property
    def hostname(self) -> str | None:
        """The name of the machine."""
        if not self._database.has(schema.SYSTEM_ENVIRONMENT, "name", "value"):
            return None
        rows = self._database.rows(schema.SYSTEM_ENVIRONMENT, "name = 'Hostname'")
        return str(rows[0]["value"]) if rows else None

    @property
    def gpus(self) -> list[str]:
        """Names of the machine's NVIDIA GPUs."""
        return list(self._boards.values())

    def program(self, process: int) -> str | None:
        """Return the name of the program that the process ran."""
        if not self._database.has(schema.PROCESSES, "globalPid", "name"):
            return None
        rows = self._database.rows(schema.PROCESSES, "globalPid = ?", [process])
        return str(rows[0]["name"]) if rows else None

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the GPU's name where the export maps the process's ordinal to a board."""
        boards, pid = self._boards, schema.pid_of_process(key.process)
        for row in self._device_map:
            if row.get("pid") == pid and row.get("cudaId") == key.device:
                return boards.get(row.get("gpuId"))
        for row in self._database.rows(schema.GPU_INFO_2020):
            if row.get("pid") == pid and row.get("deviceId") == key.device:
                return str(row.get("name"))
        # CUDA_VISIBLE_DEVICES may hide which board it is, but not when all are of one kind.
        kinds = set(boards.values())
        return kinds.pop() if len(kinds) == 1 else None

    def global_rank(self, process: int) -> int | None:
        """Return the MPI rank of the process: from MPI_RANKS, or the names MPI gives threads."""
        found = self._mpi_ranks.get(process) or self._named_ranks.get(process) or set()
        return next(iter(found)) if len(found) == 1 else None

    def diagnostics(self) -> list[str]:
        """Return what Nsight itself warned of that makes numbers incomplete."""
        telling = re.compile(
            r"not all .* events|events? (?:were |was )?(?:lost|dropped)", re.IGNORECASE
        )
        texts = {str(row.get("text")) for row in self._database.rows(schema.DIAGNOSTICS)}
        return sorted(text for text in texts if telling.search(text))

    @cached_property
    def _boards(self) -> dict[Any, str]:
        """Names of NVIDIA's boards by TARGET_INFO_GPU.id; on Windows others are listed too."""
        return {
            row.get("id"): str(row["name"])
            for row in self._database.rows(schema.GPU_INFO)
            if row.get("name") and row.get("smCount") != 0
        }

    @cached_property
    def _device_map(self) -> list[dict[str, Any]]:
        return self._database.rows(schema.CUDA_DEVICES)

    @cached_property
    def _mpi_ranks(self) -> dict[int, set[int]]:
        ranks: dict[int, set[int]] = defaultdict(set)
        for row in self._database.rows(schema.MPI_RANKS):
            thread, rank = row.get("globalTid"), row.get("rank")
            if isinstance(thread, int) and isinstance(rank, int):
                ranks[schema.process_of_thread(thread)].add(rank)
        return ranks

    @cached_property
    def _named_ranks(self) -> dict[int, set[int]]:
        ranks: dict[int, set[int]] = defaultdict(set)
        for process, name in nvtx.thread_names(self._database):
            match = re.fullmatch(r"MPI Rank (\d{1,9})", name)
            if match:
                ranks[process].add(int(match[1]))
        return ranks
