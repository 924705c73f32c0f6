"""The result of the event model as the rows that Nsight Systems would export."""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

from sample_traces.simulator import nsight_writer
from sample_traces.simulator.event_model.actions import (
    CallRecord,
    CommunicationWork,
    CopyWork,
    Event,
    KernelWork,
    MarkRecord,
    MemsetWork,
    Push,
    Record,
    Sleep,
    Stream,
    Thread,
    Wait,
)
from sample_traces.simulator.event_model.engine import RangeRecord, Result
from sample_traces.simulator.event_model.gpu import Operation
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import (
    LEAD_NS,
    LOADING,
    MPI_CALL,
    MPI_COLLECTIVE,
    MPI_POINT_TO_POINT,
    MPI_WORLD,
    NCCL_DOMAIN,
    OS_CALL,
    PROFILER,
    Machine,
    Process,
    write_machine,
    write_session,
)
from sample_traces.simulator.nsight_writer import NsightWriter
from traceprof.trace.nsight import schema

_SAMPLED_EVERY_NS = 1_000_000
_PYTHON = "/usr/bin/python3.11"
_INTERPRETER = (("_PyEval_EvalFrameDefault", _PYTHON), ("main", _PYTHON))
_DRIVER = ("0x7f4c1b2d14b8", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
_UNWOUND_BY_FRAMES = 7
_MPI_TABLES = {
    MPI_CALL: nsight_writer.MPI_CALLS,
    MPI_COLLECTIVE: nsight_writer.MPI_COLLECTIVES,
    MPI_POINT_TO_POINT: nsight_writer.MPI_POINT_TO_POINT,
}


def _core(thread: Thread) -> int:
    return 2 * thread.process + thread.number


def global_thread(thread: Thread) -> int:
    return Process(thread.process).thread(thread.number)


COMMUNICATOR, SIZE = "NCCL communicator ID", "Message size [bytes]"
REDUCTION, PEER, ROOT = "Reduction operation", "Peer rank", "Root"
_REDUCTIONS = ("Sum", "Product", "Max", "Min", "Avg")

_FIRST_SCHEMA = 0x1000000
# nvToolsExtPayload.h; an enumeration's type is the id of its own schema.
_INT, _UINT64, _SIZE = 5, 18, 22
_REDUCTION_ENUM = _FIRST_SCHEMA + 24


@dataclass(frozen=True, slots=True)
class _Schema:
    """A payload's layout: field to type, in order."""

    id: int
    fields: tuple[tuple[str, int], ...]

    @property
    def offsets(self) -> list[int]:
        sizes = [8 if kind in (_UINT64, _SIZE) else 4 for _, kind in self.fields]
        return [sum(sizes[:index]) for index in range(len(sizes))]

    @property
    def size(self) -> int:
        """The size in bytes, in whole words of eight."""
        return -(-(self.offsets[-1] + 4) // 8) * 8


_MESSAGE = ((COMMUNICATOR, _UINT64), (SIZE, _SIZE))
_REDUCED = (*_MESSAGE, (REDUCTION, _REDUCTION_ENUM))
_SCHEMAS = {
    "ncclAllGather": _Schema(_FIRST_SCHEMA + 4, _MESSAGE),
    "ncclAllReduce": _Schema(_FIRST_SCHEMA + 5, _REDUCED),
    "ncclReduceScatter": _Schema(_FIRST_SCHEMA + 7, _REDUCED),
    "ncclSend": _Schema(_FIRST_SCHEMA + 9, (*_MESSAGE, (PEER, _INT))),
    "ncclRecv": _Schema(_FIRST_SCHEMA + 10, (*_MESSAGE, (PEER, _INT))),
}


def write_schemas(writer: NsightWriter) -> None:
    """Write the layouts of payloads; real exports repeat these rows for each process."""
    for layout in _SCHEMAS.values():
        where = {"domainId": NCCL_DOMAIN, "schemaId": layout.id}
        count = len(layout.fields)
        writer.add(
            nsight_writer.PAYLOAD_SCHEMAS,
            {**where, "type": 1, "numEntries": count, "payloadSize": layout.size},
        )
        writer.add(
            schema.PAYLOAD_ENTRIES,
            {
                **where,
                "idx": list(range(count)),
                "type": [kind for _, kind in layout.fields],
                "name": [name for name, _ in layout.fields],
                # Nsight omits that of the first one.
                "offset": [offset or None for offset in layout.offsets],
            },
        )
    enum = {"domainId": NCCL_DOMAIN, "schemaId": _REDUCTION_ENUM}
    writer.add(
        nsight_writer.PAYLOAD_ENUMS,
        {**enum, "name": "ncclRedOp_t", "numEntries": len(_REDUCTIONS), "size": 4},
    )
    writer.add(
        nsight_writer.PAYLOAD_ENUM_ENTRIES,
        {
            **enum,
            "idx": list(range(len(_REDUCTIONS))),
            "name": _REDUCTIONS,
            "value": list(range(len(_REDUCTIONS))),
            "isFlag": 0,
        },
    )


def binary(name: str, payload: Mapping[str, int]) -> str:
    """Return `binaryData` of the range of an NCCL function.

    It is bytes, which SQLite keeps unchanged in a TEXT column; the writer supports only texts.
    """
    layout = _SCHEMAS[name]
    code = "".join("Q" if kind in (_UINT64, _SIZE) else "i" for _, kind in layout.fields)
    fields = struct.pack(f"<{code}", *(payload[field] for field, _ in layout.fields))
    fields = fields.ljust(layout.size, b"\0")
    size = len(fields)
    header = struct.pack("<IIIIQQ", NCCL_DOMAIN, 0, layout.id, 0, size, 32 + size)
    return cast("str", header + fields)


def text(payload: Mapping[str, int]) -> str:
    """Return `jsonText` of the same: names to values, enumerations by name."""
    shown: dict[str, int | str] = dict(payload)
    if REDUCTION in shown:
        shown[REDUCTION] = _REDUCTIONS[payload[REDUCTION]]
    return json.dumps(shown)


class Records:
    def __init__(self, writer: NsightWriter, machine: Machine) -> None:
        self._writer = writer
        self._machine = machine
        # Exports of 2023 have neither Command Buffer Full in any form nor NCCL's payloads.
        self._is_latest = writer.schema_version == next(reversed(nsight_writer.PRODUCTS))
        self._num_kernels: dict[int, int] = {}
        self._event_ids: dict[Event, int] = {}
        self._num_samples = 0
        program = machine.thread_names[0]
        self._program = _INTERPRETER if program == "python" else (("main", f"/opt/{program}"),)
        # Rows are written together, by table and by their columns.
        self._rows: dict[tuple[str, tuple[str, ...]], list[tuple[Any, ...]]] = defaultdict(list)
        write_machine(writer, machine)

    def write(self, result: Result) -> None:
        if any(getattr(range_.action, "payload", None) for range_ in result.ranges):
            write_schemas(self._writer)
        # Exports have rows roughly in the order in which operations complete, and calls begin.
        for operation in sorted(result.operations, key=attrgetter("end_ns")):
            self._write_operation(operation)
        for call in result.calls:
            self._write_call(call)
        for range_ in result.ranges:
            if range_.action.domain >= 0:
                self._write_range(range_)
        for mark in result.marks:
            row = {"start": mark.time_ns, "end": None, "eventType": schema.NVTX_MARK}
            self._add(schema.NVTX.name, row | self._nvtx(mark))
        self._write_host(result)
        for (table, names), values in self._rows.items():
            columns = zip(*values, strict=True)
            self._writer.add(table, dict(zip(names, map(list, columns), strict=True)))
        write_session(self._writer, result.end_ns + LEAD_NS)

    def _write_operation(self, operation: Operation) -> None:
        work, stream = operation.work, operation.stream
        where = {
            **_place(stream),
            "start": operation.start_ns,
            "end": operation.end_ns,
            "streamId": stream.id,
            "correlationId": operation.call.correlation,
        }
        if isinstance(work, KernelWork | CommunicationWork):
            number = self._num_kernels.get(stream.process, 0) + 1
            self._num_kernels[stream.process] = number
            self._add(schema.KERNEL.name, {**where, "gridId": number, **self._kernel(work.kernel)})
        elif isinstance(work, MemsetWork):
            row = {"value": 0, "bytes": work.bytes, "memKind": nsight_writer.MEM_DEVICE}
            self._add(schema.MEMSET.name, where | row)
        else:
            row = {"bytes": work.bytes, "copyKind": work.kind}
            row |= {"srcKind": work.source_kind, "dstKind": work.destination_kind, "copyCount": 1}
            self._add(schema.MEMCPY.name, where | row | _copy_ends(stream, work))

    def _kernel(self, kernel: Kernel) -> dict[str, Any]:
        return {
            "demangledName": self._writer.string(kernel.name),
            "shortName": self._writer.string(kernel.short_name),
            "registersPerThread": kernel.registers,
            "gridX": kernel.grid_x,
            "gridY": kernel.grid_y,
            "blockX": kernel.block_x,
            "staticSharedMemory": kernel.static_bytes,
            "dynamicSharedMemory": kernel.dynamic_bytes,
            **dict.fromkeys(("gridZ", "blockY", "blockZ", "launchType", "cacheConfig"), 1),
            **dict.fromkeys(("clusterX", "clusterY", "clusterZ"), 0),
            "tensorSizeMinusOneElements": "[]",
        }

    def _write_call(self, call: CallRecord) -> None:
        thread, correlation = global_thread(call.thread), call.correlation
        row = {"start": call.start_ns, "end": call.end_ns, "eventClass": 0, "globalTid": thread}
        row |= {"correlationId": correlation, "nameId": self._writer.string(call.action.api)}
        self._add(schema.API_CALL.name, {**row, "returnValue": 0})
        self._write_synchronization(call)
        if call.stall_ns is None or not self._is_latest:
            return
        name = self._writer.string(schema.COMMAND_BUFFER_FULL_NAME)
        if self._machine.has_overhead_rows:
            self._add(
                schema.DRIVER_OVERHEAD.name,
                {
                    "globalTid": thread,
                    "correlationId": correlation,
                    "start": call.stall_ns[0],
                    "end": call.stall_ns[1],
                    "eventClass": nsight_writer.OVERHEAD_CLASS,
                    "nameId": name,
                    "overheadType": schema.COMMAND_BUFFER_FULL,
                },
            )

    def _write_synchronization(self, call: CallRecord) -> None:
        action = call.action
        row: dict[str, Any] = {}
        if isinstance(action.until, Event):
            row = {
                "syncType": nsight_writer.SYNC_EVENT,
                "eventId": self._event_id(action.until),
                "deviceId": 0,
                "contextId": 1,
                "streamId": schema.NO_ID,
            }
        elif isinstance(action.until, Stream):
            kind = nsight_writer.SYNC_CONTEXT if action.device_wide else nsight_writer.SYNC_STREAM
            stream_id = schema.NO_ID if action.device_wide else action.until.id
            row = {**_place(action.until), "syncType": kind, "streamId": stream_id}
            row |= {"eventId": schema.NO_ID}
        for stream, entry in action.entries:
            if isinstance(entry, Record):
                self._write_event(call, stream, self._event_id(entry.event))
            elif isinstance(entry, Wait) and len(action.entries) == 1:
                row = {
                    **_place(stream),
                    "syncType": nsight_writer.SYNC_STREAM_WAIT_EVENT,
                    "streamId": stream.id,
                    "eventId": self._event_id(entry.event),
                }
        if row:
            row |= {
                "start": call.start_ns,
                "end": call.end_ns,
                "correlationId": call.correlation,
                "globalPid": Process(call.thread.process).id,
            }
            self._add(schema.WAIT.name, row)

    def _write_event(self, call: CallRecord, stream: Stream, number: int) -> None:
        table = schema.EVENT_RECORD.name
        if table in self._machine.host_tables:
            where = {"correlationId": call.correlation, "streamId": stream.id}
            self._add(table, {**_place(stream), **where, "eventId": number, "timestamp": 0})

    def _write_range(self, range_: RangeRecord) -> None:
        row: dict[str, Any] = {
            "start": range_.start_ns,
            "end": None if range_.end_ns < 0 else range_.end_ns,
            "eventType": schema.NVTX_PUSH_POP if range_.nests else schema.NVTX_START_END,
        }
        row |= self._nvtx(range_)
        payload = range_.action.payload if isinstance(range_.action, Push) else None
        if payload is not None and self._is_latest:
            if self._machine.has_json_payloads:
                row["jsonText"] = text(payload)
            else:
                row["binaryData"] = binary(range_.action.name, payload)
        self._add(schema.NVTX.name, row)

    def _nvtx(self, record: RangeRecord | MarkRecord) -> dict[str, int]:
        thread, name = global_thread(record.thread), self._writer.string(record.action.name)
        return {"globalTid": thread, "textId": name, "domainId": record.action.domain}

    def _write_host(self, result: Result) -> None:
        for range_ in result.ranges:
            self._write_host_call(range_)
        for thread, (start, end) in result.lives.items():
            self._write_switches(result, thread, start, end)
            self._write_samples(result, thread, start, end)

    def _write_host_call(self, range_: RangeRecord) -> None:
        domain, name = range_.action.domain, range_.action.name
        row = {"start": range_.start_ns, "end": range_.end_ns}
        row["globalTid"] = global_thread(range_.thread)
        if domain in _MPI_TABLES:
            row |= {} if domain == MPI_CALL else {"commHandle": MPI_WORLD}
            self._add(_MPI_TABLES[domain], {**row, "textId": self._writer.string(name)})
        elif domain == OS_CALL and schema.OS_CALLS in self._machine.host_tables:
            row |= {"eventClass": nsight_writer.OS_CALL_CLASS, "nameId": self._writer.string(name)}
            self._add(schema.OS_CALLS, {**row, "nestingLevel": 0})
        elif domain == PROFILER:
            row |= {"nameId": self._writer.string(name), "overheadType": 3}
            self._add(schema.PROFILER_OVERHEAD, row)
        elif domain == LOADING:
            kind = nsight_writer.LIBRARY_LOADING[name]
            row |= {"nameId": self._writer.string(name), "eventClass": nsight_writer.OVERHEAD_CLASS}
            self._add(schema.DRIVER_OVERHEAD.name, {**row, "overheadType": kind})

    def _write_switches(self, result: Result, thread: Thread, start: int, end: int) -> None:
        if schema.SWITCHES not in self._machine.host_tables:
            return
        slept = [
            (record.start_ns, record.end_ns)
            for record in result.host
            if record.thread == thread and isinstance(record.action, Sleep)
        ]
        times = [(start, 1), *((t, i) for span in slept for i, t in enumerate(span)), (end, 0)]
        for time, is_in in times:
            self._add(
                schema.SWITCHES,
                {
                    "start": time,
                    "cpu": _core(thread),
                    "isSchedIn": is_in,
                    "globalTid": global_thread(thread),
                },
            )

    def _write_samples(self, result: Result, thread: Thread, start: int, end: int) -> None:
        """Write a sample of a thread for each millisecond in which it ran."""
        if schema.SAMPLES not in self._machine.host_tables:
            return
        records = [record for record in result.host if record.thread == thread]
        calls = [call for call in result.calls if call.thread == thread]
        records_starts = [record.start_ns for record in records]
        calls_starts = [call.start_ns for call in calls]
        for time in range(start + _SAMPLED_EVERY_NS, end, _SAMPLED_EVERY_NS):
            chain: tuple[tuple[str, str], ...] = self._program
            record = bisect_right(records_starts, time) - 1
            call = bisect_right(calls_starts, time) - 1
            if record >= 0 and time < records[record].end_ns:
                action = records[record].action
                if isinstance(action, Sleep):
                    continue
                assert action.function is not None
                chain = (action.function, *chain)
            elif call >= 0 and time < calls[call].end_ns:
                chain = (_DRIVER, *chain)
            self._write_sample(thread, time, chain)

    def _write_sample(self, thread: Thread, time: int, chain: tuple[tuple[str, str], ...]) -> None:
        self._num_samples += 1
        self._add(
            schema.SAMPLES,
            {
                "id": self._num_samples,
                "start": time,
                "cpu": _core(thread),
                "threadState": nsight_writer.RUNNING,
                "globalTid": global_thread(thread),
                "cpuCycles": 1,
            },
        )
        for depth, (function, module) in enumerate(chain):
            self._add(
                schema.CALL_CHAINS,
                {
                    "id": self._num_samples,
                    "symbol": self._writer.string(function),
                    "module": self._writer.string(module),
                    "unresolved": 1 if function.startswith("0x") else None,
                    "unwindMethod": _UNWOUND_BY_FRAMES,
                    "stackDepth": depth,
                },
            )

    def _add(self, table: str, row: dict[str, Any]) -> None:
        self._rows[table, tuple(row)].append(tuple(row.values()))

    def _event_id(self, event: Event) -> int:
        return self._event_ids.setdefault(event, len(self._event_ids) + 1)


def _place(stream: Stream) -> dict[str, int]:
    return Process(stream.process).place(stream.device)


def _copy_ends(stream: Stream, work: CopyWork) -> dict[str, Any]:
    is_peer = work.source is not None and work.destination is not None
    contexts = {"srcContextId": stream.device + 1, "dstContextId": (work.destination or 0) + 1}
    devices = {"srcDeviceId": work.source, "dstDeviceId": work.destination}
    return {**devices, **(contexts if is_peer else {})}
