"""What late reductions promise at most, and what programs of two simulators gain without them."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
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
from tests.support.traces import ranks_of
from traceprof.analyses import late_allreduce
from traceprof.analyses.late_allreduce import ID
from traceprof.analysis import Options, analyze
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
        reduces_each: whether each pass reduces, and what follows waits for it.
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
    reduces_each: bool = False
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
                self.backward(host, reduces=of_models or self.reduces_each)
            if self.reduces_each:
                host.follow(host.compute, host.nccl)
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
        """How long the slowest rank's last backward computes."""
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
    "two passes without ranges": Program(4, 80, num_passes=2, has_ranges=False),
    "four passes": Program(4, 80, num_passes=4),
    "four passes that reduce": Program(4, 80, num_passes=4, reduces_each=True),
    "four passes that reduce twice": Program(4, 80, 2, num_passes=4, reduces_each=True),
    "two passes that reduce": Program(12, 24, num_passes=2, reduces_each=True),
    "a slower rank": Program(4, 80, slower=(1, 2)),
    "two equal models": Program(4, 80, num_models=2),
    "three equal models": Program(4, 80, num_buckets=2, num_models=3),
    "without ranges": Program(4, 80, has_ranges=False),
}
LAST = {"two passes", "four passes"}  # where the last backward is the limit
EACH = {"four passes that reduce": 4}  # where each backward is
HIDDEN = {"short compute", "shorter compute", "a slower rank", *LAST, *EACH}  # where backwards are
# One of each kind of limit and of program; the others are variations.
QUICK = {
    *("short compute", "two passes", "four passes that reduce", "a slower rank", "without ranges"),
    *("as much of both", "two equal models", "high latency"),
}


def late_on(path: Path) -> list[Finding]:
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        return [one for one in analysis.result.findings if one.id == ID]


def assert_none_gains_more(found: Sequence[Finding], gain_ns: float) -> list[int]:
    limits = [one.saving.high_ns for one in found if one.saving and one.saving.high_ns]
    assert len(limits) == 2
    assert 0 < gain_ns <= min(limits)
    return limits


def with_autograd(path: Path) -> Path:
    """Let autograd's thread make the launches in the ranges of backwards, and no range show it."""
    passes = "textId IN (SELECT id FROM StringIds WHERE value IN ('forward', 'backward'))"
    backward = "textId IN (SELECT id FROM StringIds WHERE value = 'backward')"
    with closing(sqlite3.connect(path)) as connection, connection:
        threads = [tid for (tid,) in connection.execute("SELECT globalTid FROM ThreadNames")]
        for main, autograd in zip(sorted(threads)[::2], sorted(threads)[1::2], strict=True):
            called = connection.execute(
                "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME AS call SET globalTid = ? WHERE globalTid = ?"
                f" AND EXISTS (SELECT 1 FROM NVTX_EVENTS AS one WHERE {backward}"
                " AND globalTid = ? AND one.start <= call.start AND call.start < one.end)",
                (autograd, main, main),
            )
            assert called.rowcount
        assert connection.execute(f"DELETE FROM NVTX_EVENTS WHERE {passes}").rowcount
    return path


@pytest.mark.parametrize(
    "name", long_after(len(QUICK), sorted(PROGRAMS, key=lambda name: name not in QUICK))
)
def test_a_step_gains_no_more(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    setup = program.setup()
    result = setup.run()
    before_ns = step_ns(result)
    gain_ns = max(before_ns - step_ns(one.setup().run(), result) for one in program.earlier)
    path = recorded(setup, tmp_path / "t.sqlite", result)
    # Without ranges nothing else shows the backwards.
    for has_autograd in (False, True) if program.has_ranges else (False,):
        found = late_on(with_autograd(path) if has_autograd else path)
        limits = assert_none_gains_more(found, gain_ns)
        if name in HIDDEN:
            # Beside the hundredth, by which kernels are longer or shorter than usual.
            assert max(limits) <= 1.02 * program.backward_ns * EACH.get(name, 1)
            limited_by = f"what the {'last ' * (name in LAST)}backward can hide"
            assert {one.saving.limited_by for one in found if one.saving} == {limited_by}


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


OTHER = "void at::native::vectorized_elementwise_kernel<4>(int)"
TWO_PASSES = [("forward", 0, 95), ("backward", 95, 195), ("forward", 195, 295),
              ("backward", 295, 405)]  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "kernels_of_last", "ready_ns"),
    [
        (TWO_PASSES, ["gemm"], 300),
        ([(name.title() + " 1", *times) for name, *times in TWO_PASSES], ["gemm"], 300),
        ([*TWO_PASSES, ("forward", 500, 590)], ["gemm"], 300),  # a validation, or the next batch
        # Parts of a backward that runs its forwards again, and with ranges inside of it.
        ([*TWO_PASSES, ("forward", 310, 320), ("backward", 330, 340)], ["gemm"], 300),
        (TWO_PASSES, ["gemm", OTHER], 100),  # of another model, whose gradients are its own
        ([one for one in TWO_PASSES if one != ("forward", 195, 295)], ["gemm"], 100),  # two losses
        # Parts of one backward, by layer.
        ([("backward", 95, 150), ("backward", 150, 195), ("backward", 295, 405)], ["gemm"], 100),
    ],
)
def test_gradients_that_accumulate_begin_with_the_last_backward(
    ranges: Sequence[tuple[str, int, int]],
    kernels_of_last: Sequence[str],
    ready_ns: int,
    tmp_path: Path,
) -> None:
    builder = TraceBuilder()
    for begin in range(0, 4000, 1000):
        builder.nvtx(f"step {begin}", begin, begin + 990)
        for name, start, end in sorted(ranges, key=lambda one: (one[1], -one[2])):
            builder.nvtx(name, begin + start, begin + end)
        for start in range(0, 400, 100):
            names = kernels_of_last if start == 300 else ["gemm"]
            for number, name in enumerate(names):
                at = begin + start + 50 * number
                launch = (at, at + 1) if start == 0 else (at - 4, at - 3)
                builder.kernel(at, at + 90 // len(names), name, launch=launch)
        builder.kernel(begin + 410, begin + 880, ALL_REDUCE, stream=20,
                       launch=(begin + 401, begin + 403))  # fmt: skip
    with ranks_of(builder.write(tmp_path)) as (rank,):
        steps = late_allreduce.run(rank, rank.window).steps
    assert (steps.ready_ns % 1000).tolist() == [ready_ns] * 3
    assert steps.accumulates == (ready_ns == 300)


@pytest.mark.parametrize(
    ("num_reductions", "between", "ready_ns"),
    [
        (1, "gemm", 300),
        (3, "gemm", 300),  # no two models have as many
        (2, "gemm", 100),  # of one model each, or two of one
        (4, "gemm", 100),
        (1, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>(int)", 100),
    ],
)
def test_equal_models_do_not_accumulate(
    num_reductions: int, between: str, ready_ns: int, tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for begin in range(0, 4000, 1000):
        builder.nvtx(f"step {begin}", begin, begin + 990)
        for name, start, end in TWO_PASSES:
            builder.nvtx(name, begin + start, begin + end)
        for start in range(0, 400, 100):
            at = begin + start
            name = between if start == 200 else "gemm"
            builder.kernel(
                at, at + 90, name, launch=(at, at + 1) if start == 0 else (at - 4, at - 3)
            )
        for number in range(num_reductions):
            at = begin + 410 + 100 * number
            builder.kernel(at, at + 90, ALL_REDUCE, stream=20, launch=(at - 9, at - 7))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        steps = late_allreduce.run(rank, rank.window).steps
    assert (steps.ready_ns % 1000).tolist() == [ready_ns] * 3
    assert steps.accumulates == (ready_ns == 300)
