"""The result of the event model as the rows that Nsight Systems would export."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sample_traces.simulator import payloads, rows, schema_layouts
from sample_traces.simulator.event_model.actions import (
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
from sample_traces.simulator.event_model.host_tables import HostTables, global_thread
from sample_traces.simulator.machine import (
    LEAD_NS,
    NCCL_DOMAIN,
    Process,
    write_machine,
    write_session,
)
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from sample_traces.simulator.event_model.actions import CallRecord
    from sample_traces.simulator.event_model.engine import RangeRecord, Result
    from sample_traces.simulator.event_model.gpu import Operation
    from sample_traces.simulator.machine import Machine
    from sample_traces.simulator.nsight_writer import NsightWriter


class Records:
    """Writes one run."""

    def __init__(self, writer: NsightWriter, machine: Machine) -> None:
        """Write the tables that do not depend on time."""
        self._writer = writer
        self._machine = machine
        # Exports of 2023 have neither Command Buffer Full in any form nor NCCL's payloads.
        self._is_latest = writer.schema_version == next(reversed(schema_layouts.PRODUCTS))
        self._num_kernels: dict[int, int] = {}
        self._event_ids: dict[Event, int] = {}
        # Rows are written together, by table and by their columns.
        self._rows: dict[tuple[str, tuple[str, ...]], list[tuple[Any, ...]]] = defaultdict(list)
        write_machine(writer, machine)

    def write(self, result: Result) -> None:
        """Write a run."""
        if any(range_.action.domain == NCCL_DOMAIN for range_ in result.ranges):
            payloads.write_schemas(self._writer)
        # Exports have rows roughly in the order in which operations complete, and calls begin.
        for operation in sorted(result.operations, key=attrgetter("end_ns")):
            self._write_operation(operation)
        for call in result.calls:
            self._write_call(call)
        for range_ in result.ranges:
            if range_.action.domain >= 0:
                self._write_range(range_)
        for mark in result.marks:
            name = self._writer.string(mark.action.name)
            thread = global_thread(mark.thread)
            self._add(*rows.mark(thread, mark.time_ns, mark.action.domain, name))
        HostTables(self._machine, self._writer.string, self._add).write(result)
        for (table, names), values in self._rows.items():
            columns = zip(*values, strict=True)
            self._writer.add(table, dict(zip(names, map(list, columns), strict=True)))
        write_session(self._writer, result.end_ns + LEAD_NS)

    def _write_operation(self, operation: Operation) -> None:
        work, stream = operation.work, operation.stream
        where = rows.operation(
            _place(stream),
            operation.start_ns,
            operation.end_ns,
            stream.id,
            operation.call.correlation,
        )
        if isinstance(work, KernelWork | CommunicationWork):
            number = self._num_kernels.get(stream.process, 0) + 1
            self._num_kernels[stream.process] = number
            columns = rows.kernel_columns(self._writer, [work.kernel])
            columns_of_one = {name: values[0] for name, values in columns.items()}
            self._add(*rows.kernel(where, number, columns_of_one))
        elif isinstance(work, MemsetWork):
            self._add(*rows.memset(where, work.bytes))
        else:
            kinds = work.source_kind, work.destination_kind
            table, row = rows.copy(where, work.kind, work.bytes, *kinds)
            self._add(table, row | _copy_ends(stream, work))

    def _write_call(self, call: CallRecord) -> None:
        thread, correlation = global_thread(call.thread), call.correlation
        name = self._writer.string(call.action.api)
        self._add(*rows.call(thread, call.start_ns, call.end_ns, correlation, name))
        self._write_synchronization(call)
        if call.stall_ns is None or not self._is_latest:
            return
        name = self._writer.string(schema.COMMAND_BUFFER_FULL_NAME)
        if self._machine.has_overhead_rows:
            self._add(
                schema.OVERHEAD,
                {
                    "globalTid": thread,
                    "correlationId": correlation,
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
                "streamId": schema.NO_ID,
            }
        elif isinstance(action.until, Stream):
            kind = schema.SYNC_CONTEXT if action.device_wide else schema.SYNC_STREAM
            stream_id = schema.NO_ID if action.device_wide else action.until.id
            row = {**_place(action.until), "syncType": kind, "streamId": stream_id}
            row |= {"eventId": schema.NO_ID}
        for stream, entry in action.entries:
            if isinstance(entry, Record):
                self._write_event(call, stream, self._event_id(entry.event))
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
                "globalPid": Process(call.thread.process).id,
            }
            self._add(schema.SYNCHRONIZATION, row)

    def _write_event(self, call: CallRecord, stream: Stream, number: int) -> None:
        table = schema.EVENT_RECORD.name
        if table in self._machine.host_tables:
            where = {"correlationId": call.correlation, "streamId": stream.id}
            self._add(table, {**_place(stream), **where, "eventId": number, "timestamp": 0})

    def _write_range(self, range_: RangeRecord) -> None:
        table, row = rows.pushed_range(
            global_thread(range_.thread),
            range_.start_ns,
            range_.end_ns,
            range_.action.domain,
            self._writer.string(range_.action.name),
        )
        if range_.end_ns < 0:
            row["end"] = None
        if not range_.nests:
            row["eventType"] = schema.NVTX_START_END
        payload = range_.action.payload if isinstance(range_.action, Push) else None
        if payload is not None and self._is_latest:
            if self._machine.has_json_payloads:
                row["jsonText"] = payloads.text(payload)
            else:
                row["binaryData"] = payloads.binary(range_.action.name, payload)
        self._add(table, row)

    def _add(self, table: str, row: dict[str, Any]) -> None:
        self._rows[table, tuple(row)].append(tuple(row.values()))

    def _event_id(self, event: Event) -> int:
        return self._event_ids.setdefault(event, len(self._event_ids) + 1)


def _place(stream: Stream) -> dict[str, int]:
    return Process(stream.process).place(stream.device)


def _copy_ends(stream: Stream, work: CopyWork) -> dict[str, Any]:
    """Return the columns of the two devices of a peer copy."""
    is_peer = work.source is not None and work.destination is not None
    contexts = {"srcContextId": stream.device + 1, "dstContextId": (work.destination or 0) + 1}
    devices = {"srcDeviceId": work.source, "dstDeviceId": work.destination}
    return {**devices, **(contexts if is_peer else {})}
