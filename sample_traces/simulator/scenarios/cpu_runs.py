"""Data-parallel training without GPUs on several machines, with one late rank.

In each step a rank loads data, computes forward and backward, during which gradient buckets are
reduced, waits for the last one, steps the optimizer, and reduces the loss. The ranges are
those of `instrument` over Gloo.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sample_traces.simulator.event_model.actions import Rendezvous, Thread
from sample_traces.simulator.event_model.cpu_program import US, CpuProgram
from sample_traces.simulator.event_model.engine import Simulation
from sample_traces.simulator.scenarios.ranks import NUM_RANKS
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from sample_traces.simulator.event_model.actions import Leaving
    from sample_traces.simulator.event_model.engine import Result

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
    """The deviation of one rank without a GPU from the others.

    Attributes:
        cause: as in the finding; None for a balanced run.
        forward: factor on the duration of its forward.
        loading_ns: additional wait for its data.
        unnamed_ns: time outside of all ranges.
        has_pairs: whether pairs of neighbours reduce a tensor within the forward, so that one is
            late because it waits for the other, late one.
    """

    cause: str | None
    forward: float = 1.0
    loading_ns: int = 0
    unnamed_ns: int = 0
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
    """Return the result of a run of eight ranks, and the operations of each process group.

    Args:
        rng: for durations and for the times at which members leave.
        plan: of the late rank.
        late: the rank.
    """
    writer = _Writer(rng, plan, late)
    for step in range(_STEPS):
        writer.write(step)
    simulation = Simulation(range_cost_ns=0)
    for program in writer.ranks:
        simulation.add(Thread(program.process), program.actions, _START_NS)
    return simulation.run(), writer.operations


class _Writer:
    """Writes the programs of all ranks.

    Attributes:
        ranks: their programs so far.
        operations: of each process group.
    """

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
