"""A large run as the rows that Nsight Systems would export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator import rows
from sample_traces.simulator.kernels import KERNELS
from sample_traces.simulator.large_ddp.program import CallKind, Phase
from sample_traces.simulator.machine import (
    A100,
    DEFAULT_DOMAIN,
    NCCL_DOMAIN,
    TRACEPROF_DOMAIN,
    Machine,
    Process,
    write_machine,
    write_session,
)
from traceprof import labels
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from sample_traces.simulator.large_ddp.program import Program
    from sample_traces.simulator.large_ddp.timeline import StepTimeline
    from sample_traces.simulator.nsight_writer import NsightWriter
    from traceprof.intervals import Int64

_COMPUTE_STREAM = 7
_NCCL_STREAM = 20

_API_NAMES = {
    CallKind.KERNEL: "cudaLaunchKernel_v7000",
    CallKind.ALL_REDUCE: "cudaLaunchKernelExC_v11060",
    CallKind.COPY_TO_DEVICE: "cudaMemcpyAsync_v3020",
    CallKind.COPY_TO_HOST: "cudaMemcpyAsync_v3020",
    CallKind.MEMSET: "cudaMemsetAsync_v3020",
    CallKind.RECORD_EVENT: "cudaEventRecord_v3020",
    CallKind.WAIT_EVENT: "cudaStreamWaitEvent_v3020",
    CallKind.SYNCHRONIZE: "cudaStreamSynchronize_v3020",
}
_COPY_KINDS = {CallKind.COPY_TO_DEVICE: 1, CallKind.COPY_TO_HOST: 2}

_PHASE_RANGES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}
_KERNELS_PER_OPERATOR = 4
# A range begins so much before its first call, and ends so much after its last one.
_PHASE_LEAD_NS, _PHASE_LAG_NS = 1_300, 900
_OPERATOR_LEAD_NS, _OPERATOR_LAG_NS = 700, 400
_NCCL_LEAD_NS, _NCCL_LAG_NS = 500, 300


class RunExport:
    """Writes a run: first the machine, then step after step, then the duration."""

    def __init__(self, writer: NsightWriter, num_ranks: int, command: str) -> None:
        """Write the tables that do not depend on time.

        Args:
            writer: the open export.
            num_ranks: of the run.
            command: the command line that reproduces this run.
        """
        self._writer = writer
        self._ranks = [Process(number) for number in range(num_ranks)]
        self._num_calls = 0
        self._num_kernels = 0
        self._num_events = 0
        columns = rows.kernel_columns(writer, KERNELS)
        self._kernel_columns = {name: np.array(ids, np.int64) for name, ids in columns.items()}
        self._operator_ids = np.array([writer.string(kernel.operator) for kernel in KERNELS])
        self._api_ids = np.array([writer.string(_API_NAMES[call]) for call in CallKind])
        write_machine(writer, Machine(command, A100, tuple((n,) for n in range(num_ranks))))

    def add(self, step: StepTimeline) -> None:
        """Write one step, rank after rank; the steps come in order."""
        program = step.program
        correlation = np.arange(len(program)) + self._num_calls + 1
        events = np.cumsum(program.call == CallKind.RECORD_EVENT) + self._num_events
        for rank in self._ranks:
            self._write_kernels(rank, step, correlation)
            self._write_copies(rank, step, correlation)
            self._write_calls(rank, step, correlation)
            self._write_synchronizations(rank, step, correlation, events)
            self._write_ranges(rank, step)
        # Every process counts separately, and all have made the same calls.
        self._num_calls += len(program)
        self._num_kernels += len(program.computes) + len(program.all_reduces)
        self._num_events = int(events[-1])

    def finish(self, end_ns: int) -> None:
        """Write the duration of the session."""
        write_session(self._writer, end_ns)

    def _write_kernels(self, rank: Process, step: StepTimeline, correlation: Int64) -> None:
        program = step.program
        launched = np.concatenate((program.computes, program.all_reduces))
        # Exports have rows roughly in the order in which operations complete.
        launched = launched[np.argsort(step.end_ns[rank.number, launched], kind="stable")]
        kernel = program.kernel[launched]
        is_all_reduce = program.call[launched] == CallKind.ALL_REDUCE
        where = rows.operation(
            rank.place(rank.number),
            step.start_ns[rank.number, launched],
            step.end_ns[rank.number, launched],
            np.where(is_all_reduce, _NCCL_STREAM, _COMPUTE_STREAM),
            correlation[launched],
        )
        number = self._num_kernels + 1 + np.arange(len(launched))
        columns = {name: values[kernel] for name, values in self._kernel_columns.items()}
        self._writer.add(*rows.kernel(where, number, columns))

    def _write_copies(self, rank: Process, step: StepTimeline, correlation: Int64) -> None:
        for call in (CallKind.COPY_TO_DEVICE, CallKind.MEMSET, CallKind.COPY_TO_HOST):
            at = step.program.where(call)
            place, size = rank.place(rank.number), step.program.size_bytes[at]
            start, end = step.start_ns[rank.number, at], step.end_ns[rank.number, at]
            where = rows.operation(place, start, end, _COMPUTE_STREAM, correlation[at])
            if call is CallKind.MEMSET:
                self._writer.add(*rows.memset(where, size))
                continue
            kinds = (schema.MEM_PINNED, schema.MEM_DEVICE)
            source, destination = kinds if call is CallKind.COPY_TO_DEVICE else kinds[::-1]
            self._writer.add(*rows.copy(where, _COPY_KINDS[call], size, source, destination))

    def _write_calls(self, rank: Process, step: StepTimeline, correlation: Int64) -> None:
        program = step.program
        start, end = step.call_start_ns[rank.number], step.call_end_ns[rank.number]
        name = self._api_ids[program.call]
        self._writer.add(*rows.call(_threads(rank, program), start, end, correlation, name))

    def _write_synchronizations(
        self, rank: Process, step: StepTimeline, correlation: Int64, events: Int64
    ) -> None:
        program = step.program
        waits, last = program.where(CallKind.WAIT_EVENT), program.where(CallKind.SYNCHRONIZE)
        # In the last wait the compute stream waits for NCCL's; in the others NCCL's waits.
        streams = np.full(len(waits), _NCCL_STREAM)
        streams[-1] = _COMPUTE_STREAM
        for where, kind, stream, event in (
            (waits, schema.SYNC_STREAM_WAIT_EVENT, streams, events[waits]),
            (last, schema.SYNC_STREAM, _COMPUTE_STREAM, schema.NO_ID),
        ):
            self._writer.add(
                schema.SYNCHRONIZATION,
                {
                    **rank.place(rank.number),
                    "start": step.call_start_ns[rank.number, where],
                    "end": step.call_end_ns[rank.number, where],
                    "streamId": stream,
                    "correlationId": correlation[where],
                    "syncType": kind,
                    "eventId": event,
                },
            )

    def _write_ranges(self, rank: Process, step: StepTimeline) -> None:
        program, writer = step.program, self._writer
        start, end = step.call_start_ns[rank.number], step.call_end_ns[rank.number]
        first, last = _operator_ranges(program)
        self._add_ranges(
            DEFAULT_DOMAIN,
            start[first] - _OPERATOR_LEAD_NS,
            end[last] + _OPERATOR_LAG_NS,
            _threads(rank, program)[first],
            self._operator_ids[program.kernel[first]],
        )
        reduces = program.all_reduces
        self._add_ranges(
            NCCL_DOMAIN,
            start[reduces] - _NCCL_LEAD_NS,
            end[reduces] + _NCCL_LAG_NS,
            rank.thread(1),
            self._operator_ids[program.kernel[reduces]],
        )
        edges = [np.flatnonzero(program.phase == phase)[[0, -1]] for phase in _PHASE_RANGES]
        first, last = np.array(edges).T
        self._add_ranges(
            TRACEPROF_DOMAIN,
            start[first] - _PHASE_LEAD_NS,
            end[last] + _PHASE_LAG_NS,
            rank.thread(0),
            np.array([writer.string(name) for name in _PHASE_RANGES.values()]),
        )
        self._add_ranges(
            TRACEPROF_DOMAIN,
            step.range_start_ns[rank.number, np.newaxis],
            step.range_end_ns[rank.number, np.newaxis],
            rank.thread(0),
            np.array([writer.string(labels.step(step.number))]),
        )

    def _add_ranges(
        self, domain: int, start: Int64, end: Int64, thread: Int64 | int, text_id: Int64
    ) -> None:
        self._writer.add(*rows.pushed_range(thread, start, end, domain, text_id))


def _threads(rank: Process, program: Program) -> Int64:
    """Return the globalTid that makes each call."""
    backward = program.phase == Phase.BACKWARD
    return np.where(backward, rank.thread(1), rank.thread(0))


def _operator_ranges(program: Program) -> tuple[Int64, Int64]:
    """Return the first and the last call in each range of an operator that launches kernels."""
    first, last = [], []
    for phase in _PHASE_RANGES:
        launched = program.computes[program.phase[program.computes] == phase]
        starts = np.arange(0, len(launched), _KERNELS_PER_OPERATOR)
        first.append(launched[starts])
        last.append(launched[np.minimum(starts + _KERNELS_PER_OPERATOR, len(launched)) - 1])
    return np.concatenate(first), np.concatenate(last)
