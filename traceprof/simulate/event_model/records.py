"""A simulated run as the rows that Nsight Systems would export of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceprof import labels
from traceprof.simulate import payloads
from traceprof.simulate.event_model.actions import (
    CommunicationWork,
    CopyWork,
    Event,
    KernelWork,
    MemsetWork,
    Push,
    Record,
    Stream,
    Wait,
)
from traceprof.simulate.machine import (
    DOMAINS,
    HOSTNAME,
    NCCL_DOMAIN,
    SESSION_START_NS,
    TRACEPROF_DOMAIN,
    Rank,
    write_metadata,
)
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.simulate.boards import Board
    from traceprof.simulate.event_model.actions import CallRecord, Thread
    from traceprof.simulate.event_model.engine import RangeRecord, Result
    from traceprof.simulate.event_model.gpu import Operation
    from traceprof.trace.nsight.writer import NsightWriter

_LEAD_NS = 1_000_000  # from the session's start to the first event


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run took place.

    Attributes:
        command: the command line that makes this run again.
        board: the kind of all GPUs, None where there are none.
        devices: of each process, its CUDA ordinals.
        thread_names: of the threads of each process, the main one first.
        has_overhead_rows: False where the capture had Command Buffer Full records but the exporter
            dropped them, as those of 2024.5 to 2025.1 did: only their name is left.
        has_json_payloads: NCCL's payloads as JSON text instead of binary data.
        processes: those that the export is of; all where None.
        hostname: of the machine.
        session_start_ns: what its clock showed at time 0, in ns since 1970.
        num_cores: of the machine, None where the capture does not have it.
    """

    command: str
    board: Board | None
    devices: tuple[tuple[int, ...], ...]
    thread_names: tuple[str, ...] = ("python", "pt_autograd_0")
    has_overhead_rows: bool = True
    has_json_payloads: bool = False
    processes: tuple[int, ...] | None = None
    hostname: str = HOSTNAME
    session_start_ns: int = SESSION_START_NS
    num_cores: int | None = None


class Records:
    """Writes one run."""

    def __init__(self, writer: NsightWriter, machine: Machine) -> None:
        """Write what does not depend on time."""
        self._writer = writer
        self._machine = machine
        # Exports of 2023 have neither Command Buffer Full in any form nor NCCL's payloads.
        self._is_latest = writer.schema_version == next(reversed(schema.PRODUCTS))
        self._num_kernels: dict[int, int] = {}
        self._event_ids: dict[Event, int] = {}
        # Rows are written together, by table and by the columns that they give.
        self._rows: dict[tuple[str, tuple[str, ...]], list[tuple[Any, ...]]] = defaultdict(list)
        write_metadata(writer, machine.command, machine.hostname, machine.session_start_ns)
        if machine.num_cores is not None:
            writer.add(
                schema.SYSTEM_ENVIRONMENT,
                {
                    "globalVid": schema.VM_ID,
                    "devStateName": "Local (CLI)",
                    "name": "CpuCores",
                    "nameEnum": 1,
                    "value": str(machine.num_cores),
                },
            )
        for process, devices in enumerate(machine.devices):
            if machine.processes is None or process in machine.processes:
                self._write_process(Rank(process), devices)

    def write(self, result: Result) -> None:
        """Write what happened."""
        if any(range_.action.domain == NCCL_DOMAIN for range_ in result.ranges):
            payloads.write_schemas(self._writer)
        # Exports hold rows about as operations complete, and as calls begin.
        for operation in sorted(result.operations, key=lambda each: each.end_ns):
            self._write_operation(operation)
        for call in result.calls:
            self._write_call(call)
        for each in result.ranges:
            self._write_range(each)
        for (table, names), rows in self._rows.items():
            columns = zip(*rows, strict=True)
            self._writer.add(table, dict(zip(names, map(list, columns), strict=True)))
        self._writer.add(
            schema.ANALYSIS_DETAILS,
            {
                "globalVid": schema.VM_ID,
                "duration": result.end_ns + _LEAD_NS,
                "startTime": 0,
                "stopTime": result.end_ns + _LEAD_NS,
            },
        )

    def _write_process(self, rank: Rank, devices: Iterable[int]) -> None:
        writer, names = self._writer, self._machine.thread_names
        writer.add(schema.PROCESSES, {"globalPid": rank.process, "pid": rank.pid, "name": "python"})
        writer.add(
            schema.THREAD_NAMES,
            {
                "nameId": [writer.string(name) for name in names],
                "priority": 20,
                "globalTid": [_thread(rank, number) for number in range(len(names))],
            },
        )
        if self._machine.board is not None:
            for device in devices:
                # Several machines have GPUs of one ordinal, but not the same ones.
                serial = device if self._machine.processes is None else rank.number
                _write_board(writer, self._machine.board, rank, device, serial)
        domains = DOMAINS if devices else {TRACEPROF_DOMAIN: labels.DOMAIN}
        writer.add(
            schema.NVTX.name,
            {
                "start": [_LEAD_NS] * len(domains),
                "eventType": schema.NVTX_DOMAIN,
                "text": list(domains.values()),
                "globalTid": rank.main_thread,
                "domainId": list(domains),
            },
        )

    def _write_operation(self, operation: Operation) -> None:
        work = operation.work
        row: dict[str, Any] = {
            **_place(operation.stream),
            "start": operation.start_ns,
            "end": operation.end_ns,
            "streamId": operation.stream.id,
            "correlationId": operation.call.correlation,
        }
        if isinstance(work, KernelWork | CommunicationWork):
            row |= self._kernel_columns(operation.stream, work)
            self._add(schema.KERNEL.name, row)
        elif isinstance(work, MemsetWork):
            row |= {"value": 0, "bytes": work.bytes, "memKind": schema.MEM_DEVICE}
            self._add(schema.MEMSET.name, row)
        else:
            self._add(schema.MEMCPY.name, row | _copy_columns(operation.stream, work))

    def _kernel_columns(
        self, stream: Stream, work: KernelWork | CommunicationWork
    ) -> dict[str, Any]:
        kernel, writer = work.kernel, self._writer
        number = self._num_kernels[stream.process] = self._num_kernels.get(stream.process, 0) + 1
        return {
            "demangledName": writer.string(kernel.name),
            "shortName": writer.string(kernel.short_name),
            "launchType": 1,
            "cacheConfig": 1,
            "registersPerThread": kernel.registers,
            "gridX": kernel.grid_x,
            "gridY": kernel.grid_y,
            "gridZ": 1,
            "blockX": kernel.block_x,
            "blockY": 1,
            "blockZ": 1,
            "staticSharedMemory": kernel.static_bytes,
            "dynamicSharedMemory": kernel.dynamic_bytes,
            "gridId": number,
            "clusterX": 0,
            "clusterY": 0,
            "clusterZ": 0,
            "tensorSizeMinusOneElements": "[]",
        }

    def _write_call(self, call: CallRecord) -> None:
        where = {
            "globalTid": _global_thread(call.thread),
            "correlationId": call.correlation,
        }
        self._add(
            schema.API_CALL.name,
            {
                **where,
                "start": call.start_ns,
                "end": call.end_ns,
                "eventClass": 0,
                "nameId": self._writer.string(call.action.api),
                "returnValue": 0,
            },
        )
        self._write_synchronization(call)
        if call.stall_ns is None or not self._is_latest:
            return
        name = self._writer.string(schema.COMMAND_BUFFER_FULL_NAME)
        if self._machine.has_overhead_rows:
            self._add(
                schema.OVERHEAD,
                {
                    **where,
                    "start": call.stall_ns[0],
                    "end": call.stall_ns[1],
                    "eventClass": schema.OVERHEAD_CLASS,
                    "nameId": name,
                    "overheadType": schema.COMMAND_BUFFER_FULL,
                },
            )

    def _write_synchronization(self, call: CallRecord) -> None:
        action = call.action
        row: dict[str, Any] = {}
        if isinstance(action.until, Event):
            row = {
                "syncType": schema.SYNC_EVENT,
                "eventId": self._event_id(action.until),
                "deviceId": 0,
                "contextId": 1,
                "streamId": schema.NO_EVENT,
            }
        elif isinstance(action.until, Stream):
            kind = schema.SYNC_CONTEXT if action.device_wide else schema.SYNC_STREAM
            stream_id = schema.NO_EVENT if action.device_wide else action.until.id
            row = {**_place(action.until), "syncType": kind, "streamId": stream_id}
            row |= {"eventId": schema.NO_EVENT}
        for stream, entry in action.entries:
            if isinstance(entry, Record):
                self._event_id(entry.event)
            elif isinstance(entry, Wait) and len(action.entries) == 1:
                row = {
                    **_place(stream),
                    "syncType": schema.SYNC_STREAM_WAIT_EVENT,
                    "streamId": stream.id,
                    "eventId": self._event_id(entry.event),
                }
        if row:
            row |= {
                "start": call.start_ns,
                "end": call.end_ns,
                "correlationId": call.correlation,
                "globalPid": Rank(call.thread.process).process,
            }
            self._add(schema.SYNCHRONIZATION, row)

    def _write_range(self, each: RangeRecord) -> None:
        row: dict[str, Any] = {
            "start": each.start_ns,
            "end": each.end_ns if each.end_ns >= 0 else None,
            "eventType": schema.NVTX_PUSH_POP if each.nests else schema.NVTX_START_END,
            "globalTid": _global_thread(each.thread),
            "textId": self._writer.string(each.action.name),
            "domainId": each.action.domain,
        }
        payload = each.action.payload if isinstance(each.action, Push) else None
        if payload is not None and self._is_latest:
            if self._machine.has_json_payloads:
                row["jsonText"] = payloads.text(payload)
            else:
                row["binaryData"] = payloads.binary(each.action.name, payload)
        self._add(schema.NVTX.name, row)

    def _add(self, table: str, row: dict[str, Any]) -> None:
        self._rows[table, tuple(row)].append(tuple(row.values()))

    def _event_id(self, event: Event) -> int:
        return self._event_ids.setdefault(event, len(self._event_ids) + 1)


def _thread(rank: Rank, number: int) -> int:
    return rank.main_thread if number == 0 else rank.autograd_thread + number - 1


def _global_thread(thread: Thread) -> int:
    return _thread(Rank(thread.process), thread.number)


def _place(stream: Stream) -> dict[str, int]:
    """Return the columns that say where a GPU operation ran."""
    return {
        "globalPid": Rank(stream.process).process,
        "deviceId": stream.device,
        "contextId": stream.device + 1,
        "greenContextId": 0,
    }


def _copy_columns(stream: Stream, work: CopyWork) -> dict[str, Any]:
    is_peer = work.source is not None and work.destination is not None
    contexts = {"srcContextId": stream.device + 1, "dstContextId": (work.destination or 0) + 1}
    return {
        "bytes": work.bytes,
        "copyKind": work.kind,
        "srcKind": work.source_kind,
        "dstKind": work.destination_kind,
        "srcDeviceId": work.source,
        "dstDeviceId": work.destination,
        **(contexts if is_peer else {}),
        "copyCount": 1,
    }


def _write_board(writer: NsightWriter, board: Board, rank: Rank, device: int, serial: int) -> None:
    uuid = f"00000000-0000-0000-0000-{serial:012x}"
    major, minor = board.compute_capability
    writer.add(
        schema.GPU_INFO,
        {
            "vmId": schema.VM_ID,
            "id": device,
            "name": board.name,
            "busLocation": f"0000:{device + 1:02x}:00.0",
            "isDiscrete": 1,
            "totalMemory": board.memory_bytes,
            "memoryBandwidth": board.memory_bytes_per_s,
            "clockRate": board.clock_hz,
            "smCount": board.num_multiprocessors,
            "uuid": uuid,
            "chipName": board.chip,
            "cuDevice": device,
            "computeMajor": major,
            "computeMinor": minor,
        },
    )
    writer.add(
        schema.CUDA_DEVICES,
        {
            "gpuId": device,
            "cudaId": device,
            "pid": rank.pid,
            "uuid": uuid,
            "numMultiprocessors": board.num_multiprocessors,
        },
    )
