"""Simulated training without a GPU: a growing number of pairs of ranks over Gloo.

In step s the first s + 1 pairs train; each pair is a process group. Its ranks compute a forward,
reduce many small tensors one after the other, and reduce two gradient buckets in the backward: the
first is hidden, and the backward waits for the last one. Each other pair that works at the same
time adds half of its duration to a small operation: this is the cost of many groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import Rendezvous, Thread
from sample_traces.simulator.event_model.engine import RangeRecord, Simulation
from sample_traces.simulator.event_model.program_writer import US, CpuProgram
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import Machine
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.truth import write_truth
from traceprof import labels

_START_NS = 1_500_000_000
_LATENCY_NS = 160 * US  # of a small operation of the only pair
_SMALL_BYTES, _BUCKET_BYTES = 400, 4 << 20
_FORWARD_NS, _OPTIMIZER_NS, _LOADING_NS = 3_000 * US, 1_000 * US, 500 * US
_TO_BUCKET_NS = 4_000 * US  # from the backward's start to its first bucket, and to the next
_FLIGHTS_NS = (2_000 * US, 1_500 * US)
_BETWEEN_NS = 2 * US  # Python, from one call to the next
_LATER_NS = 3 * US  # the second rank of a pair arrives later
_STAGGER_NS = 20 * US  # the pairs do not begin together
_JITTER = 0.02
_NUM_CORES = 2
_THREADS = ("python", "pt_gloo_runloop", "pt_gloo_runloop", "gloo_tcp_loop")


def simulate_gloo(path: Path, *, pairs: int = 4, operations: int = 30, seed: int = 0) -> Path:
    """Write the export of simulated pairs of ranks without a GPU, and the truth about it.

    Args:
        path: the export to write, such as `gloo.sqlite`; the truth goes to `gloo.truth.json`.
        pairs: of ranks, and steps; one more pair works in each step.
        operations: small all-reduces of each pair in each step; the median of fewer than 25 means
            nothing.
        seed: of the jitter. The same arguments make the same export.

    Returns:
        The path of the truth: the arguments, `breakdown` and `steps` as `traceprof analyze --format
        json` must find them, exactly, and `findings` with their metrics.
    """
    arguments = {"pairs": pairs, "operations": operations, "seed": seed}
    options = " ".join(f"--{name} {value}" for name, value in arguments.items())
    simulation = Simulation(range_cost_ns=0)
    for program in _programs(pairs, operations, np.random.default_rng(seed)):
        simulation.add(Thread(program.process), program.actions, _START_NS)
    result = simulation.run()
    machine = Machine(
        f"python -m sample_traces.simulator gloo {options}",
        board=None,
        devices=((),) * (2 * pairs),
        thread_names=(*_THREADS, "[NSys]"),
        num_cores=_NUM_CORES,
    )
    with NsightWriter(path) as writer:
        Records(writer, machine).write(result)
    ranges = result.ranges_of_processes
    facts = {
        **answers.breakdown(ranges),
        "findings": _findings(ranges, operations),
        "silent": [] if pairs > 1 else ["process-group-scaling"],
    }
    return write_truth(path.with_suffix(".truth.json"), "gloo", arguments, facts)


def _programs(pairs: int, operations: int, random: np.random.Generator) -> list[CpuProgram]:
    programs = [CpuProgram(number) for number in range(2 * pairs)]
    for step in range(pairs):
        together = Rendezvous(len(programs))
        for pair in range(step + 1):
            _train(programs[2 * pair : 2 * pair + 2], step, operations, random)
        for program in programs:
            program.gather(together)
    return programs


def _train(
    pair: Sequence[CpuProgram], step: int, operations: int, random: np.random.Generator
) -> None:

    def varied(length_ns: int) -> int:
        return round(length_ns * (1 + random.uniform(-_JITTER, _JITTER)))

    group = str(1 + pair[0].process // 2)
    forward = [varied(_FORWARD_NS) for _ in pair]
    latency = _LATENCY_NS + _LATENCY_NS * step // 2
    small = [(Rendezvous(2, varied(latency)), 0) for _ in range(operations)]
    buckets: list[list[tuple[int, tuple[Rendezvous, int]]]] = [[], []]
    for index, flight_ns in enumerate(_FLIGHTS_NS):
        ready = [varied(_TO_BUCKET_NS) * (index + 1) for _ in pair]
        reduced = Rendezvous(2, varied(flight_ns)), 0
        for number in (0, 1):
            buckets[number].append((ready[number], reduced))
    for number, rank in enumerate(pair):
        before_ns = _BETWEEN_NS + _LATER_NS * number
        rank.busy(_STAGGER_NS * (rank.process // 2))
        rank.work(labels.DATA_LOADING, _LOADING_NS)
        with rank.range(labels.step(step)):
            rank.work(labels.FORWARD, forward[number])
            for leaving in small:
                rank.busy(before_ns)
                rank.all_reduce(leaving, group, _SMALL_BYTES)
            rank.busy(before_ns)
            rank.backward(buckets[number], group, _BUCKET_BYTES)
            rank.work(labels.OPTIMIZER_STEP, _OPTIMIZER_NS)
        rank.busy(_STAGGER_NS)


def _findings(ranges: Sequence[Sequence[RangeRecord]], operations: int) -> list[dict[str, Any]]:
    most = len(ranges) // 2
    if most == 1:
        return []
    took: dict[int, list[int]] = {number: [] for number in range(1, most + 1)}
    per_group = []
    for rank, of_rank in enumerate(ranges):
        small = [range_ for range_ in of_rank if f" bytes={_SMALL_BYTES} " in range_.action.name]
        per_group.append(2 * len(small))
        for index, range_ in enumerate(small):
            # A pair begins to work in the step of its own number.
            took[rank // 2 + index // operations + 1].append(range_.end_ns - range_.start_ns)
    metrics = {
        "num_groups": most,
        "us_per_operation": median(took[most]) / US,
        "growth": median(took[most]) / median(took[1]),
        "least_groups": 1,
        "us_per_operation_at_least": median(took[1]) / US,
        "num_operations": sum(map(len, took.values())),
        "operations_per_group": int(median(per_group)),
        "num_processes": len(ranges),
        "num_threads": len(_THREADS) * len(ranges),
        "num_cores": _NUM_CORES,
        "coverage": 1.0,
    }
    # In the last pair, the first rank to arrive waits for the other one.
    return [{"id": "process-group-scaling", "rank": len(ranges) - 2, "metrics": metrics}]
