"""What a pipeline takes in other orders of its passes, beside the simulator's run of that order."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.program_writer import Host, Rates
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.stages import RECEIVES, SENDS, pair
from tests.support.changes import middle_step_ns, recorded
from tests.support.selection import long_after
from traceprof.replay.assumptions.pipelines import PipelineModel, StageCost, schedule_times
from traceprof.replay.whatif import whatif
from traceprof.run.pipeline_orders import ORDERS, Pass, interleaved

_NUM_STAGES, _NUM_MICRO_BATCHES = 4, 8
_BYTES = 48 << 20
_TIMES = {True: 6, False: 12}  # kernels of a pass: forward, backward
_KERNEL = kernels.QKV


def num_kernels(stage: int, *, is_forward: bool) -> int:
    """The first stage has more to do, so that what slows it down counts."""
    return _TIMES[is_forward] * (2 if stage == 0 else 1)


def program(rng: np.random.Generator, order: str, slowdown: Fraction) -> Setup:
    """The pipeline with its passes in an order; a stage asks for what the next pass needs."""
    num_chunks = 2 if order == "interleaved" else 1
    hosts = tuple(Host(rank, rng) for rank in range(_NUM_STAGES))
    for host in hosts:
        for step in range(3):
            with host.step(step):
                for one in ORDERS[order](host.process, _NUM_STAGES, _NUM_MICRO_BATCHES):
                    _pass(host, one, num_chunks)
                host.synchronize(host.compute)
                host.synchronize(host.stream(SENDS))
    return Setup(hosts, lambda _: [], slowdown=slowdown)


def _pass(host: Host, one: Pass, num_chunks: int) -> None:
    sends, receives = host.stream(SENDS), host.stream(RECEIVES)
    part = one.chunk * _NUM_STAGES + host.process
    step = 1 if one.is_forward else -1
    last = _NUM_STAGES * num_chunks
    if 0 <= part - step < last:
        source = (part - step) % _NUM_STAGES
        host.send_recv(
            "recv", source, pair(source, host.process), receives, _BYTES, after=host.compute
        )
        host.follow(host.compute, receives)
    launched: list[Kernel] = [_KERNEL] * (
        num_kernels(host.process, is_forward=one.is_forward) // num_chunks
    )
    with host.range("forward" if one.is_forward else "backward"):
        host.operator(host.compute, "aten::linear", *launched)
    if 0 <= part + step < last:
        destination = (part + step) % _NUM_STAGES
        host.send_recv(
            "send", destination, pair(host.process, destination), sends, _BYTES,
            after=host.compute,
        )  # fmt: skip


def pipeline(slowdown: Fraction) -> PipelineModel:
    latency, rate = Rates().nccl_latency_ns, float(Rates().nccl)
    moved = latency + _BYTES / rate
    stages = tuple(
        StageCost(
            *(
                num_kernels(stage, is_forward=is_forward) * _KERNEL.duration_ns
                for is_forward in (True, False)
            )
        )
        for stage in range(_NUM_STAGES)
    )
    return PipelineModel(stages, _NUM_MICRO_BATCHES, moved, moved, float(slowdown))


@pytest.mark.slow
@pytest.mark.parametrize(
    "slowdown", long_after(1, [Fraction(3, 2), Fraction(1)]), ids=["taxed", "independent"]
)
@pytest.mark.parametrize("order", long_after(1, ["interleaved", "1f1b", "gpipe"]))
def test_an_order_takes_what_the_simulator_gives(order: str, slowdown: Fraction) -> None:
    """Within 2 %: the model knows nothing of microseconds between kernels."""
    (estimate,) = (one for one in schedule_times(pipeline(slowdown)) if one.order == order)
    assert estimate.step_ns is not None
    assert estimate.naive_ns is not None
    truth = middle_step_ns(program(np.random.default_rng(0), order, slowdown).run())
    assert estimate.step_ns == pytest.approx(truth, rel=0.02)
    assert estimate.step_ns >= estimate.naive_ns
    if slowdown == 1:
        assert estimate.step_ns == estimate.naive_ns
    elif order == "interleaved":  # it has always something under way
        assert estimate.step_ns > 1.03 * estimate.naive_ns


@pytest.mark.long
def test_orders_of_a_recorded_run(tmp_path: Path) -> None:
    """A run in one order tells what the others take, with kernels slowed down and without."""
    slowdown = Fraction(3, 2)
    path = recorded(program(np.random.default_rng(0), "interleaved", slowdown), tmp_path / "a")
    assert (
        whatif(path, assume=["no-sync"]).whatif.schedules == ()
    )  # the last stage sends to the first one: no line
    setup = program(np.random.default_rng(0), "1f1b", slowdown)
    told = whatif(recorded(setup, tmp_path / "b"), assume=["no-sync"]).whatif.schedules
    path = recorded(setup, tmp_path / "c", has_events=False)
    assert whatif(path, assume=["no-sync"]).whatif.schedules == told
    assert [one.order for one in told] == list(ORDERS)
    for one in told:
        truth = middle_step_ns(program(np.random.default_rng(1), one.order, slowdown).run())
        assert one.step_ns == pytest.approx(truth, rel=0.03)


def test_without_communication_a_pipeline_takes_its_bubbles() -> None:
    """(micro-batches + stages - 1) forwards and backwards, whatever the order but interleaved."""
    same = (pipeline(Fraction(1)).stages[1],) * _NUM_STAGES
    free = replace(pipeline(Fraction(1)), stages=same, activations_ns=0.0, gradients_ns=0.0)
    of_order = {one.order: one.step_ns for one in schedule_times(free)}
    passes = free.stages[0].forward_ns + free.stages[0].backward_ns
    expected = (_NUM_MICRO_BATCHES + _NUM_STAGES - 1) * passes
    assert of_order["gpipe"] == of_order["1f1b"] == pytest.approx(expected)
    shorter = (_NUM_MICRO_BATCHES + (_NUM_STAGES - 1) / 2) * passes
    assert of_order["interleaved"] == pytest.approx(shorter)


@pytest.mark.parametrize("num_stages", long_after(2, [2, 4, 8]))
@pytest.mark.parametrize("order", ORDERS)
def test_every_pass_is_there_once(order: str, num_stages: int) -> None:
    for stage in range(num_stages):
        passes = ORDERS[order](stage, num_stages, 2 * num_stages)
        num_chunks = 2 if order == "interleaved" else 1
        assert len(passes) == len(set(passes)) == 4 * num_stages * num_chunks
        seen = set()
        for one in passes:  # a backward comes after its forward
            if not one.is_forward:
                assert replace(one, is_forward=True) in seen
            seen.add(one)


def test_micro_batches_that_cannot_be_dealt_out() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        interleaved(0, 4, 6)
    odd = replace(pipeline(Fraction(1)), num_micro_batches=6)
    assert [one.order for one in schedule_times(odd)] == ["gpipe", "1f1b"]
