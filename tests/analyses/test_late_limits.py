"""What late reductions promise at most, and what programs of two simulators gain without them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.program_writer import Host, Rates
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import optimize, programs, reduce_beside
from tests.reference import gpu_programs as second
from tests.reference.gpu_machine import US, Steps, Thread
from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.changes import recorded, step_ns
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.analyses import late_allreduce
from traceprof.analyses.late_allreduce import ID
from traceprof.findings import Finding

MIB = 1 << 20


@dataclass(frozen=True)
class Program:
    """Steps of DDP on two ranks: passes over layers, and reductions of their gradients.

    Attributes:
        num_layers: of the model.
        layer_mib: of gradients.
        num_buckets: reductions, of equal sizes.
        num_kernels: of a layer's forward, and of its backward.
        slower: for each rank, how many times as long its backward takes.
        num_passes: forwards and backwards in a step.
        num_models: equal ones, each with a pass of its own, and reductions after all backwards.
        has_ranges: whether ranges name them.
        latency_ns: of a reduction of any size.
        is_late: whether reductions begin when the backward is over.
    """

    num_layers: int
    layer_mib: int
    num_buckets: int = 1
    num_kernels: tuple[int, int] = (4, 4)
    slower: tuple[int, int] = (1, 1)
    num_passes: int = 1
    num_models: int = 1
    has_ranges: bool = True
    latency_ns: int = 7_000
    is_late: bool = True

    def setup(self) -> Setup:
        rates = Rates(nccl=Fraction(60), nccl_latency_ns=self.latency_ns)
        return Setup(programs(np.random.default_rng(0), 8, self.step, rates), lambda _: [])

    def step(self, host: Host) -> None:
        names = ("forward", "backward") if self.has_ranges else ("one", "other")
        num_passes = self.num_passes * self.num_models
        for number in range(num_passes):
            with host.range(names[0]):
                of_layer = kernels.FORWARD[: self.num_kernels[0]]
                host.operator(host.compute, "aten::linear", *of_layer * self.num_layers)
            with host.range(names[1]):
                is_last = number == num_passes - 1
                of_models = is_last or (self.num_models > 1 and not self.is_late)
                self.backward(host, reduces=of_models)
        host.follow(host.compute, host.nccl)
        optimize(host)

    def backward(self, host: Host, *, reduces: bool) -> None:
        size, of_layer = self.num_layers * self.layer_mib * MIB // self.num_buckets, self.of_layer
        for layer in range(1, self.num_layers + 1):
            host.operator(host.compute, "aten::mm", *of_layer * self.slower[host.process])
            is_full = layer * self.num_buckets % self.num_layers == 0
            if reduces and is_full and not self.is_late:
                reduce_beside(host, size)
        for _ in range(self.num_buckets * self.num_models if reduces and self.is_late else 0):
            reduce_beside(host, size)

    @property
    def of_layer(self) -> tuple[kernels.Kernel, ...]:
        return kernels.BACKWARD[: self.num_kernels[1]]

    @property
    def backward_ns(self) -> int:
        """How long the slowest rank's backward computes."""
        of_layer = sum(kernel.duration_ns for kernel in self.of_layer)
        return of_layer * self.num_layers * max(self.slower)

    @property
    def earlier(self) -> "list[Program]":
        """The same with reductions that begin when gradients are there, of several sizes."""
        nums = {self.num_layers, min(self.num_buckets, self.num_layers), self.num_layers // 4}
        return [replace(self, is_late=False, num_buckets=num) for num in nums]


ONE = (1, 1)
PROGRAMS = {
    "short compute": Program(4, 80),
    "shorter compute": Program(16, 20, num_kernels=ONE),
    "long compute": Program(24, 4, num_kernels=(1, 4)),
    "as much of both": Program(12, 24),
    "several buckets": Program(12, 24, num_buckets=4),
    "small buckets": Program(24, 2, num_buckets=24),
    "small buckets, short compute": Program(48, 1, num_buckets=48, num_kernels=ONE),
    "high latency": Program(4, 12, num_buckets=48, num_kernels=ONE, latency_ns=50_000),
    "two passes": Program(4, 80, num_passes=2),
    "four passes": Program(4, 80, num_passes=4),
    "a slower rank": Program(4, 80, slower=(1, 2)),
    "two equal models": Program(4, 80, num_models=2),
    "three equal models": Program(4, 80, num_buckets=2, num_models=3),
    "without ranges": Program(4, 80, has_ranges=False),
}
HIDDEN = {"short compute", "shorter compute", "a slower rank"}  # where the backward is the limit
# One of each kind of limit and of program; the others are variations.
QUICK = {
    *("short compute", "two passes", "a slower rank", "without ranges"),
    *("as much of both", "two equal models", "high latency"),
}


def late_on(path: Path) -> list[Finding]:
    return [one for one in closed_analysis(path).findings if one.id == ID]


def assert_none_gains_more(found: Sequence[Finding], gain_ns: float) -> list[int]:
    limits = [one.saving.high_ns for one in found if one.saving and one.saving.high_ns]
    assert len(limits) == 2
    assert 0 < gain_ns <= min(limits)
    return limits


@pytest.mark.parametrize(
    "name", long_after(len(QUICK), sorted(PROGRAMS, key=lambda name: name not in QUICK))
)
def test_a_step_gains_no_more(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    setup = program.setup()
    result = setup.run()
    before_ns = step_ns(result)
    gain_ns = max(before_ns - step_ns(one.setup().run(), result) for one in program.earlier)
    found = late_on(recorded(setup, tmp_path / "t.sqlite", result))
    limits = assert_none_gains_more(found, gain_ns)
    if name in HIDDEN:
        # Beside the hundredth, by which kernels are longer or shorter than usual.
        assert max(limits) <= 1.02 * program.backward_ns
        assert {one.saving.limited_by for one in found if one.saving} == {
            "what the backward can hide"
        }


@pytest.mark.parametrize("slowdown", [1.0, 1.4])
@pytest.mark.parametrize(("num_layers", "ns"), [(1, 900 * US), (3, 250 * US)])
@pytest.mark.parametrize("seed", long_after(1, [0, 1]))
def test_a_step_of_the_second_simulator_gains_no_more(
    num_layers: int, ns: float, slowdown: float, seed: int, tmp_path: Path
) -> None:
    def program(*, is_late: bool) -> second.Program:
        def backward(thread: Thread) -> Steps:
            compute, nccl = thread.device.stream(second.COMPUTE), thread.device.stream(second.NCCL)
            for bucket in range(8):
                if bucket < 4:
                    yield from thread.launch(compute, *second.LAYER * num_layers)
                if bucket >= 4 if is_late else bucket < 4:
                    yield from thread.follow(nccl, compute, 100 + bucket)
                    yield from thread.collective(nccl, "0", 2, ns)

        def step(thread: Thread, _: int) -> Steps:
            compute, nccl = thread.device.stream(second.COMPUTE), thread.device.stream(second.NCCL)
            yield from thread.launch(compute, *second.LAYER * 3)
            yield from thread.named("backward", backward(thread))
            yield from thread.follow(compute, nccl, 200)
            yield from thread.launch(compute, second.ADAM)

        return second.Program(second.ranks(step, 2), "", slowdown=slowdown)

    run = program(is_late=True).run(seed)
    last = second.NUM_STEPS - 2
    gain_ns = run.step_ns(1, last) - program(is_late=False).run(seed).step_ns(1, last)
    assert_none_gains_more(late_on(run.write(tmp_path)), gain_ns)


@pytest.mark.parametrize(
    ("ranges", "thread", "ready_ns"),
    [
        ([], 1, 0),
        ([("forward", 0, 250, 1)], 1, 0),
        ([("backward", 255, 590, 1)], 1, 300),
        ([("Backward pass", 295, 590, 1)], 2, 400),
        # Autograd's thread launched before: this is a part of the backward only.
        ([("backward", 385, 590, 2)], 2, 300),
        ([(f"autograd::engine::evaluate_function: {name}Backward0, op_id = 7", start, start + 50, 2)
          for name, start in (("Nll", 285), ("Addmm", 385))], 2, 300),
        ([("backward", 585, 590, 1)], 1, 0),  # nothing of it ran before the reduction
        ([("backward_hook", 385, 590, 1)], 1, 0),
    ],
)  # fmt: skip
def test_gradients_begin_with_the_backward(
    ranges: Sequence[tuple[str, int, int, int]], thread: int, ready_ns: int, tmp_path: Path
) -> None:
    # thread 1  |0 forward|100   |200
    # `thread`                         |300   |400   |500 to 600
    builder = TraceBuilder()
    for begin in range(0, 4000, 1000):
        builder.nvtx(f"step {begin}", begin, begin + 990, tid=1)
        for name, start, end, tid in ranges:
            builder.nvtx(name, begin + start, begin + end, tid=tid)
        for start in range(0, 600, 100):
            launch, tid = (begin + start - 10, begin + start - 5), thread if start > 250 else 1
            if start == 0:
                launch = begin, begin + 1
            builder.kernel(begin + start, begin + start + 90, launch=launch, tid=tid)
        launch = begin + 595, begin + 599
        builder.kernel(begin + 610, begin + 880, ALL_REDUCE, stream=20, launch=launch, tid=1)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        steps = late_allreduce.run(rank, rank.window).steps
    assert (steps.ready_ns % 1000).tolist() == [ready_ns] * 3
