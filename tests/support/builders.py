"""Tiny exports for tests: say what happened, write the file.

TraceBuilder().kernel(0, 100).memcpy(160, 200, "DtoH").nvtx("step 0", 0, 300).write(path)
"""

from __future__ import annotations

import random
import sqlite3
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import count, groupby
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from typing_extensions import Self, Unpack

from sample_traces.simulator import nsight_writer
from sample_traces.simulator.nsight_writer import Column, NsightWriter, Scalar
from traceprof import labels
from traceprof.intervals import Int64
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.trace import Session
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

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
    return nsight_writer.VM_ID | pid << 24


def global_tid(pid: int = 1000, tid: int | None = None) -> int:
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
        host = 0 if pageable else nsight_writer.MEM_PINNED
        row: Row = {
            "bytes": bytes,
            "copyKind": _COPY_KINDS[kind],
            "srcKind": host if kind.startswith("H") else nsight_writer.MEM_DEVICE,
            "dstKind": host if kind.endswith("H") else nsight_writer.MEM_DEVICE,
            "srcDeviceId": source,
            "dstDeviceId": destination,
        }
        return self._operation(schema.MEMCPY.name, start, end, row, "cudaMemcpyAsync_v3020", how)

    def memset(
        self, start: int, end: int, *, bytes: int = 4, **how: Unpack[How]  # noqa: A002
    ) -> Self:  # fmt: skip
        row: Row = {"bytes": bytes, "memKind": nsight_writer.MEM_DEVICE}
        return self._operation(schema.MEMSET.name, start, end, row, "cudaMemsetAsync_v3020", how)

    def graph(self, start: int, end: int, **how: Unpack[How]) -> Self:
        """Add a CUDA graph traced as a whole."""
        return self._operation(schema.GRAPH.name, start, end, {}, "cudaGraphLaunch_v10000", how)

    def api(
        self, name: str, start: int, end: int, *, correlation: int | None = None, pid: int = 1000,
        tid: int | None = None, returned: int | None = None,
    ) -> Self:  # fmt: skip
        """Add a CUDA API call; one that returned an error launched nothing."""
        self._correlations[pid] += correlation is None
        correlation = self._correlations[pid] if correlation is None else correlation
        row: Row = {"start": start, "end": end, "correlationId": correlation, "nameId": name}
        row |= {} if returned is None else {"returnValue": returned}
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
        row: Row = {"vmId": nsight_writer.VM_ID, "id": board, "name": name, "smCount": num_sms}
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
        path = path / "t.sqlite" if path.is_dir() else path
        with NsightWriter(path, self._schema_version) as writer:
            for table, rows in self._rows.items():
                add_rows(writer, table, rows)
            for table, _ in self._raw:
                if table in nsight_writer.LAYOUTS:
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


def column(values: object, num: int) -> Int64:
    """Return int64[n] of a list, or of one number for all."""
    filled: Int64 = np.broadcast_to(np.asarray(values, np.int64), (num,)).copy()
    return filled


def arrivals(
    rank: int, start: Sequence[int], end: Sequence[int], *, report: int | None = None,
    operation: str = "AllReduce", communicator: str | None = None, group: str | None = None,
    num_kernels: int | None = None, blocked: Sequence[int] | None = None,
    spent: Mapping[str, Sequence[int]] | None = None, **columns: Any,
) -> Arrivals:  # fmt: skip
    """Return a rank's communication kernels, or, beyond `num_kernels`, its calls of MPI.

    `spent` gives, by name, what each part of the time took up to each start; between a start and
    its end nothing is spent.
    """
    num = len(start)
    given = {name: column(values, num) for name, values in columns.items()}
    unknown = np.full(num, -1, np.int64)
    parts = np.zeros((num, len(TIME_CATEGORIES)), np.int64)
    for name, values in (spent or {}).items():
        parts[:, TIME_CATEGORIES.index(name)] = values
    kernels = given.pop("kernels", unknown * 0)
    inside = given.pop("inside", np.ones(num, np.int64)) > 0
    names = ("bytes", "sequence", "peer", "root", "peer_in_communicator", "direction")
    defaults = dict.fromkeys((*names, "world_size", "called_ns", "launch_ns"), unknown)
    return Arrivals(
        rank=rank,
        report=rank if report is None else report,
        device=0,
        start_ns=column(start, num),
        end_ns=column(end, num),
        blocked_ns=column(start if blocked is None else blocked, num),
        is_inside=inside,
        is_judged=inside,
        operation=column(OPERATIONS.index(operation), num),
        communicator=column(-1 if communicator is None else 0, num),
        group=column(-1 if group is None else 0, num),
        stream=given.pop("stream", column(7, num)),
        host_code={},
        **(defaults | given),
        cumulative_ns_at_start=parts,
        spent_inside_ns=0 * parts,
        kernels_at_start=kernels,
        kernels_at_end=kernels,
        window_ns=1_000_000,
        operations=OPERATIONS,
        communicators=() if communicator is None else (communicator,),
        groups=() if group is None else (group,),
        num_kernels=num if num_kernels is None else num_kernels,
    )


def session(host: str | None, start: int | None = 0, *, is_utc: bool = False) -> Session:
    """Return a session that began so many ns after some time in 2026."""
    utc = None if start is None else 1_767_225_600_000_000_000 + start
    return Session(host, None, utc, is_utc, (), {})


DOMAIN, LABELS = 5, 6
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_INT, _UINT64, _SIZE = 5, 18, 22
_COMMUNICATOR, _BYTES = ("NCCL communicator ID", _UINT64), ("Message size [bytes]", _SIZE)
# Numbered otherwise than in any NCCL: names must tell.
SCHEMAS: dict[int, tuple[tuple[str, int], ...]] = {
    901: (_COMMUNICATOR, _BYTES),
    902: (_COMMUNICATOR, _BYTES, ("Peer rank", _INT)),
    903: (_COMMUNICATOR, ("No. of ranks", _INT), ("Rank", _INT), ("CUDA device", _INT)),
    904: (_BYTES, ("Reduction operation", 905)),  # before 2.25
    906: (("Bytes", _SIZE), ("Peer rank", _INT)),
}


def prepare(
    builder: TraceBuilder, *, schemas: Sequence[int] = (901, 902), pid: int = 1000,
    offsets: bool = True,
) -> TraceBuilder:  # fmt: skip
    """Name the domains and lay out the payloads, as Nsight does for each process."""
    tid = global_tid(pid)
    for domain, name in ((DOMAIN, "NCCL"), (LABELS, "traceprof")):
        event = {"start": 0, "eventType": 75, "globalTid": tid, "domainId": domain, "text": name}
        builder.raw("NVTX_EVENTS", **event)
    for number in schemas:
        offset = 0
        for index, (name, kind) in enumerate(SCHEMAS[number]):
            where = {"domainId": DOMAIN, "schemaId": number, "idx": index}
            known = offset if index and offsets else None
            builder.raw("NVTX_PAYLOAD_SCHEMA_ENTRIES", **where, name=name, type=kind, offset=known)
            offset += 8 if kind in (_UINT64, _SIZE) else 4
    return builder


def payload(schema: int, *values: int) -> bytes:
    codes = "".join("Q" if kind in (_UINT64, _SIZE) else "i" for _, kind in SCHEMAS[schema])
    body = struct.pack(f"<{codes}", *values).ljust(24, b"\0")
    return struct.pack("<IIIIQQ", DOMAIN, 0, schema, 0, 24, 56) + body


def call(
    builder: TraceBuilder, name: str, start: int, end: int | None, *values: int, schema: int = 901,
    pid: int = 1000, tid: int | None = None, domain: int = DOMAIN, **columns: Any,
) -> TraceBuilder:  # fmt: skip
    """Add a range of NCCL's, with the values of its payload's fields."""
    row: dict[str, Any] = {"start": start, "end": end, "eventType": 59, "domainId": domain}
    row |= {"globalTid": global_tid(pid, tid), "text": name}
    if values:
        row["binaryData"] = payload(schema, *values)
    return builder.raw("NVTX_EVENTS", **(row | columns))


def label(builder: TraceBuilder, text: str, start: int, end: int, **how: Any) -> TraceBuilder:
    return call(builder, text, start, end, domain=LABELS, **how)


_CORRELATIONS = count(1_000_000)  # no operation of a test has these


def record(
    builder: TraceBuilder, event: int, stream: int, at: int, *, device: int = 0, pid: int = 1000
) -> TraceBuilder:  # fmt: skip
    """Add the record of an event on a stream, by a call at a time that takes no time."""
    return _call("cudaEventRecord_v3020", "CUDA_EVENT", builder, event, stream, at, device, pid)


def wait(
    builder: TraceBuilder, event: int, stream: int, at: int, *, device: int = 0, pid: int = 1000,
    api: str = "cudaStreamWaitEvent_v3020",
) -> TraceBuilder:  # fmt: skip
    """Add a stream's wait for an event, by a call at a time that takes no time."""
    return _call(api, "SYNCHRONIZATION", builder, event, stream, at, device, pid)


def _call(
    api: str, table: str, builder: TraceBuilder, event: int, stream: int, at: int, device: int,
    pid: int,
) -> TraceBuilder:  # fmt: skip
    correlation = next(_CORRELATIONS)
    builder.api(api, at, at, correlation=correlation, pid=pid)
    times = {} if table == "CUDA_EVENT" else {"start": at, "end": at, "syncType": 3}
    return builder.raw(
        f"CUPTI_ACTIVITY_KIND_{table}", deviceId=device, contextId=1, streamId=stream,
        correlationId=correlation, globalPid=global_pid(pid), eventId=event, **times,
    )  # fmt: skip


US = 1000


def solver(
    num: int,
    kernels: Sequence[str] = ("sweep", "norm", "sweep", "update"),
    *,
    builder: TraceBuilder | None = None,
    begin_ns: int = 0,
    length_us: int = 30,
    noise: float = 0.0,
    seed: int = 0,
) -> TraceBuilder:
    """Add iterations of kernels 2 us apart, each launched 5 us before it starts.

    Args:
        num: of iterations.
        kernels: of an iteration.
        builder: to which they are added.
        begin_ns: when the first one begins.
        length_us: of each kernel.
        noise: standard deviation of the length of an iteration's kernels, as a share.
        seed: of the noise.
    """
    trace, at = builder or TraceBuilder(), begin_ns
    source = np.random.default_rng(seed)
    for _ in range(num):
        at += 20 * US  # idle
        length = int(length_us * US * (1 + noise * source.normal()))
        for name in kernels:
            trace.kernel(at, at + length, f"{name}(float*)", launch=(at - 5 * US, at - 4 * US))
            at += length + 2 * US
    return trace


def stretch(path: Path, factor: float) -> None:
    """Let everything in an export take so many times as long."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for column in {"start", "end"}.intersection(columns):
                connection.execute(
                    f'UPDATE {table} SET "{column}" = CAST(round("{column}" * ?) AS INTEGER)',
                    (factor,),
                )
