"""Data-parallel training of any size, made in columns: millions of kernels in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from sample_traces.simulator import kernels, rows
from sample_traces.simulator.kernels import KERNELS
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
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.truth import check_at_least, new_truth, write_truth
from traceprof import labels
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sample_traces.simulator.kernels import Kernel
    from traceprof.intervals import Float64, Int64


# Fewer do not suffice for all phases and two gradient buckets.
MIN_KERNELS_PER_STEP = 20

_BUCKET_BYTES = 25 << 20  # DDP's bucket_cap_mb
_LAST_BUCKET_BYTES = 14 << 20  # the rest of the model
_KERNELS_PER_BUCKET = 13
_MAX_BUCKETS = 24

_BATCH_BYTES = (2 << 20, 64 << 10)  # inputs and labels
_LOSS_BYTES = 4
_WORKSPACE_BYTES = 1 << 20
_COPY_LATENCY_NS = 1_400
_PCIE_BYTES_PER_NS = 24  # 24 GB/s of PCIe 4.0 x16
_MEMSET_BYTES_PER_NS = 1_000
_ALL_REDUCE_LATENCY_NS = 9_000
_ALL_REDUCE_LATENCY_PER_PEER_NS = 3_000
_BUS_BYTES_PER_NS = 150  # 150 GB/s busbw over NVLink at DDP's message sizes


class CallKind(IntEnum):
    """The kind of an API call of the host."""

    KERNEL = 0
    ALL_REDUCE = 1
    COPY_TO_DEVICE = 2
    COPY_TO_HOST = 3
    MEMSET = 4
    RECORD_EVENT = 5
    WAIT_EVENT = 6
    SYNCHRONIZE = 7


class Phase(IntEnum):
    """A part of the step; PyTorch's autograd thread makes the calls of the backward."""

    LOAD = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    READ_LOSS = 4


@dataclass(frozen=True)
class Program:
    """The API calls of one step in their order, which is the same on every rank."""

    call: Int64  # int64[calls], of `CallKind`
    phase: Int64  # int64[calls], of `Phase`
    kernel: Int64  # int64[calls], index into `kernels.KERNELS`; -1 if no kernel is launched
    size_bytes: Int64  # int64[calls], of copies, memory sets and all-reduces, else 0
    # int64[calls], nominal time on the GPU; of an all-reduce, once all ranks are in it
    work_ns: Int64

    def __len__(self) -> int:
        return len(self.call)

    def where(self, *calls: CallKind) -> Int64:
        """Return the positions of these calls, ascending."""
        return np.flatnonzero(np.isin(self.call, calls))

    @cached_property
    def computes(self) -> Int64:
        """Positions of the compute kernels."""
        return self.where(CallKind.KERNEL)

    @cached_property
    def all_reduces(self) -> Int64:
        """Positions of the all-reduces."""
        return self.where(CallKind.ALL_REDUCE)

    @cached_property
    def copies(self) -> Int64:
        """Positions of memory copies and memory sets."""
        return self.where(CallKind.COPY_TO_DEVICE, CallKind.COPY_TO_HOST, CallKind.MEMSET)

    @cached_property
    def compute_stream(self) -> Int64:
        """Positions of all operations on the compute stream: kernels, copies and memory sets."""
        return np.sort(np.concatenate((self.computes, self.copies)))


@dataclass(frozen=True, slots=True)
class _Entry:
    call: CallKind
    phase: Phase
    kernel: int = -1
    size_bytes: int = 0
    work_ns: int = 0


def ddp_program(num_kernels: int, num_ranks: int, *, is_first_step: bool) -> Program:
    """Return the calls of a step with exactly `num_kernels` kernels, all-reduces among them.

    In the first step DDP reduces the whole model as one bucket, because it does not know the order
    of gradients yet; Adam creates its state, with as many additional kernels.
    """
    buckets = _buckets(num_kernels)
    num_computes = num_kernels - len(buckets)
    num_forward = num_computes * 3 // 10
    num_optimizer = max(2, num_computes // 24)
    fills: Sequence[Kernel] = ()
    if is_first_step:
        fills = [kernels.STATE_FILL] * (len(buckets) - 1)
        buckets = [sum(buckets)]
    forward = _sequence((), kernels.FORWARD_LAYER, kernels.FORWARD_END, num_forward)
    backward = _sequence(
        kernels.BACKWARD_START,
        kernels.BACKWARD_LAYER,
        (),
        num_computes - num_forward - num_optimizer,
    )
    optimizer = _sequence((kernels.GRADIENT_NORM,), (kernels.ADAM,), (), num_optimizer)
    entries = [
        *(_copy(CallKind.COPY_TO_DEVICE, Phase.LOAD, size) for size in _BATCH_BYTES),
        _memset(Phase.FORWARD, _LOSS_BYTES),
        *_launches(Phase.FORWARD, forward),
        *_backward(backward, buckets, num_ranks),
        _memset(Phase.OPTIMIZER, _LOSS_BYTES),
        *_launches(Phase.OPTIMIZER, [*fills, *optimizer]),
        _copy(CallKind.COPY_TO_HOST, Phase.READ_LOSS, _LOSS_BYTES),
        _Entry(CallKind.SYNCHRONIZE, Phase.READ_LOSS),
    ]
    return Program(
        *(
            np.array([getattr(entry, name) for entry in entries], np.int64)
            for name in ("call", "phase", "kernel", "size_bytes", "work_ns")
        )
    )


def _buckets(num_kernels: int) -> list[int]:
    """Return the bytes of the gradient buckets, in the order in which they become ready."""
    count = min(max(num_kernels // _KERNELS_PER_BUCKET, 2), _MAX_BUCKETS)
    return [_BUCKET_BYTES] * (count - 1) + [_LAST_BUCKET_BYTES]


def _sequence(
    first: Sequence[Kernel], layer: Sequence[Kernel], last: Sequence[Kernel], count: int
) -> list[Kernel]:
    """Return `count` kernels: the first and the last ones, and repeated layers between them."""
    return [*first, *islice(cycle(layer), count - len(first) - len(last)), *last]


def _launches(phase: Phase, launched: Iterable[Kernel]) -> Iterable[_Entry]:
    for kernel in launched:
        number = kernels.KERNELS.index(kernel)
        yield _Entry(CallKind.KERNEL, phase, kernel=number, work_ns=kernel.duration_ns)


def _backward(
    launched: Sequence[Kernel], buckets: Sequence[int], num_ranks: int
) -> Iterable[_Entry]:
    """Yield the backward: buckets become ready after equal shares of its kernels."""
    share = len(launched) / len(buckets)
    begin = 0
    for number, size in enumerate(buckets):
        end = round((number + 1) * share)
        if number == len(buckets) // 2:
            yield _memset(Phase.BACKWARD, _WORKSPACE_BYTES)
        yield from _launches(Phase.BACKWARD, launched[begin:end])
        # NCCL's stream waits for the preceding kernels.
        yield _Entry(CallKind.RECORD_EVENT, Phase.BACKWARD)
        yield _Entry(CallKind.WAIT_EVENT, Phase.BACKWARD)
        yield _all_reduce(size, num_ranks)
        begin = end
    # The compute stream waits for NCCL's.
    yield _Entry(CallKind.RECORD_EVENT, Phase.BACKWARD)
    yield _Entry(CallKind.WAIT_EVENT, Phase.BACKWARD)


def _all_reduce(size: int, num_ranks: int) -> _Entry:
    """Return a ring all-reduce: a latency, and 2(n-1)/n times its bytes over the bus."""
    peers = num_ranks - 1
    latency = _ALL_REDUCE_LATENCY_NS + _ALL_REDUCE_LATENCY_PER_PEER_NS * peers
    transfer = 2 * peers * size // (num_ranks * _BUS_BYTES_PER_NS)
    number = kernels.KERNELS.index(kernels.ALL_REDUCE)
    return _Entry(CallKind.ALL_REDUCE, Phase.BACKWARD, number, size, latency + transfer)


def _copy(call: CallKind, phase: Phase, size: int) -> _Entry:
    work = _COPY_LATENCY_NS + size // _PCIE_BYTES_PER_NS
    return _Entry(call, phase, size_bytes=size, work_ns=work)


def _memset(phase: Phase, size: int) -> _Entry:
    work = _COPY_LATENCY_NS + size // _MEMSET_BYTES_PER_NS
    return _Entry(CallKind.MEMSET, phase, size_bytes=size, work_ns=work)


# Host time of each call, in order of `CallKind`; a synchronization also waits for the GPU.
_CALL_NS = np.array([4_300, 8_500, 7_000, 7_000, 5_200, 1_300, 1_500, 2_500])
# Host time before each call, in which Python or autograd prepares it.
_PAUSE_NS = np.array([3_400, 2_600, 6_000, 9_000, 3_400, 2_000, 2_000, 2_000])
_AUTOGRAD_PAUSE_NS = 2_400
# Host time before a phase: the data loader, the model, autograd's thread that wakes up, …
_PHASE_PAUSE_NS = np.array([60_000, 14_000, 26_000, 30_000, 12_000])

_LAUNCH_LATENCY_NS = 1_900  # from the end of a call to the earliest start on the GPU
_STREAM_GAP_NS = 900  # between operations of one stream
_EVENT_LATENCY_NS = 1_600  # from an operation's end to a stream that waits for it
_RETURN_NS = 3_200  # from the stream's end to the end of the call that waits for it
_STEP_END_NS = 6_000  # from the last call's end to the step range's
_BETWEEN_STEPS_NS = 18_000
_FIRST_STEP_NS = 1_500_000_000  # since the start of the session
_START_SPREAD_NS = 400_000

# Ranks differ less than steps do, so that the last one to arrive varies.
_RANK_SPREAD = 0.002
_MACHINE = 1  # chooses the speeds
_STEP_SPREAD = 0.008
_WORK_SPREAD = 0.02  # of one kernel's duration
_HOST_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The times of one step on each rank, in ns since the session's start."""

    number: int  # of the step
    program: Program  # its calls
    range_start_ns: Int64  # int64[ranks], of the step's range on the host
    range_end_ns: Int64  # int64[ranks]
    call_start_ns: Int64  # int64[ranks, calls]
    call_end_ns: Int64  # int64[ranks, calls]
    start_ns: Int64  # int64[ranks, calls], of the GPU operation; 0 for calls that launch none
    end_ns: Int64  # int64[ranks, calls], of the GPU operation; 0 for calls that launch none


def run_steps(
    programs: Iterable[Program], num_ranks: int, rng: np.random.Generator
) -> Iterator[StepTimeline]:
    """Yield the steps of a run, one program each, as they follow each other on all ranks.

    The launch queue has no limit here: with many more than a thousand kernels in a step, a real
    host would block before it.
    """
    # The GPUs are the same in all runs: seeds are runs of one program on one machine.
    speed = _varied(np.ones((num_ranks, 1)), _RANK_SPREAD, np.random.default_rng(_MACHINE))
    rng.random(num_ranks)  # once drawn for the speeds; keeps the later numbers unchanged
    range_start = _FIRST_STEP_NS + _whole(_START_SPREAD_NS * rng.random(num_ranks))
    for number, program in enumerate(programs):
        timeline = _run_step(number, program, range_start, speed, rng)
        yield timeline
        pause = _varied(np.full(num_ranks, _BETWEEN_STEPS_NS), _HOST_SPREAD, rng)
        range_start = timeline.range_end_ns + _whole(pause)


def _run_step(
    number: int, program: Program, range_start: Int64, speed: Float64, rng: np.random.Generator
) -> StepTimeline:
    num_ranks = len(range_start)
    call_start, call_end = _host_calls(program, range_start, rng)
    ready = call_end + _LAUNCH_LATENCY_NS
    step_speed = _varied(speed, _STEP_SPREAD, rng)
    work = _whole(_varied(np.tile(program.work_ns, (num_ranks, 1)), _WORK_SPREAD, rng) * step_speed)
    start, end = np.zeros_like(work), np.zeros_like(work)

    stream = program.compute_stream
    is_after = program.phase[stream] >= Phase.OPTIMIZER
    before, after = stream[~is_after], stream[is_after]
    start[:, before], end[:, before] = run_stream(ready[:, before], work[:, before])
    reduced = _reduce_all(program, ready, work, start, end)
    # The optimizer waits for the gradients, and for the preceding work of its stream.
    reached = np.maximum(reduced + _EVENT_LATENCY_NS, end[:, before[-1]] + _STREAM_GAP_NS)
    ready[:, after[0]] = np.maximum(ready[:, after[0]], reached)
    start[:, after], end[:, after] = run_stream(ready[:, after], work[:, after])

    # The host waits for the stream in its last call.
    call_end[:, -1] = np.maximum(call_end[:, -1], end[:, stream[-1]] + _RETURN_NS)
    return StepTimeline(
        number=number,
        program=program,
        range_start_ns=range_start,
        range_end_ns=call_end[:, -1] + _STEP_END_NS,
        call_start_ns=call_start,
        call_end_ns=call_end,
        start_ns=start,
        end_ns=end,
    )


def run_stream(ready_ns: Int64, work_ns: Int64) -> tuple[Int64, Int64]:
    """Return start and end, int64[ranks, operations], of operations that a stream runs in order.

    Each starts when it is ready and the stream is free, a moment after the end of the one before:
    the recurrence end[i] = max(end[i-1], ready[i]) + work[i], without a loop over operations.
    """
    occupied = work_ns + _STREAM_GAP_NS
    total = np.cumsum(occupied, axis=1)
    # The latest start of the stream, if all work before an operation ran without a gap.
    begun = np.maximum.accumulate(ready_ns - (total - occupied), axis=1)
    start = begun + total - occupied
    return start, start + work_ns


def _host_calls(
    program: Program, range_start: Int64, rng: np.random.Generator
) -> tuple[Int64, Int64]:
    """Return start and end of the calls, in order, one thread after the other."""
    pause = _PAUSE_NS[program.call]
    autograd = (program.phase == Phase.BACKWARD) & (program.call == CallKind.KERNEL)
    pause[autograd] = _AUTOGRAD_PAUSE_NS
    phases, first = np.unique(program.phase, return_index=True)
    pause[first] = _PHASE_PAUSE_NS[phases]
    shape = (len(range_start), 1)
    usual = _varied(np.tile(_CALL_NS[program.call], shape), _HOST_SPREAD, rng)
    # A few calls take up to twice as long: the eighth power of uniform numbers is mostly near 0.
    spent = _whole(usual * (1 + np.square(np.square(np.square(rng.random(usual.shape))))))
    pause = _whole(_varied(np.tile(pause, shape), _HOST_SPREAD, rng))
    end = range_start[:, np.newaxis] + np.cumsum(pause + spent, axis=1)
    return end - spent, end


def _reduce_all(program: Program, ready: Int64, work: Int64, start: Int64, end: Int64) -> Int64:
    """Fill in the all-reduces, one after the other on each rank's NCCL stream.

    Each starts on a rank when that rank is ready and spins until the last one is; all leave it
    together.

    Returns:
        int64[ranks]: the end of the last one.
    """
    stream = program.compute_stream
    left = np.zeros(len(ready), np.int64)
    for reduce in program.all_reduces:
        producer = stream[np.searchsorted(stream, reduce) - 1]
        produced = end[:, producer] + _EVENT_LATENCY_NS
        arrived = np.maximum(np.maximum(ready[:, reduce], produced), left + _STREAM_GAP_NS)
        left = np.full_like(arrived, arrived.max() + work[0, reduce])
        start[:, reduce], end[:, reduce] = arrived, left
    return left


def _varied(nominal: Float64 | Int64, spread: float, rng: np.random.Generator) -> Float64:
    """Return the nominal values, each varied by up to the share `spread`.

    Only products and sums of uniform numbers, which are the same on every machine.
    """
    varied: Float64 = nominal * (1 - spread + 2 * spread * rng.random(nominal.shape))
    return varied


def _whole(values: Float64) -> Int64:
    return values.astype(np.int64)


_SUMS = (
    "compute_ns", "communication_ns", "overlapped_communication_ns", "exposed_communication_ns",
    "copy_ns", "exposed_copy_ns",
)  # fmt: skip
_COUNTS = ("num_kernels", "num_communication", "num_copies")


class Truth:
    """Collects the measures of a run, step by step."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Int64]] = []
        self._numbers: list[int] = []
        self._end = np.zeros(0, np.int64)

    def add(self, step: StepTimeline) -> None:
        """Measure one step on all ranks; the steps come in order."""
        program = step.program
        computes, all_reduces, copies = program.computes, program.all_reduces, program.copies
        overlapped = _overlap(step, all_reduces, computes)
        communication = _busy(step, all_reduces)
        copy = _busy(step, copies)
        num_ranks = len(step.range_start_ns)
        self._numbers.append(step.number)
        self._steps.append(
            {
                "start_ns": step.start_ns[:, program.compute_stream[0]],
                "compute_ns": _busy(step, computes),
                "communication_ns": communication,
                "overlapped_communication_ns": overlapped,
                "exposed_communication_ns": communication - overlapped,
                "copy_ns": copy,
                "exposed_copy_ns": copy - _overlap(step, all_reduces, copies),
                "num_kernels": np.full(num_ranks, len(computes)),
                "num_communication": np.full(num_ranks, len(all_reduces)),
                "num_copies": np.full(num_ranks, len(copies)),
            }
        )
        self._end = step.end_ns[:, program.compute_stream[-1]]

    def to_json(self) -> dict[str, Any]:
        """Return `breakdown` and `steps` as `traceprof analyze --format json` writes them.

        All of a step's work is done before the next one begins, so a step's window holds its own
        operations and no others, and the windows fill the whole one.
        """
        steps, breakdown = [], []
        for rank, end in enumerate(self._end.tolist()):
            rows = [
                {name: int(values[rank]) for name, values in step.items()} for step in self._steps
            ]
            starts = [row.pop("start_ns") for row in rows]
            for number, start, stop, row in zip(
                self._numbers, starts, [*starts[1:], end], rows, strict=True
            ):
                window = {"start_ns": start, "end_ns": stop}
                steps.append({"rank": rank, "step": number, **window, **_row(row, stop - start)})
            total = {name: sum(row[name] for row in rows) for name in rows[0]}
            window = {"window_start_ns": starts[0]}
            breakdown.append({"rank": rank, **window, **_row(total, end - starts[0])})
        return {"breakdown": breakdown, "steps": steps}


def _row(row: dict[str, int], window: int) -> dict[str, int]:
    busy = row["compute_ns"] + row["exposed_communication_ns"] + row["exposed_copy_ns"]
    return {
        "window_ns": window,
        **{name: row[name] for name in _SUMS},
        "idle_ns": window - busy,
        **{name: row[name] for name in _COUNTS},
    }


def _busy(step: StepTimeline, operations: Int64) -> Int64:
    """Return the time each rank spent in operations that do not overlap each other."""
    busy: Int64 = (step.end_ns[:, operations] - step.start_ns[:, operations]).sum(axis=1)
    return busy


def _overlap(step: StepTimeline, left: Int64, right: Int64) -> Int64:
    """Return the time each rank spent in both of two sets, neither of which overlaps itself."""
    start = np.maximum(step.start_ns[:, left, np.newaxis], step.start_ns[:, np.newaxis, right])
    end = np.minimum(step.end_ns[:, left, np.newaxis], step.end_ns[:, np.newaxis, right])
    shared: Int64 = np.maximum(end - start, 0).sum(axis=(1, 2))
    return shared


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


def simulate_ddp(
    path: Path, *, gpus: int = 2, steps: int = 5, kernels_per_step: int = 40, seed: int = 0
) -> Path:
    """Write the export of a simulated DistributedDataParallel run, and the truth about it.

    Each rank is a process of its own. Its host launches forward, backward and optimizer ahead of
    the GPU, which runs them in order on one stream; gradient buckets are all-reduced on NCCL's
    stream as soon as the backward has them ready, and the optimizer waits for the last. An
    all-reduce starts on each rank when that rank is ready and ends on all ranks together. The host
    reads the loss at the end of a step, so that it loses its lead and the GPU is idle for a moment.
    This run has no problem: communication does not slow the kernels beside it.

    Args:
        path: the export to write, such as `ddp.sqlite`; the truth goes to `ddp.truth.json`.
        gpus: number of ranks.
        steps: number of training steps.
        kernels_per_step: kernels of one rank in one step, including NCCL's; the launch queue of a
            real host holds a thousand at most.
        seed: of the jitter. The same arguments make the same export.

    Returns:
        The path of the truth: the arguments, and `breakdown` and `steps` as
        `traceprof analyze --format json` must find them, exactly.

    Raises:
        UsageError: an argument is out of range, or one of the files exists already.
        TraceFileError: the disk is full.
    """
    check_at_least("gpus", gpus, 1)
    check_at_least("steps", steps, 1)
    check_at_least("kernels per step", kernels_per_step, MIN_KERNELS_PER_STEP)
    check_at_least("seed", seed, 0)
    truth_path = new_truth(path)
    arguments = {"gpus": gpus, "steps": steps, "kernels_per_step": kernels_per_step, "seed": seed}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in arguments.items())
    first, later = (
        ddp_program(kernels_per_step, gpus, is_first_step=is_first) for is_first in (True, False)
    )
    truth = Truth()
    with NsightWriter(path) as writer:
        export = RunExport(writer, gpus, f"traceprof simulate ddp {options}")
        end_ns = 0
        for step in run_steps([first, *[later] * (steps - 1)], gpus, np.random.default_rng(seed)):
            export.add(step)
            truth.add(step)
            end_ns = int(step.range_end_ns.max())
        export.finish(end_ns)
    return write_truth(truth_path, "ddp", arguments, truth.to_json())
