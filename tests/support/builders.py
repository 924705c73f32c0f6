"""Tiny exports for tests: say what happened, write the file.

TraceBuilder().kernel(0, 100).memcpy(160, 200, "DtoH").nvtx("step 0", 0, 300).write(path)
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypedDict

from sample_traces.simulator import schema_layouts
from sample_traces.simulator.nsight_writer import NsightWriter
from traceprof import labels
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from typing_extensions import Self, Unpack

    from sample_traces.simulator.nsight_writer import Column, Scalar

    Row = dict[str, Scalar]

_COPY_KINDS = {
    "HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10, "unified HtoD": 11, "unified DtoH": 12,
}  # fmt: skip
# Columns that hold ids of strings: a text given for one is put into StringIds.
_STRING_COLUMNS = {"demangledName", "shortName", "mangledName", "nameId", "textId"}


class How(TypedDict, total=False):
    """Where a GPU operation ran and who launched it."""

    pid: int  # 1000
    device: int  # 0
    stream: int  # 7
    correlation: int | None  # else the process's next
    # The launching call's start and end; by default it returns as the operation starts (and takes
    # no time, so that it is in every range that the operation is in); False: there is no such row.
    launch: tuple[int, int] | Literal[False] | None
    api: str  # the call's name
    tid: int | None  # the thread that made it, else the main one


def global_pid(pid: int = 1000) -> int:
    """Return the id of a process."""
    return schema.VM_ID | pid << 24


def global_tid(pid: int = 1000, tid: int | None = None) -> int:
    """Return the id of a thread, of the main one by default."""
    return global_pid(pid) | (pid if tid is None else tid)


def add_rows(writer: NsightWriter, table: str, rows: Iterable[Mapping[str, Scalar]]) -> None:
    """Add rows in their order, neighbours with the same columns at once."""
    for names, neighbours in groupby(rows, lambda row: row.keys()):
        same = list(neighbours)
        columns: dict[str, Column] = {
            name: [writer.string(str(row[name])) for row in same]
            if name in _STRING_COLUMNS
            else [row[name] for row in same]
            for name in names
        }
        writer.add(table, columns)


class TraceBuilder:
    """Collects what an export shall hold; every method returns the builder. Times are ns."""

    def __init__(self, schema_version: str = "3.25.0", *, has_payloads: bool = False) -> None:
        """Begin an export; labels may have their running numbers as payloads of ranges."""
        self._has_payloads = has_payloads
        self._schema_version = schema_version
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._raw: list[tuple[str, dict[str, object]]] = []
        self._without: list[tuple[str, str | None]] = []
        self._correlations: Counter[int] = Counter()
        self._domains: dict[tuple[int, str], int] = {}

    def kernel(
        self, start: int, end: int, name: str = "gemm", *, grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1), **how: Unpack[How],
    ) -> Self:  # fmt: skip
        """Add a kernel by its demangled name."""
        row: Row = {"demangledName": name, "shortName": name.partition("(")[0]}
        row |= dict(zip(("gridX", "gridY", "gridZ"), grid, strict=True))
        row |= dict(zip(("blockX", "blockY", "blockZ"), block, strict=True))
        return self._operation(schema.KERNEL.name, start, end, row, "cudaLaunchKernel_v7000", how)

    def memcpy(
        self, start: int, end: int, kind: str = "HtoD", *, bytes: int = 1 << 20,  # noqa: A002
        source: int | None = None, destination: int | None = None, pageable: bool = False,
        **how: Unpack[How],
    ) -> Self:  # fmt: skip
        """Add a copy, between the devices `source` and `destination` where they are given."""
        host = 0 if pageable else schema.MEM_PINNED
        row: Row = {
            "bytes": bytes,
            "copyKind": _COPY_KINDS[kind],
            "srcKind": host if kind.startswith("H") else schema.MEM_DEVICE,
            "dstKind": host if kind.endswith("H") else schema.MEM_DEVICE,
            "srcDeviceId": source,
            "dstDeviceId": destination,
        }
        return self._operation(schema.MEMCPY.name, start, end, row, "cudaMemcpyAsync_v3020", how)

    def memset(
        self, start: int, end: int, *, bytes: int = 4, **how: Unpack[How]  # noqa: A002
    ) -> Self:  # fmt: skip
        """Add a memory set of device memory."""
        row: Row = {"bytes": bytes, "memKind": schema.MEM_DEVICE}
        return self._operation(schema.MEMSET.name, start, end, row, "cudaMemsetAsync_v3020", how)

    def graph(self, start: int, end: int, **how: Unpack[How]) -> Self:
        """Add a CUDA graph traced as a whole."""
        return self._operation(schema.GRAPH.name, start, end, {}, "cudaGraphLaunch_v10000", how)

    def api(
        self, name: str, start: int, end: int, *, correlation: int | None = None, pid: int = 1000,
        tid: int | None = None,
    ) -> Self:  # fmt: skip
        """Add a CUDA API call."""
        self._correlations[pid] += correlation is None
        correlation = self._correlations[pid] if correlation is None else correlation
        row: Row = {"start": start, "end": end, "correlationId": correlation, "nameId": name}
        return self._row(schema.API_CALL.name, {**row, "globalTid": global_tid(pid, tid)})

    def nvtx(
        self, name: str, start: int, end: int | None, *, event_type: int = schema.NVTX_PUSH_POP,
        domain: str = "", registered: bool = False, pid: int = 1000, tid: int | None = None,
        payload: int | None = None,
    ) -> Self:  # fmt: skip
        """Add a range, its name in the row or, `registered`, in StringIds."""
        row: Row = {"start": start, "globalTid": global_tid(pid, tid), "domainId": 0}
        if domain:
            if (pid, domain) not in self._domains:
                row["domainId"] = self._domains[pid, domain] = len(self._domains) + 1
                self._row(
                    schema.NVTX.name, {**row, "eventType": schema.NVTX_DOMAIN, "text": domain}
                )
            row["domainId"] = self._domains[pid, domain]
        row |= {"end": end, "eventType": event_type, "textId" if registered else "text": name}
        row |= {} if payload is None else {schema.NVTX_INTEGER: payload}
        return self._row(schema.NVTX.name, row)

    def label(
        self, text: str, start: int, end: int | None, *, in_flight: bool = False, pid: int = 1000,
        tid: int | None = None,
    ) -> Self:  # fmt: skip
        """Add a range of `instrument`: of a call, or of an operation that is in flight."""
        text, number = labels.split_number(text) if self._has_payloads else (text, None)
        return self.nvtx(
            text, start, end, domain=labels.DOMAIN, registered=True, pid=pid, tid=tid,
            event_type=schema.NVTX_START_END if in_flight else schema.NVTX_PUSH_POP, payload=number,
        )  # fmt: skip

    def machine(
        self, *, host: str | None = None, cores: int | None = None, start_utc: int | None = None,
        end: int | None = None,
    ) -> Self:  # fmt: skip
        """Say where and when it was captured: the clock at time 0, and the capture's last time."""
        facts = {"Hostname": host, "CpuCores": None if cores is None else str(cores)}
        for name, value in facts.items():
            if value is not None:
                self._row(schema.SYSTEM_ENVIRONMENT, {"name": name, "value": value})
        if start_utc is not None:
            self._row(schema.SESSION_START, {"utcEpochNs": start_utc})
        if end is not None:
            self._row(schema.ANALYSIS_DETAILS, {"duration": end})
        return self

    def threads(self, *names: str, pid: int = 1000) -> Self:
        """Add the threads that were seen of a process."""
        for number, name in enumerate(names):
            row: Row = {"nameId": name, "priority": 20, "globalTid": global_tid(pid, pid + number)}
            self._row(schema.THREAD_NAMES, row)
        return self

    def thread_name(self, name: str, *, pid: int = 1000, tid: int | None = None) -> Self:
        """Add the name that a thread got through NVTX, such as `MPI Rank 1`."""
        return self.nvtx(name, 0, None, event_type=schema.NVTX_THREAD_NAME, pid=pid, tid=tid)

    def gpu(
        self, name: str, *, board: int = 0, device: int = 0, pid: int = 1000,
        num_sms: int | None = None,
    ) -> Self:  # fmt: skip
        """Add a board, and the CUDA ordinal by which the process knows it."""
        row: Row = {"vmId": schema.VM_ID, "id": board, "name": name, "smCount": num_sms}
        self._row(schema.GPU_INFO, row)
        return self._row(schema.CUDA_DEVICES, {"gpuId": board, "cudaId": device, "pid": pid})

    def raw(self, table: str, **columns: object) -> Self:
        """Have the table and, where columns are given, a row of them in it, as they are.

        NULL and wrong types are let in anywhere; unknown tables and columns are made.
        """
        self._raw.append((table, columns))
        return self

    def without(self, table: str, column: str | None = None) -> Self:
        """Leave out a table, or one column of it."""
        self._without.append((table, column))
        return self

    def shuffled(self, seed: int) -> Self:
        """Bring the rows so far, but the raw ones, into an order that means nothing."""
        for rows in self._rows.values():
            random.Random(seed).shuffle(rows)
        return self

    def nesting(self) -> Self:
        """End the calls so far within the call of their thread around them, as real ones do."""
        around: dict[object, list[int]] = defaultdict(list)
        rows = self._rows[schema.API_CALL.name]
        for row in sorted(rows, key=lambda row: (int(row["start"] or 0), -int(row["end"] or 0))):
            ends = around[row["globalTid"]]
            while ends and ends[-1] <= int(row["start"] or 0):
                ends.pop()
            ends.append(min([int(row["end"] or 0), *ends]))
            row["end"] = ends[-1]
        return self

    def write(self, path: Path) -> Path:
        """Write the export, which must be new, or `t.sqlite` in a folder, and return its path."""
        path = path / "t.sqlite" if path.is_dir() else path
        with NsightWriter(path, self._schema_version) as writer:
            for table, rows in self._rows.items():
                add_rows(writer, table, rows)
            for table, _ in self._raw:
                if table in schema_layouts.LAYOUTS:
                    writer.create(table)
        if self._raw or self._without:
            self._alter(path)
        return path

    def _operation(
        self, table: str, start: int, end: int, row: Row, api: str, how: How
    ) -> Self:  # fmt: skip
        pid, launch, correlation = how.get("pid", 1000), how.get("launch"), how.get("correlation")
        if correlation is None:
            self._correlations[pid] += 1
            correlation = self._correlations[pid]
        if launch is not False:
            call = (start, start) if launch is None else launch
            name, tid = how.get("api", api), how.get("tid")
            self.api(name, *call, correlation=correlation, pid=pid, tid=tid)
        row |= {"start": start, "end": end, "correlationId": correlation, "contextId": 1}
        row |= {"globalPid": global_pid(pid), "deviceId": how.get("device", 0)}
        return self._row(table, {**row, "streamId": how.get("stream", 7)})

    def _row(self, table: str, row: Row) -> Self:
        self._rows[table].append(row)
        return self

    def _alter(self, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA writable_schema = ON")
            database.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            for table, columns in self._raw:
                self._insert_raw(database, table, columns)
            for table, column in self._without:
                what = f"ALTER TABLE {quote(table)} DROP COLUMN" if column else "DROP TABLE"
                database.execute(f"{what} {quote(column or table)}")

    def _insert_raw(
        self, database: sqlite3.Connection, table: str, columns: dict[str, object]
    ) -> None:
        present = [row[1] for row in database.execute(f"PRAGMA table_info({quote(table)})")]
        names = [quote(name) for name in columns]
        if not present:
            database.execute(f"CREATE TABLE {quote(table)} ({', '.join(names) or 'id INTEGER'})")
        for name in columns.keys() - set(present) if present else ():
            database.execute(f"ALTER TABLE {quote(table)} ADD COLUMN {quote(name)}")
        if columns:
            values = ", ".join("?" * len(columns))
            insert = f"INSERT INTO {quote(table)} ({', '.join(names)}) VALUES ({values})"
            database.execute(insert, list(columns.values()))
