"""Data-parallel training of any size: the first steps are simulated, later ones repeat them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sample_traces.simulator import kernels, nsight_writer
from sample_traces.simulator.event_model import actions, answers
from sample_traces.simulator.event_model.actions import (
    Action,
    Busy,
    Call,
    CommunicationWork,
    CopyWork,
    Entry,
    Event,
    KernelWork,
    MemsetWork,
    Pop,
    Push,
    Rendezvous,
    Stream,
    Thread,
)
from sample_traces.simulator.event_model.engine import Result, Simulation
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import COMPUTE, NCCL
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import (
    A100,
    DEFAULT_DOMAIN,
    NCCL_DOMAIN,
    TRACEPROF_DOMAIN,
    Machine,
    Process,
)
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.truth import write_truth
from traceprof import labels
from traceprof.intervals import Float64, Int64
from traceprof.trace.nsight import schema

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


class Phase(IntEnum):
    """A part of the step; PyTorch's autograd thread makes the calls of the backward."""

    LOAD = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    READ_LOSS = 4


@dataclass(frozen=True, slots=True)
class _Api:
    """A kind of API call; it and the pause before it take this time of the host."""

    name: str
    cost_ns: int
    pause_ns: int  # in which Python or autograd prepares it


_LAUNCH = _Api("cudaLaunchKernel_v7000", 4_300, 3_400)
_ALL_REDUCE = _Api("cudaLaunchKernelExC_v11060", 8_500, 2_600)
_TO_DEVICE = _Api("cudaMemcpyAsync_v3020", 7_000, 6_000)
_TO_HOST = _Api("cudaMemcpyAsync_v3020", 7_000, 9_000)
_MEMSET = _Api("cudaMemsetAsync_v3020", 5_200, 3_400)
_RECORD = _Api("cudaEventRecord_v3020", 1_300, 2_000)
_WAIT = _Api("cudaStreamWaitEvent_v3020", 1_500, 2_000)
_SYNCHRONIZE = _Api("cudaStreamSynchronize_v3020", 2_500, 2_000)  # beside its wait for the GPU


@dataclass(frozen=True, slots=True)
class _Planned:
    api: _Api
    phase: Phase
    stream: int = COMPUTE
    kernel: Kernel | None = None
    size: int = 0  # bytes of a copy, a memory set or an all-reduce
    work_ns: int = 0  # nominal time on the GPU; of an all-reduce, once all ranks are in it


def _step_calls(num_kernels: int, num_ranks: int, *, is_first_step: bool) -> list[_Planned]:
    """Return the calls of a step with exactly `num_kernels` kernels, all-reduces among them.

    In the first step DDP reduces the whole model as one bucket, because it does not know the order
    of gradients yet; Adam creates its state, with as many additional kernels.
    """
    count = min(max(num_kernels // _KERNELS_PER_BUCKET, 2), _MAX_BUCKETS)
    buckets = [_BUCKET_BYTES] * (count - 1) + [_LAST_BUCKET_BYTES]
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
    return [
        *(_copy(_TO_DEVICE, Phase.LOAD, size) for size in _BATCH_BYTES),
        _memset(Phase.FORWARD, _LOSS_BYTES),
        *_launches(Phase.FORWARD, forward),
        *_backward(backward, buckets, num_ranks),
        _memset(Phase.OPTIMIZER, _LOSS_BYTES),
        *_launches(Phase.OPTIMIZER, [*fills, *optimizer]),
        _copy(_TO_HOST, Phase.READ_LOSS, _LOSS_BYTES),
        _Planned(_SYNCHRONIZE, Phase.READ_LOSS),
    ]


def _sequence(
    first: Sequence[Kernel], layer: Sequence[Kernel], last: Sequence[Kernel], count: int
) -> list[Kernel]:
    """Return `count` kernels: the first and the last ones, and repeated layers between them."""
    return [*first, *islice(cycle(layer), count - len(first) - len(last)), *last]


def _launches(phase: Phase, launched: Iterable[Kernel]) -> list[_Planned]:
    return [
        _Planned(_LAUNCH, phase, kernel=kernel, work_ns=kernel.duration_ns) for kernel in launched
    ]


def _backward(
    launched: Sequence[Kernel], buckets: Sequence[int], num_ranks: int
) -> Iterable[_Planned]:
    """Yield the backward: buckets become ready after equal shares of its kernels."""
    share = len(launched) / len(buckets)
    begin = 0
    for number, size in enumerate(buckets):
        end = round((number + 1) * share)
        if number == len(buckets) // 2:
            yield _memset(Phase.BACKWARD, _WORKSPACE_BYTES)
        yield from _launches(Phase.BACKWARD, launched[begin:end])
        # NCCL's stream waits for the preceding kernels.
        yield _Planned(_RECORD, Phase.BACKWARD)
        yield _Planned(_WAIT, Phase.BACKWARD, NCCL)
        # A ring: a latency, and 2(n-1)/n times the bytes over the bus.
        peers = num_ranks - 1
        work = _ALL_REDUCE_LATENCY_NS + _ALL_REDUCE_LATENCY_PER_PEER_NS * peers
        work += 2 * peers * size // (num_ranks * _BUS_BYTES_PER_NS)
        yield _Planned(_ALL_REDUCE, Phase.BACKWARD, NCCL, kernels.ALL_REDUCE, size, work)
        begin = end
    # The compute stream waits for NCCL's.
    yield _Planned(_RECORD, Phase.BACKWARD, NCCL)
    yield _Planned(_WAIT, Phase.BACKWARD)


def _copy(api: _Api, phase: Phase, size: int) -> _Planned:
    work = _COPY_LATENCY_NS + size // _PCIE_BYTES_PER_NS
    return _Planned(api, phase, size=size, work_ns=work)


def _memset(phase: Phase, size: int) -> _Planned:
    work = _COPY_LATENCY_NS + size // _MEMSET_BYTES_PER_NS
    return _Planned(_MEMSET, phase, size=size, work_ns=work)


_AUTOGRAD_PAUSE_NS = 2_400  # before a launch of the backward
# Host time before a phase: the data loader, the model, autograd's thread that wakes up, …
_PHASE_PAUSE_NS = (60_000, 14_000, 26_000, 30_000, 12_000)

_STREAM_GAP_NS = 900  # between operations of one stream
_STEP_END_NS = 6_000  # from the last call's end to the step range's
_BETWEEN_STEPS_NS = 18_000
_FIRST_STEP_NS = 1_500_000_000  # since the start of the session
_START_SPREAD_NS = 400_000
_NO_LIMIT = 1 << 40  # a real launch queue would block the host in steps of over 1024 operations

# Ranks differ less than steps do, so that the last one to arrive varies.
_RANK_SPREAD = 0.002
_MACHINE = 1  # chooses the speeds
_STEP_SPREAD = 0.008
_WORK_SPREAD = 0.02  # of one kernel's duration
_HOST_SPREAD = 0.2

_PHASE_RANGES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}
_KERNELS_PER_OPERATOR = 4
# From the beginning of a range to its first call, and from its last call to its end.
_PHASE_NS, _OPERATOR_NS, _NCCL_NS = (1_300, 900), (700, 400), (500, 300)


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """The durations of a step's calls on all ranks, int64[ranks, calls]."""

    pause: Int64  # of the host before each call
    cost: Int64  # of the call
    work: Int64  # on the GPU; of an all-reduce, that of the first rank counts


def _varied(nominal: Float64 | Int64, spread: float, rng: np.random.Generator) -> Float64:
    """Return the nominal values, each varied by up to the share `spread`.

    Only products and sums of uniform numbers, which are the same on every machine.
    """
    varied: Float64 = nominal * (1 - spread + 2 * spread * rng.random(nominal.shape))
    return varied


def _whole(values: Float64) -> Int64:
    return values.astype(np.int64)


def _step_times(calls: Sequence[_Planned], speed: Float64, rng: np.random.Generator) -> _StepTimes:
    pause = [call.api.pause_ns for call in calls]
    for index, call in enumerate(calls):
        if index == 0 or calls[index - 1].phase != call.phase:
            pause[index] = _PHASE_PAUSE_NS[call.phase]
        elif call.api is _LAUNCH and call.phase == Phase.BACKWARD:
            pause[index] = _AUTOGRAD_PAUSE_NS
    shape = (len(speed), 1)
    usual = _varied(np.tile([call.api.cost_ns for call in calls], shape), _HOST_SPREAD, rng)
    # A few calls take up to twice as long: the eighth power of uniform numbers is mostly near 0.
    cost = usual * (1 + np.square(np.square(np.square(rng.random(usual.shape)))))
    pauses = _varied(np.tile(pause, shape), _HOST_SPREAD, rng)
    step_speed = _varied(speed, _STEP_SPREAD, rng)
    work = _varied(np.tile([call.work_ns for call in calls], shape), _WORK_SPREAD, rng)
    return _StepTimes(_whole(pauses), _whole(cost), _whole(work * step_speed))


class _Rank:
    """Collects the actions of the two threads of a rank: the training loop and autograd's."""

    def __init__(self, number: int, communicator: actions.Communicator) -> None:
        self.number = number
        self.threads: tuple[list[Action], list[Action]] = ([], [])
        self._communicator = communicator
        self._passed_ns = 0  # of the pause before the next call

    def add_step(
        self, number: int, calls: Sequence[_Planned], times: _StepTimes, between_ns: int
    ) -> None:
        begins, ends = _ranges(calls)
        self._act(0, Push(labels.step(number), TRACEPROF_DOMAIN))
        event = Event()
        for index, call in enumerate(calls):
            pause = int(times.pause[self.number, index])
            thread = int(call.phase == Phase.BACKWARD)
            if thread and calls[index - 1].phase != Phase.BACKWARD:
                lead, begin = begins[index].pop(0)  # the range of the backward is the loop's
                self._until(0, pause - lead)
                self._act(0, begin)
                self._hand_over(0)
            for lead, begin in begins[index]:
                self._until(thread, pause - lead)
                self._act(thread, begin)
            self._until(thread, pause)
            self._passed_ns = 0
            if call.api is _RECORD:
                event = Event()
            cost, work = int(times.cost[self.number, index]), times.work[:, index]
            self._act(thread, self._call(call, cost, work, event))
            is_last = thread and calls[index + 1].phase != Phase.BACKWARD
            if is_last:
                self._hand_over(1)
            for lag in ends[index]:
                self._until(0 if is_last and lag == _PHASE_NS[1] else thread, lag)
                self._act(0 if is_last and lag == _PHASE_NS[1] else thread, Pop())
        self._until(0, _STEP_END_NS)
        self._act(0, Pop())
        self._until(0, _STEP_END_NS + between_ns)
        self._passed_ns = 0

    def _act(self, thread: int, action: Action) -> None:
        self.threads[thread].append(action)

    def _until(self, thread: int, passed_ns: int) -> None:
        """Work until this time has passed since the last call."""
        self._act(thread, Busy(passed_ns - self._passed_ns))
        self._passed_ns = passed_ns

    def _hand_over(self, thread: int) -> None:
        """Let the other thread go on, and wait for it."""
        go = Rendezvous(1)
        self._act(thread, actions.Arrive(go))
        self._act(1 - thread, actions.Await((go, 0)))

    def _call(self, call: _Planned, cost_ns: int, work_ns: Int64, event: Event) -> Call:
        stream = Stream(self.number, self.number, call.stream)
        if call.api is _SYNCHRONIZE:
            return Call(call.api.name, cost_ns, until=stream)
        entry: Entry
        own_ns = int(work_ns[self.number])
        if call.api in (_RECORD, _WAIT):
            entry = (actions.Record if call.api is _RECORD else actions.Wait)(event)
        elif call.api is _MEMSET:
            entry = MemsetWork(call.size, own_ns)
        elif call.kernel is None:
            kinds = (nsight_writer.MEM_PINNED, nsight_writer.MEM_DEVICE)
            kind = 1 if call.api is _TO_DEVICE else 2
            entry = CopyWork(kind, call.size, own_ns, None, None, *(kinds[:: 3 - 2 * kind]))
        elif call.api is _ALL_REDUCE:
            members = self._communicator.processes
            entry = CommunicationWork(
                call.kernel, self._communicator, members, int(work_ns[0]), call.size
            )
        else:
            entry = KernelWork(call.kernel, own_ns)
        return Call(call.api.name, cost_ns, ((stream, entry),))


def _ranges(
    calls: Sequence[_Planned],
) -> tuple[dict[int, list[tuple[int, Push]]], dict[int, list[int]]]:
    """Return the ranges that begin before calls with their leads, and the lags of those that end.

    A phase encloses its operators and NCCL's calls. An operator launches a few kernels.
    """
    begins: dict[int, list[tuple[int, Push]]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)

    def add(first: int, last: int, name: str, domain: int, around_ns: tuple[int, int]) -> None:
        begins[first].append((around_ns[0], Push(name, domain)))
        ends[last].insert(0, around_ns[1])

    for phase, name in _PHASE_RANGES.items():
        indices = [index for index, call in enumerate(calls) if call.phase == phase]
        add(indices[0], indices[-1], name, TRACEPROF_DOMAIN, _PHASE_NS)
        launched = [index for index in indices if calls[index].api is _LAUNCH]
        for begin in range(0, len(launched), _KERNELS_PER_OPERATOR):
            group = launched[begin : begin + _KERNELS_PER_OPERATOR]
            kernel = calls[group[0]].kernel
            assert kernel is not None
            add(group[0], group[-1], kernel.operator, DEFAULT_DOMAIN, _OPERATOR_NS)
    for index, call in enumerate(calls):
        if call.api is _ALL_REDUCE:
            add(index, index, kernels.ALL_REDUCE.operator, NCCL_DOMAIN, _NCCL_NS)
    return begins, ends


def _simulate(num_ranks: int, num_steps: int, kernels_per_step: int, seed: int) -> Result:
    """Run the first steps of a program on all ranks."""
    rng = np.random.default_rng(seed)
    # The GPUs are the same in all runs: seeds are runs of one program on one machine.
    speed = _varied(np.ones((num_ranks, 1)), _RANK_SPREAD, np.random.default_rng(_MACHINE))
    rng.random(num_ranks)  # once drawn for the speeds; keeps the later numbers unchanged
    start = _FIRST_STEP_NS + _whole(_START_SPREAD_NS * rng.random(num_ranks))
    world = actions.Communicator(0x5EED_0000_0000_0001, "0", tuple(range(num_ranks)))
    ranks = [_Rank(number, world) for number in range(num_ranks)]
    for number in range(num_steps):
        calls = _step_calls(kernels_per_step, num_ranks, is_first_step=number == 0)
        times = _step_times(calls, speed, rng)
        between = _whole(_varied(np.full(num_ranks, _BETWEEN_STEPS_NS), _HOST_SPREAD, rng))
        for rank in ranks:
            rank.add_step(number, calls, times, int(between[rank.number]))
    simulation = Simulation(
        latencies=Latencies(stream_gap=_STREAM_GAP_NS), queue_limit=_NO_LIMIT, range_cost_ns=0
    )
    for rank in ranks:
        for thread, program in enumerate(rank.threads):
            simulation.add(Thread(rank.number, thread), program, int(start[rank.number]))
    return simulation.run()


MAX_SIMULATED = 20_000
"""Kernels of all ranks; steps with more of them repeat those before, but for the first steps."""
_MIN_STEPS = 6
_REPEATED = 4  # steps, the last ones that are simulated

# The columns that differ between repetitions, and by how much they do.
_TIMES = {"start": ":period_ns", "end": ":period_ns"}
_LAUNCHED = {**_TIMES, "correlationId": ":num_calls"}
_SHIFTED: dict[str, tuple[str, dict[str, str]]] = {
    schema.KERNEL.name: ("globalPid", {**_LAUNCHED, "gridId": ":num_kernels"}),
    schema.MEMCPY.name: ("globalPid", _LAUNCHED),
    schema.MEMSET.name: ("globalPid", _LAUNCHED),
    schema.API_CALL.name: ("globalTid", _LAUNCHED),
    schema.WAIT.name: (
        "globalPid",
        {**_LAUNCHED, "eventId": f"(eventId <> {schema.NO_ID}) * :num_events"},
    ),
    # The names of these steps have the last ids, one after the other.
    schema.NVTX.name: ("globalTid", {**_TIMES, "textId": f"(textId >= :first_id) * {_REPEATED}"}),
}


def _repeat(
    writer: NsightWriter, result: Result, repetitions: int, num_calls: int, num_kernels: int
) -> int:
    """Repeat the last simulated steps in an export.

    Each step of a rank has this number of API calls, and of kernels.

    Returns:
        The time from one repetition to the next, in ns.
    """
    ranges = [
        [range_ for range_ in of_process if range_.action.name.startswith(f"{labels.STEP} ")]
        for of_process in result.ranges_of_processes
    ]
    first = len(ranges[0]) - _REPEATED
    # Ranks keep their distances, and none begins a step sooner after its last one than elsewhere.
    period = max(steps[-1].end_ns - steps[first - 1].end_ns for steps in ranges)
    names = [labels.step(first + number) for number in range(_REPEATED * (repetitions + 1))]
    ids = [writer.string(name) for name in names]
    values = {
        "period_ns": period,
        "first_id": ids[0],
        "num_calls": num_calls * _REPEATED,
        "num_kernels": num_kernels * _REPEATED,
        "num_events": len(result.calls),  # at least
    }
    writer.execute("CREATE TEMP TABLE began (process INTEGER PRIMARY KEY, time INTEGER)")
    for rank, steps in enumerate(ranges):
        began = {"process": Process(rank).id, "time": steps[first].start_ns}
        writer.execute("INSERT INTO began VALUES (:process >> 24, :time)", began)
    for table, (process, shifts) in _SHIFTED.items():
        columns = ", ".join(
            f"{name} + k * ({shifts[name]})" if name in shifts else name
            for name in writer.columns(table)
        )
        writer.execute(
            f"CREATE TEMP TABLE repeated AS SELECT {table}.* FROM {table} JOIN began"  # noqa: S608
            f" ON process = {process} >> 24 AND start >= time"
        )
        writer.execute(
            "WITH RECURSIVE repetitions (k) AS"  # noqa: S608
            f" (SELECT 1 UNION ALL SELECT k + 1 FROM repetitions LIMIT {repetitions})"
            f" INSERT INTO {table} SELECT {columns} FROM repetitions CROSS JOIN repeated",
            values,
        )
        writer.execute("DROP TABLE repeated")
    more = repetitions * period
    changed = f"duration = duration + {more}, stopTime = stopTime + {more}"
    writer.execute(f"UPDATE {schema.ANALYSIS_DETAILS} SET {changed}")  # noqa: S608
    return period


def _truth(result: Result, repetitions: int, period_ns: int) -> dict[str, Any]:
    """Return `breakdown` and `steps` of the whole run, repetitions included.

    All of a step's work is done before the next one begins, so a step's window holds its own
    operations and no others, and the windows fill the whole one.
    """
    simulated = answers.Ranks(result).breakdown()
    breakdown, steps = [], []
    for whole in simulated["breakdown"]:
        rows = [dict(row) for row in simulated["steps"] if row["rank"] == whole["rank"]]
        last = rows[-_REPEATED:]
        for k in range(1, repetitions + 1):
            moved = {"step": _REPEATED * k, "start_ns": period_ns * k, "end_ns": period_ns * k}
            rows += [row | {name: row[name] + more for name, more in moved.items()} for row in last]
        for row, after in pairwise(rows):
            idle = after["start_ns"] - row["end_ns"]  # only before repetitions
            row |= {name: row[name] + idle for name in ("end_ns", "window_ns", "idle_ns")}
        totals = {name: sum(row[name] for row in rows) for name in whole if name in rows[0]}
        breakdown.append({**whole, **totals, "rank": whole["rank"]})
        steps += rows
    return {"breakdown": breakdown, "steps": steps}


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
        steps: number of training steps. Of many kernels only the first steps are simulated, and
            the last four of these are repeated.
        kernels_per_step: kernels of one rank in one step, including NCCL's: at least 20, for all
            phases and two gradient buckets; the launch queue of a real host holds a thousand.
        seed: of the jitter. The same arguments make the same export.

    Returns:
        The path of the truth: the arguments, and `breakdown` and `steps` as
        `traceprof analyze --format json` must find them, exactly.
    """
    arguments = {"gpus": gpus, "steps": steps, "kernels_per_step": kernels_per_step, "seed": seed}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in arguments.items())
    command = f"python -m sample_traces.simulator ddp {options}"
    most = max(_MIN_STEPS, MAX_SIMULATED // (gpus * kernels_per_step))
    repetitions = max(steps - most, 0) // _REPEATED
    result = _simulate(gpus, steps - repetitions * _REPEATED, kernels_per_step, seed)
    period = 0
    with NsightWriter(path) as writer:
        machine = Machine(command, A100, tuple((number,) for number in range(gpus)))
        Records(writer, machine).write(result)
        if repetitions:
            calls = _step_calls(kernels_per_step, gpus, is_first_step=False)
            period = _repeat(writer, result, repetitions, len(calls), kernels_per_step)
    return write_truth(
        path.with_suffix(".truth.json"), "ddp", arguments, _truth(result, repetitions, period)
    )
