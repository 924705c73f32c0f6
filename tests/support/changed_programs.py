"""Simulated programs before and after a change, and the assumption that stands for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from sample_traces.simulator import SCENARIOS, kernels
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.event_model.engine import Result
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import Host, Rates
from sample_traces.simulator.scenarios import idle as planted
from sample_traces.simulator.scenarios.pipelines import SENDS, Plan, pipeline, sending
from sample_traces.simulator.scenarios.ranks import NUM_RANKS, STRAGGLERS, training
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import WORLD, programs, reduce_beside
from tests.support.changes import (
    each_on_its_own_stream,
    faster_kernels,
    faster_links,
    in_half_precision,
    step_ns,
    without_copies,
    without_launching,
    without_loading,
    without_slowdown,
    without_stalls,
)
from tests.support.planted import all_ranks, few_cores

Build = Callable[[np.random.Generator], Setup]

_MIB = 1 << 20


def queue_filled(rng: np.random.Generator) -> Setup:
    """Each step the first rank fills its queue with short kernels before it launches a reduction.

    The reduction needs none of them; the other rank waits for it.
    """

    def step(host: Host) -> None:
        host.operator(host.compute, "aten::linear", *kernels.FORWARD)
        ready = host.record(host.compute)
        if host.process == 0:
            host.launch(host.compute, *[kernels.GELU] * 60)
        host.wait(host.nccl, ready)
        host.collective("all_reduce", WORLD, host.nccl, 200 * _MIB)
        host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD * (1 + 7 * host.process))
        reduce_beside(host, 4096)
        host.follow(host.compute, host.nccl)

    return Setup(programs(rng, 8, step), lambda _: [], queue_limit=32)


def launch_bound(rng: np.random.Generator) -> Setup:
    """The scenario of this name on a GPU that takes as long between kernels as real ones."""
    setup = SCENARIOS["launch-bound"].build(rng)
    return replace(setup, latencies=Latencies(stream_gap=1_500))


def launch_bound_reductions(num_steps: int, num: int, rng: np.random.Generator) -> Setup:
    """Two ranks, never waiting for their GPUs but for each other: this number of reductions."""

    def step(host: Host) -> None:
        host.to_device(host.compute, 2 * _MIB)
        for _ in range(num):
            host.launch(host.compute, *kernels.TINY * 15)
            reduce_beside(host, 14 * _MIB)
        host.launch(host.compute, *kernels.TINY * 6)
        host.follow(host.compute, host.nccl)
        host.launch(host.compute, *kernels.TINY * 6)

    latencies = Latencies(stream_gap=1_500)
    return Setup(programs(rng, num_steps, step), lambda _: [], latencies=latencies)


def slowed_down(rng: np.random.Generator) -> Setup:
    """Reductions are hidden, but the kernels beside them take 1.4 times as long."""

    def step(host: Host) -> None:
        host.operator(host.compute, "aten::linear", *kernels.FORWARD * 3)
        for _ in range(2):
            reduce_beside(host, 180 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.FORWARD * 4)
        host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)

    return Setup(programs(rng, 6, step), lambda _: [], slowdown=Fraction(7, 5))


def buckets_in_a_row(
    rng: np.random.Generator, sizes_mib: Sequence[int], aside: Sequence[int] = ()
) -> Setup:
    """Reductions wait behind each other, and each for the layers before it.

    What follows waits for the stream, and so for all of them. Those `aside`, by their places, are
    of a communicator of their own.
    """
    other = Communicator(0x5EED_0000_0000_0077, "7", WORLD.processes)

    def step(host: Host) -> None:
        host.operator(host.compute, "aten::linear", *kernels.FORWARD * 2)
        for place, size_mib in enumerate(sizes_mib):
            host.operator(host.compute, "aten::mm", *kernels.FORWARD * 2)
            group, size = other if place in aside else WORLD, size_mib * _MIB
            host.collective("all_reduce", group, host.nccl, size, after=host.compute)
        host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)

    return Setup(programs(rng, 8, step), lambda _: [])


def statistics_behind_gradients(rng: np.random.Generator, *, is_apart: bool) -> Setup:
    """Compute needs small statistics, which stand behind gradients of another communicator."""
    statistics = Communicator(0x5EED_0000_0000_0077, "7", WORLD.processes)

    def step(host: Host) -> None:
        stream = host.stream(33) if is_apart else host.nccl
        host.operator(host.compute, "aten::linear", *kernels.FORWARD)
        reduce_beside(host, 200 * _MIB)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD)
        host.collective("all_reduce", statistics, stream, 32 << 10, after=host.compute)
        host.follow(host.compute, stream)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD * 2)
        reduce_beside(host, 32 << 10)
        host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)

    return Setup(programs(rng, 8, step), lambda _: [])


def late_rank(key: str, rng: np.random.Generator, *, is_cured: bool) -> Setup:
    """Eight ranks, one of which is late for a reason, or would be."""
    plan = STRAGGLERS[key]
    late = int(rng.integers(NUM_RANKS)) | plan.upstream
    if is_cured:
        plan = replace(plan, delay=None, slower=1.0)
    return training(rng, plan, late, is_labelled=True, num_steps=12)


def in_buckets(cap_mib: int, rng: np.random.Generator) -> Setup:
    """DDP: gradients of 12 MiB each, reduced when a bucket holds as much as it may."""

    def step(host: Host) -> None:
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD * 4)
        with host.range("backward"):
            size = 0
            for layer in range(24):
                host.operator(host.compute, "aten::mm", *kernels.BACKWARD[:2])
                size += 12 * _MIB
                if size >= cap_mib * _MIB or layer == 23:
                    reduce_beside(host, size)
                    size = 0
            host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)
        host.synchronize(host.compute)

    return Setup(programs(rng, 6, step, Rates(nccl=Fraction(60))), lambda _: [])


def staged(order: str, work: Sequence[float], rng: np.random.Generator) -> Setup:
    """A pipeline whose stages compute this many times as much as usual."""
    return pipeline(rng, Plan(order, len(work), 2 * len(work), tuple(work), num_steps=8))


@dataclass(frozen=True)
class Pair:
    """A program, a change of it, and what is assumed."""

    program: str
    assume: str
    changed: Callable[[Setup], Result] | None  # what happens with the change
    build: Build | None = None  # makes the program; that of the scenario of this name where None
    # makes the changed program, where that is not made from the first one
    other: Build | None = None

    def __str__(self) -> str:
        """Return its name among tests."""
        return f"{self.program}:{self.assume}"

    def setup(self, seed: int) -> Setup:
        build = self.build or SCENARIOS[self.program].build
        return build(np.random.default_rng(seed))

    def changed_step_ns(self, setup: Setup, seed: int, before: Result) -> float:
        """Return what a step takes with the change, of those that were steady before."""
        if self.changed is None:
            assert self.other is not None
            changed = self.other(np.random.default_rng(seed)).run()
        else:
            changed = self.changed(setup)
        return step_ns(changed, before, counts_first=self.counts_first)

    @property
    def counts_first(self) -> bool:
        """Whether the first step counts: see `step_ns`."""
        return self.assume in {"no-data-loading", "no-host-stall"}


twice_as_fast = partial(faster_links, factor=0.5)
no_communication = partial(faster_links, factor=0)
STAGED = (
    ("1f1b", (1.0, 1.6)), ("gpipe", (1.0, 1.2, 1.0, 1.7)), ("1f1b", (1.3, 1.0, 1.4, 1.0)),
    ("interleaved", (1.0, 1.5, 1.0, 1.0)),
)  # fmt: skip
PAIRS = (
    *(
        Pair(program, "no-sync", Setup.without_waits)
        for program in ("host-sync", "lost-run-ahead", "pageable-copy", "sleeping-checkpoint")
    ),
    Pair("queue-filled", "no-launch-stall", Setup.without_queue_limit, queue_filled),
    Pair("slowed-down", "no-overlap-slowdown", without_slowdown, slowed_down),
    *(
        Pair(program, "no-data-loading", without_loading)
        for program in ("data-loading", "sleeping-loader")
    ),
    *(
        Pair(program, "no-serialization", each_on_its_own_stream)
        for program in ("nccl-serialization", "exposed-queued")
    ),
    *(
        Pair(name, "no-serialization", each_on_its_own_stream,
             partial(buckets_in_a_row, sizes_mib=sizes_mib))
        for name, sizes_mib in (("buckets-in-a-row", (300, 300, 300)), ("short-last", (600, 8)))
    ),
    Pair("one-aside", "no-serialization", each_on_its_own_stream,
         partial(buckets_in_a_row, sizes_mib=(300, 200, 300), aside=(1,))),
    *(
        Pair(program, "link=2x", twice_as_fast)
        for program in (
            "late-allreduce", "compute-stream-collective", "nccl-serialization",
            "small-collectives", "exposed-needed-at-once", "overlap-slowdown",
            "p2p-slower-than-copy", "peer-copies",
        )
    ),
    Pair("slowed-down", "link=2x", twice_as_fast, slowed_down),
    *(
        Pair(program, "kernel:gemm=0.5x", partial(faster_kernels, pattern="gemm", factor=0.5))
        for program in ("healthy", "overlap-slowdown", "late-allreduce", "exposed-late-launch")
    ),
    *(
        Pair(
            f"late-{key}", "no-straggler", None,
            partial(late_rank, key, is_cured=False), partial(late_rank, key, is_cured=True),
        )
        for key in STRAGGLERS
    ),
    *(
        Pair(
            f"buckets-of-{before}", f"bucket-cap-mb={after}", None,
            partial(in_buckets, before), partial(in_buckets, after),
        )
        for before, after in ((25, 100), (25, 72), (25, 10), (25, 300), (100, 25))
    ),
    Pair("pipeline-sends", "send-order=ready-first", None, partial(sending, plan=SENDS),
         partial(sending, plan=replace(SENDS, is_gradient_first=False))),
    *(
        Pair(
            f"{len(work)}-stages-{order}", "link=2x", twice_as_fast,
            partial(staged, order, work),
        )
        for order, work in STAGED
    ),
    *(
        Pair(f"stalled: {name}", "no-host-stall", without_stalls, build)
        for name, build in (
            ("one rank", planted.one_rank), ("all ranks", all_ranks),
            ("few cores", partial(few_cores, since_ns=0)),
        )
    ),
    Pair("full-precision-matmul", "half-precision", in_half_precision),
    Pair("launch-bound", "launch=0", without_launching, launch_bound),
    *(
        Pair(program, "communication=0", no_communication)
        for program in ("late-allreduce", "nccl-serialization")
    ),
    Pair("slowed-down", "communication=0", no_communication, slowed_down),
    *(
        Pair(program, "copies-hidden", without_copies)
        for program in ("exposed-copy", "pageable-copy")
    ),
)  # fmt: skip
