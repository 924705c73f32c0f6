"""Runs on several machines, one report for each machine or each rank, and the truth about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sample_traces.simulator.event_model.actions import (
    CommunicationWork,
    Communicator,
    Leaving,
    Rendezvous,
    Thread,
)
from sample_traces.simulator.event_model.engine import (
    MEDIAN_EARLY_NS,
    Capture,
    Node,
    Result,
    Simulation,
    seen,
)
from sample_traces.simulator.event_model.program_writer import US, CpuProgram
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import A100, SESSION_START_NS, Board, Machine
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.scenarios.ranks import (
    NCCL_RATES,
    NODES,
    NUM_RANKS,
    PAIRS,
    RANKS_PER_NODE,
    STRAGGLERS,
    WORLD,
    training,
)
from sample_traces.simulator.truth import write_truth
from traceprof import labels

_MS = 1_000_000
_STEPS, _BUCKETS = 60, 3
_START_NS = 1_500 * _MS
_LOADING_NS, _FORWARD_NS, _BACKWARD_NS, _OPTIMIZER_NS = 500 * US, 8 * _MS, 12 * _MS, 2 * _MS
_VARY = 0.02
_BUCKET_BYTES, _LOSS_BYTES, _PAIR_BYTES = 4 << 20, 4, 1 << 16
_LATENCY_NS, _BYTES_PER_NS = 300 * US, 1
_BETWEEN_NS = 2 * US
_DELAY_NS = 10 * _MS
_SLOWER = 2.25
# Members leave a small all-reduce or a barrier of Gloo 40 to 65 µs apart at the median, and one in
# twenty by 0.3 to 1 ms (two processes on one machine, recorded with nsys profile -t nvtx; with more
# processes than cores, ten times as much): a thread that wakes up must be scheduled.
_LEAVING_NS, _RARELY_NS, _RARELY = 60 * US, 1 * _MS, 0.05


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The deviation of one rank without a GPU from the others."""

    cause: str | None  # as in the finding; None for a balanced run
    forward: float = 1.0  # factor on the duration of its forward
    loading_ns: int = 0  # additional wait for its data
    unnamed_ns: int = 0  # time outside of all ranges
    # whether pairs of neighbours reduce a tensor within the forward, so that one is late because
    # it waits for the other, late one
    has_pairs: bool = False


CPU_PLANS: dict[str, CpuPlan] = {
    "balanced": CpuPlan(None),
    "slow-compute": CpuPlan("slower compute", forward=_SLOWER),
    "data-loading": CpuPlan("data loading", loading_ns=_DELAY_NS),
    "unnamed": CpuPlan("outside the ranges", unnamed_ns=_DELAY_NS),
    "upstream": CpuPlan("data loading", loading_ns=_DELAY_NS, has_pairs=True),
}
"""Runs by planted cause: one rank is late in each but the first."""


def cpu_training(
    rng: np.random.Generator, plan: CpuPlan, late: int
) -> tuple[Result, Mapping[str, Sequence[Rendezvous]]]:
    """Return the result of a run of eight ranks, and the operations of each process group."""
    writer = _Writer(rng, plan, late)
    for step in range(_STEPS):
        writer.write(step)
    simulation = Simulation(range_cost_ns=0)
    for program in writer.ranks:
        simulation.add(Thread(program.process), program.actions, _START_NS)
    return simulation.run(), writer.operations


class _Writer:
    """Writes the programs of all ranks."""

    def __init__(self, rng: np.random.Generator, plan: CpuPlan, late: int) -> None:
        self.ranks = [CpuProgram(number) for number in range(NUM_RANKS)]
        self.operations: dict[str, list[Rendezvous]] = defaultdict(list)
        self._rng, self._plan, self._late = rng, plan, late

    def write(self, step: int) -> None:
        """Add a step of all ranks, whose durations are drawn in turn."""
        forward = [
            self._varied(_FORWARD_NS * (self._plan.forward if rank == self._late else 1))
            for rank in range(NUM_RANKS)
        ]
        pairs = self._pairs() if self._plan.has_pairs else {}
        buckets: list[list[tuple[int, Leaving]]] = [[] for _ in self.ranks]
        for bucket in range(_BUCKETS):
            ready = [self._varied(_BACKWARD_NS * (bucket + 1) / _BUCKETS) for _ in self.ranks]
            reduced = self._operation(range(NUM_RANKS), "0", _BUCKET_BYTES)
            for rank in range(NUM_RANKS):
                buckets[rank].append((ready[rank], reduced[rank]))
        optimizer = [self._varied(_OPTIMIZER_NS) for _ in self.ranks]
        loss = self._operation(range(NUM_RANKS), "0", _LOSS_BYTES)
        for number, program in enumerate(self.ranks):
            is_late = number == self._late
            program.work(labels.DATA_LOADING, _LOADING_NS + self._plan.loading_ns * is_late)
            program.busy(self._plan.unnamed_ns * is_late)
            with program.range(labels.step(step)):
                with program.range(labels.FORWARD):
                    program.busy(forward[number])
                    if number in pairs:
                        leaving, more_ns = pairs[number]
                        program.all_reduce(leaving, str(number // 2 + 1), _PAIR_BYTES)
                        program.busy(more_ns)
                program.busy(_BETWEEN_NS)
                program.backward(buckets[number], "0", _BUCKET_BYTES)
                program.work(labels.OPTIMIZER_STEP, optimizer[number])
                program.busy(_BETWEEN_NS)
                program.all_reduce(loss[number], "0", _LOSS_BYTES)
                program.busy(_BETWEEN_NS)
            program.busy(_BETWEEN_NS)

    def _pairs(self) -> dict[int, tuple[Leaving, int]]:
        """Return the operations of neighbours in the forward, and the compute time after them."""
        pairs = {}
        for first in range(0, NUM_RANKS, 2):
            leavings = self._operation((first, first + 1), str(first // 2 + 1), _PAIR_BYTES)
            for rank, leaving in leavings.items():
                # The first of a pair works longer, so that it arrives last.
                more = _FORWARD_NS if rank == first else _FORWARD_NS * 3 // 4
                pairs[rank] = leaving, self._varied(more)
        return pairs

    def _operation(self, members: Sequence[int], group: str, size: int) -> dict[int, Leaving]:
        """Return the leaving of each member of an operation, which differ in time."""
        rendezvous = Rendezvous(len(members), self._varied(_LATENCY_NS + size / _BYTES_PER_NS))
        self.operations[group].append(rendezvous)
        leavings = {}
        for rank in members:
            most = _RARELY_NS if self._rng.random() < _RARELY else _LEAVING_NS
            leavings[rank] = rendezvous, round(float(self._rng.random()) * most)
        return leavings

    def _varied(self, length_ns: float) -> int:
        return round(length_ns * (1 + self._rng.uniform(-_VARY, _VARY)))


# NTP keeps machines within a few ms, sometimes tens; crystals drift by tens of ppm.
_AHEAD_NS, _DRIFT_PPB = 20_000_000, 50_000
# Sessions start before the program, up to so much apart.
_SESSION_NS, _SESSION_SPREAD_NS = 200_000_000, 900_000_000
# Captures miss up to this share of the run at either end.
_CUT = 0.15
# Planted delays are much longer; shorter ones come from varied durations.
_LATE_NS = 500_000
# Without GPUs, members leave up to 1 ms apart, and so arrive at the next operation as far apart.
_LATE_WITHOUT_GPU_NS = 4_000_000


@dataclass(frozen=True, slots=True)
class RunScenario:
    """A run of several reports."""

    summary: str  # one line for `--help`
    plan: str  # a key of `STRAGGLERS`, or of `CPU_PLANS`
    has_gpu: bool = True  # whether the ranks have GPUs


RUN_SCENARIOS: dict[str, RunScenario] = {
    "ranks-balanced": RunScenario("Eight ranks on four machines, none of them late.", "balanced"),
    **{
        f"straggler-{plan}": RunScenario(f"The same, and one rank is late: {why}.", plan)
        for plan, why in {
            "slow-kernels": "its kernels take longer",
            "host": "its host launches late",
            "sync": "it reads numbers within the step",
            "copy": "it copies from pageable memory",
            "data-loading": "it waits for data",
            "upstream": "it waits for its late neighbour",
        }.items()
    },
    "cpu-ranks-balanced": RunScenario(
        "Eight ranks without a GPU on four machines, none of them late.", "balanced", has_gpu=False
    ),
    **{
        f"cpu-straggler-{plan}": RunScenario(
            f"The same, and one rank is late: {why}.", plan, has_gpu=False
        )
        for plan, why in {
            "slow-compute": "its forward takes longer",
            "data-loading": "it waits for data",
            "unnamed": "no range shows why",
            "upstream": "it waits for its late neighbour",
        }.items()
    },
}


def simulate_run(
    name: str,
    folder: Path,
    *,
    seed: int = 0,
    per_rank: bool = False,
    is_labelled: bool = True,
    schema_version: str = "3.25.0",
) -> Path:
    """Write the reports of a run, and the truth about it.

    Args:
        name: a key of `RUN_SCENARIOS`.
        folder: of the reports; created if missing.
        seed: of everything that varies: durations, clocks, cuts, the late rank.
        per_rank: a report for each rank (`rank_0.sqlite`), not for each machine (`node_0.sqlite`).
        is_labelled: whether the ranges of `instrument` are in it; NCCL's payloads always are in
            the latest schema.
        schema_version: of the exports.

    Returns:
        The path of `truth.json`: `reports` with the clock of each: `offset_ns` and `drift` bring
        times by the session's start to those of the first report's machine, at `at_ns` after
        the first session's start; `straggler`, the late rank, or null; and with GPUs `all_reduce`,
        what one of all ranks takes at the median of its members: `latency_ns`, and
        `rate_gb_per_s` beyond it.
    """
    scenario, rng = RUN_SCENARIOS[name], np.random.default_rng(seed)
    how = ["--per-rank"] * per_rank + ["--no-labels"] * (not is_labelled)
    options = [f"--seed {seed} --schema-version {schema_version}", *how]
    command = " ".join(["python -m sample_traces.simulator", name, *options])
    folder.mkdir(parents=True, exist_ok=True)
    output = _Output(folder, command, schema_version, per_rank)
    if scenario.has_gpu:
        captures, facts = _with_gpus(scenario.plan, rng, output, is_labelled=is_labelled)
    else:
        captures, facts = _without_gpus(scenario.plan, rng, output)
    arguments = {
        "seed": seed,
        "per_rank": per_rank,
        "is_labelled": is_labelled,
        "schema_version": schema_version,
    }
    reports = [
        _report(stem, capture, list(captures.values())) for stem, capture in captures.items()
    ]
    return write_truth(folder / "truth.json", name, arguments, {"reports": reports, **facts})


@dataclass(frozen=True, slots=True)
class _Output:
    folder: Path  # of the reports
    command: str  # that reproduces them
    schema_version: str  # of the exports
    per_rank: bool  # a report for each rank, not for each machine

    def writer(self, stem: str) -> NsightWriter:
        return NsightWriter(self.folder / f"{stem}.sqlite", self.schema_version)


def _with_gpus(
    key: str, rng: np.random.Generator, output: _Output, *, is_labelled: bool
) -> tuple[dict[str, Capture], dict[str, Any]]:
    """Write the reports of a run, and return the captures and the truth."""
    plan = STRAGGLERS[key]
    # Of a pair, the first one waits for the second.
    late = int(rng.integers(NUM_RANKS)) | plan.upstream
    setup = training(rng, plan, late, is_labelled=is_labelled)
    result = setup.run()
    first = min(operation.start_ns for operation in result.operations)
    captures = _captures((first, result.end_ns), rng, per_rank=output.per_rank)
    for stem, capture in captures.items():
        machine = _machine(output, capture, A100, setup.devices_of_processes)
        with output.writer(stem) as writer:
            Records(writer, machine).write(seen(result, capture, rng))
    members = PAIRS[late // 2] if plan.upstream else WORLD
    return captures, {
        "all_reduce": {
            # Members leave before the time of the model, by different amounts.
            "latency_ns": NCCL_RATES.nccl_latency_ns - MEDIAN_EARLY_NS,
            "rate_gb_per_s": float(NCCL_RATES.nccl * NUM_RANKS / (2 * (NUM_RANKS - 1))),
        },
        **_straggler(late, plan.cause, true_arrivals(result, members), _LATE_NS),
    }


def _without_gpus(
    key: str, rng: np.random.Generator, output: _Output
) -> tuple[dict[str, Capture], dict[str, Any]]:
    plan = CPU_PLANS[key]
    late = int(rng.integers(NUM_RANKS)) | plan.has_pairs
    result, operations = cpu_training(rng, plan, late)
    first = min(range_.start_ns for range_ in result.ranges)
    captures = _captures((first, result.end_ns), rng, per_rank=output.per_rank)
    for stem, capture in captures.items():
        machine = _machine(output, capture, None, ((),) * NUM_RANKS)
        with output.writer(stem) as writer:
            Records(writer, machine).write(seen(result, capture, rng))
    group = str(late // 2 + 1) if plan.has_pairs else "0"
    arrivals = [operation.arrived_ns for operation in operations[group]]
    return captures, _straggler(late, plan.cause, arrivals, _LATE_WITHOUT_GPU_NS)


def _machine(
    output: _Output, capture: Capture, board: Board | None, devices: tuple[tuple[int, ...], ...]
) -> Machine:
    node = capture.node
    return Machine(
        output.command,
        board,
        devices,
        processes=capture.processes,
        hostname=node.name,
        session_start_ns=SESSION_START_NS + node.shown(capture.session_ns),
    )


def _straggler(
    late: int, cause: str | None, arrivals: Sequence[dict[int, int]], least_ns: int
) -> dict[str, Any]:
    """Return the late rank, and its lateness after the rank before it."""
    if cause is None:
        return {"straggler": None}
    delays = [
        times[late] - median(time for rank, time in times.items() if rank != late)
        for times in arrivals
    ]
    behind = [
        times[late]
        - max(time for rank, time in times.items() if rank != late and time <= times[late])
        for times, delay in zip(arrivals, delays, strict=True)
        if delay > least_ns
    ]
    lateness = round(median(behind))
    return {"straggler": {"rank": late, "cause": cause, "lateness_ns": lateness}}


def _captures(
    span_ns: tuple[int, int], rng: np.random.Generator, *, per_rank: bool
) -> dict[str, Capture]:
    """Return the captures of a run with this span, by the stems of their file names."""
    first, stop = span_ns
    nodes = [
        Node(
            f"node-{number}",
            int(rng.integers(-_AHEAD_NS, _AHEAD_NS)),
            int(rng.integers(-_DRIFT_PPB, _DRIFT_PPB)),
        )
        for number in range(NODES)
    ]
    length = stop - first
    captures = {}
    for number in range(NUM_RANKS if per_rank else NODES):
        node = nodes[number // RANKS_PER_NODE] if per_rank else nodes[number]
        processes = range(number, number + 1)
        if not per_rank:
            processes = range(number * RANKS_PER_NODE, (number + 1) * RANKS_PER_NODE)
        captures[f"rank_{number}" if per_rank else f"node_{number}"] = Capture(
            node=node,
            processes=tuple(processes),
            session_ns=_SESSION_NS + int(rng.integers(_SESSION_SPREAD_NS)),
            start_ns=first + int(_CUT * length * float(rng.random())),
            stop_ns=stop - int(_CUT * length * float(rng.random())),
        )
    return captures


def _report(stem: str, capture: Capture, captures: Sequence[Capture]) -> dict[str, Any]:
    reference = captures[0].node
    at = (capture.start_ns + capture.stop_ns) // 2
    shown = [other.node.shown(other.session_ns) for other in captures]
    return {
        "file": f"{stem}.sqlite",
        "host": capture.node.name,
        "processes": capture.processes,
        "at_ns": capture.node.shown(at) - min(shown),
        "offset_ns": reference.shown(at) - capture.node.shown(at),
        "drift": (reference.drift_ppb - capture.node.drift_ppb) / 1e9,
    }


def true_arrivals(result: Result, communicator: Communicator) -> list[dict[int, int]]:
    """Return the start of each member in each operation of a communicator: time by process."""
    starts: dict[int, list[int]] = {process: [] for process in communicator.processes}
    for operation in result.operations:
        work = operation.work
        if isinstance(work, CommunicationWork) and work.communicator == communicator:
            starts[operation.stream.process].append(operation.start_ns)
    rounds = zip(*map(sorted, starts.values()), strict=True)
    return [dict(zip(starts, times, strict=True)) for times in rounds]
