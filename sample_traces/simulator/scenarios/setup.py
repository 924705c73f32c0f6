"""Scenarios: the programs of all processes, the machine, and the expected findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from sample_traces.simulator.event_model import lost_time
from sample_traces.simulator.event_model.actions import Action, Call, Thread
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.engine import QUEUE_LIMIT, Result, Simulation
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.machine import A100, TORCH_THREADS, Board
from sample_traces.simulator.nsight_writer import NsightWriter

Finding = dict[str, Any]

_LATENCIES = Latencies()
_START_NS = 1_500_000_000
_START_SPREAD_NS = 40_000  # processes are apart, but too little to look like stragglers


@dataclass(frozen=True)
class Setup:
    """One scenario, ready to run."""

    hosts: tuple[Host, ...]  # the programs of the processes' main threads, by rank
    findings: Callable[[Ranks], list[Finding]]  # the truth, from the result
    devices: tuple[tuple[int, ...], ...] = ()  # of each process, its CUDA ordinals
    board: Board = A100  # the kind of all GPUs
    slowdown: Fraction = Fraction(1)  # of compute kernels beside communication
    # the largest number of operations of one process that are launched, but not over
    queue_limit: int = QUEUE_LIMIT
    latencies: Latencies = _LATENCIES  # between cause and effect
    mpi_program: str = ""  # the name of each process, if it is a program of MPI and not PyTorch
    # writes further tables of the export, from the result
    write_more: Callable[[NsightWriter, Ranks], None] | None = None
    # further transfers over links, from the result
    more_links: Callable[[Ranks], list[dict[str, Any]]] | None = None

    @property
    def devices_of_processes(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each process; by default one each."""
        return self.devices or tuple((host.process,) for host in self.hosts)

    @property
    def thread_names(self) -> tuple[str, ...]:
        return (self.mpi_program,) if self.mpi_program else TORCH_THREADS

    def run(self, change: Callable[[Sequence[Action]], Iterable[Action]] | None = None) -> Result:
        """Run it with changed actions of each process, but the same random numbers; repeatable."""
        simulation = Simulation(
            slowdown=self.slowdown, queue_limit=self.queue_limit, latencies=self.latencies
        )
        for host in self.hosts:
            start = _START_NS + host.varied_start(_START_SPREAD_NS)
            actions = host.actions if change is None else change(host.actions)
            simulation.add(Thread(host.process), actions, start)
        return simulation.run()

    def without_queue_limit(self) -> Result:
        return replace(self, queue_limit=1 << 30).run()

    def without_waits(self) -> Result:
        """Run it with a host that never waits for the GPU."""
        return self.run(
            lambda actions: [
                replace(action, until=None, blocking=False) if isinstance(action, Call) else action
                for action in actions
            ]
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    summary: str  # one line for `--help`
    # makes the setup; all that varies comes from the generator
    build: Callable[[np.random.Generator], Setup]
    silent: tuple[str, ...] = ()  # findings that must not be reported above info
    only: tuple[str, ...] | None = None  # instead, the only findings that may be
    has_overhead_rows: bool = True  # see `machine.Machine`
    has_json_payloads: bool = False  # see `machine.Machine`
    host_tables: frozenset[str] = frozenset()  # see `machine.Machine`
    is_sample: bool = True  # whether its export is among `sample_traces/`


def finding(name: str, rank: int, **metrics: object) -> Finding:
    return {"id": name, "rank": rank, "metrics": metrics}


def idle(ranks: Ranks) -> list[Finding]:
    return [
        finding("gpu-idle", rank, **lost_time.idle(ranks, rank))
        for rank in range(len(ranks.places))
    ]
