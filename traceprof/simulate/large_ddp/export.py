"""A simulated run as the rows that Nsight Systems would export of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.simulate.kernels import KERNELS
from traceprof.simulate.large_ddp.programme import Call, Phase
from traceprof.simulate.machine import (
    DEFAULT_DOMAIN,
    NCCL_DOMAIN,
    TRACEPROF_DOMAIN,
    Rank,
    write_metadata,
    write_process,
)
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.simulate.large_ddp.programme import Programme
    from traceprof.simulate.large_ddp.timeline import StepTimeline
    from traceprof.trace.nsight.writer import NsightWriter

_COMPUTE_STREAM = 7
_NCCL_STREAM = 20

_API_NAMES = {
    Call.KERNEL: "cudaLaunchKernel_v7000",
    Call.ALL_REDUCE: "cudaLaunchKernelExC_v11060",
    Call.COPY_TO_DEVICE: "cudaMemcpyAsync_v3020",
    Call.COPY_TO_HOST: "cudaMemcpyAsync_v3020",
    Call.MEMSET: "cudaMemsetAsync_v3020",
    Call.RECORD_EVENT: "cudaEventRecord_v3020",
    Call.WAIT_EVENT: "cudaStreamWaitEvent_v3020",
    Call.SYNCHRONIZE: "cudaStreamSynchronize_v3020",
}
_COPY_KINDS = {Call.COPY_TO_DEVICE: 1, Call.COPY_TO_HOST: 2}

_PHASE_RANGES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}
_KERNELS_PER_OPERATOR = 4
# How much earlier than its first call a range begins, and how much later than its last it ends.
_PHASE_LEAD_NS, _PHASE_LAG_NS = 1_300, 900
_OPERATOR_LEAD_NS, _OPERATOR_LAG_NS = 700, 400
_NCCL_LEAD_NS, _NCCL_LAG_NS = 500, 300


class RunExport:
    """Writes a run: first the machine, then step after step, then the duration."""

    def __init__(self, writer: NsightWriter, num_ranks: int, command: str) -> None:
        """Write what does not depend on time.

        Args:
            writer: the open export.
            num_ranks: of the run.
            command: the command line that makes this run again.
        """
        self._writer = writer
        self._ranks = [Rank(number) for number in range(num_ranks)]
        self._num_calls = 0
        self._num_kernels = 0
        self._num_events = 0
        self._kernel_columns = _kernel_columns(writer)
        self._operator_ids = np.array([writer.string(kernel.operator) for kernel in KERNELS])
        self._api_ids = np.array([writer.string(_API_NAMES[call]) for call in Call])
        write_metadata(writer, command)
        for rank in self._ranks:
            write_process(writer, rank)

    def add(self, step: StepTimeline) -> None:
        """Write one step, rank after rank; the steps come in order."""
        programme = step.programme
        correlation = np.arange(len(programme)) + self._num_calls + 1
        events = np.cumsum(programme.call == Call.RECORD_EVENT) + self._num_events
        for rank in self._ranks:
            self._write_kernels(rank, step, correlation)
            self._write_copies(rank, step, correlation)
            self._write_calls(rank, step, correlation)
            self._write_synchronizations(rank, step, correlation, events)
            self._write_ranges(rank, step)
        # Every process counts for itself, and all have made the same calls.
        self._num_calls += len(programme)
        self._num_kernels += len(programme.computes) + len(programme.all_reduces)
        self._num_events = int(events[-1])

    def finish(self, end_ns: int) -> None:
        """Write how long the session took."""
        self._writer.add(
            schema.ANALYSIS_DETAILS,
            {"globalVid": schema.VM_ID, "duration": end_ns, "startTime": 0, "stopTime": end_ns},
        )

    def _write_kernels(self, rank: Rank, step: StepTimeline, correlation: Int64) -> None:
        programme = step.programme
        launched = np.concatenate((programme.computes, programme.all_reduces))
        # Exports hold rows about as operations complete.
        launched = launched[np.argsort(step.end_ns[rank.number, launched], kind="stable")]
        kernel = programme.kernel[launched]
        is_all_reduce = programme.call[launched] == Call.ALL_REDUCE
        self._writer.add(
            schema.KERNEL.name,
            {
                **rank.device,
                "start": step.start_ns[rank.number, launched],
                "end": step.end_ns[rank.number, launched],
                "streamId": np.where(is_all_reduce, _NCCL_STREAM, _COMPUTE_STREAM),
                "correlationId": correlation[launched],
                "gridId": self._num_kernels + 1 + np.arange(len(launched)),
                **{name: values[kernel] for name, values in self._kernel_columns.items()},
                "gridZ": 1,
                "blockY": 1,
                "blockZ": 1,
                "launchType": 1,
                "cacheConfig": 1,
                "clusterX": 0,
                "clusterY": 0,
                "clusterZ": 0,
                "tensorSizeMinusOneElements": "[]",
            },
        )

    def _write_copies(self, rank: Rank, step: StepTimeline, correlation: Int64) -> None:
        for call in (Call.COPY_TO_DEVICE, Call.MEMSET, Call.COPY_TO_HOST):
            where = step.programme.where(call)
            columns = {
                **rank.device,
                "start": step.start_ns[rank.number, where],
                "end": step.end_ns[rank.number, where],
                "streamId": _COMPUTE_STREAM,
                "correlationId": correlation[where],
                "bytes": step.programme.size_bytes[where],
            }
            if call is Call.MEMSET:
                columns |= {"value": 0, "memKind": schema.MEM_DEVICE}
                self._writer.add(schema.MEMSET.name, columns)
                continue
            kinds = (schema.MEM_PINNED, schema.MEM_DEVICE)
            source, destination = kinds if call is Call.COPY_TO_DEVICE else kinds[::-1]
            columns |= {
                "copyKind": _COPY_KINDS[call],
                "srcKind": source,
                "dstKind": destination,
                "copyCount": 1,
            }
            self._writer.add(schema.MEMCPY.name, columns)

    def _write_calls(self, rank: Rank, step: StepTimeline, correlation: Int64) -> None:
        programme = step.programme
        self._writer.add(
            schema.API_CALL.name,
            {
                "start": step.call_start_ns[rank.number],
                "end": step.call_end_ns[rank.number],
                "eventClass": 0,
                "globalTid": _threads(rank, programme),
                "correlationId": correlation,
                "nameId": self._api_ids[programme.call],
                "returnValue": 0,
            },
        )

    def _write_synchronizations(
        self, rank: Rank, step: StepTimeline, correlation: Int64, events: Int64
    ) -> None:
        programme = step.programme
        waits, last = programme.where(Call.WAIT_EVENT), programme.where(Call.SYNCHRONIZE)
        # The last wait is the compute stream's, for NCCL's; the others are the other way about.
        streams = np.full(len(waits), _NCCL_STREAM)
        streams[-1] = _COMPUTE_STREAM
        for where, kind, stream, event in (
            (waits, schema.SYNC_STREAM_WAIT_EVENT, streams, events[waits]),
            (last, schema.SYNC_STREAM, _COMPUTE_STREAM, schema.NO_ID),
        ):
            self._writer.add(
                schema.SYNCHRONIZATION,
                {
                    **rank.device,
                    "start": step.call_start_ns[rank.number, where],
                    "end": step.call_end_ns[rank.number, where],
                    "streamId": stream,
                    "correlationId": correlation[where],
                    "syncType": kind,
                    "eventId": event,
                },
            )

    def _write_ranges(self, rank: Rank, step: StepTimeline) -> None:
        programme, writer = step.programme, self._writer
        start, end = step.call_start_ns[rank.number], step.call_end_ns[rank.number]
        first, last = _operator_ranges(programme)
        self._add_ranges(
            DEFAULT_DOMAIN,
            start[first] - _OPERATOR_LEAD_NS,
            end[last] + _OPERATOR_LAG_NS,
            _threads(rank, programme)[first],
            self._operator_ids[programme.kernel[first]],
        )
        reduces = programme.all_reduces
        self._add_ranges(
            NCCL_DOMAIN,
            start[reduces] - _NCCL_LEAD_NS,
            end[reduces] + _NCCL_LAG_NS,
            rank.autograd_thread,
            self._operator_ids[programme.kernel[reduces]],
        )
        edges = [np.flatnonzero(programme.phase == phase)[[0, -1]] for phase in _PHASE_RANGES]
        first, last = np.array(edges).T
        self._add_ranges(
            TRACEPROF_DOMAIN,
            start[first] - _PHASE_LEAD_NS,
            end[last] + _PHASE_LAG_NS,
            rank.main_thread,
            np.array([writer.string(name) for name in _PHASE_RANGES.values()]),
        )
        self._add_ranges(
            TRACEPROF_DOMAIN,
            step.range_start_ns[rank.number, np.newaxis],
            step.range_end_ns[rank.number, np.newaxis],
            rank.main_thread,
            np.array([writer.string(labels.step(step.number))]),
        )

    def _add_ranges(
        self, domain: int, start: Int64, end: Int64, thread: Int64 | int, text_id: Int64
    ) -> None:
        self._writer.add(
            schema.NVTX.name,
            {
                "start": start,
                "end": end,
                "eventType": schema.NVTX_PUSH_POP,
                "globalTid": thread,
                "textId": text_id,
                "domainId": domain,
            },
        )


def _kernel_columns(writer: NsightWriter) -> dict[str, Int64]:
    """Return the columns that tell one kernel from another, by index into `KERNELS`."""
    columns = {
        "demangledName": [writer.string(kernel.name) for kernel in KERNELS],
        "shortName": [writer.string(kernel.short_name) for kernel in KERNELS],
        "registersPerThread": [kernel.registers for kernel in KERNELS],
        "gridX": [kernel.grid_x for kernel in KERNELS],
        "gridY": [kernel.grid_y for kernel in KERNELS],
        "blockX": [kernel.block_x for kernel in KERNELS],
        "staticSharedMemory": [kernel.static_bytes for kernel in KERNELS],
        "dynamicSharedMemory": [kernel.dynamic_bytes for kernel in KERNELS],
    }
    return {name: np.array(values, np.int64) for name, values in columns.items()}


def _threads(rank: Rank, programme: Programme) -> Int64:
    """Return the globalTid that makes each call."""
    backward = programme.phase == Phase.BACKWARD
    return np.where(backward, rank.autograd_thread, rank.main_thread)


def _operator_ranges(programme: Programme) -> tuple[Int64, Int64]:
    """Return the first and the last call in each range of an operator, which launches kernels."""
    first, last = [], []
    for phase in _PHASE_RANGES:
        launched = programme.computes[programme.phase[programme.computes] == phase]
        starts = np.arange(0, len(launched), _KERNELS_PER_OPERATOR)
        first.append(launched[starts])
        last.append(launched[np.minimum(starts + _KERNELS_PER_OPERATOR, len(launched)) - 1])
    return np.concatenate(first), np.concatenate(last)
