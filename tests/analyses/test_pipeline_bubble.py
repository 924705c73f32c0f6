"""`pipeline-bubble`: planted pipelines are found with their parts, other programs are not."""

from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator, Push
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.engine import Node
from sample_traces.simulator.event_model.program_writer import Host, Rates
from sample_traces.simulator.scenarios.pipelines import Plan, pipeline
from sample_traces.simulator.scenarios.setup import Setup
from tests.reference import pipelines as reference
from tests.support.changes import bubbles, recorded, recorded_apart
from tests.support.selection import long_after
from tests.support.traces import SAMPLES, analysis_of, closed_analysis
from traceprof.analyses.pipeline_bubble import ID, PARTS, longest_stages
from traceprof.analysis import analyze
from traceprof.ranks.bubbles import StageGaps
from traceprof.ranks.passes import FORWARD
from traceprof.units import percent

_NO_TIME = Rates(nccl=Fraction(10**9), nccl_latency_ns=1, peer=Fraction(10**9))
_PIPELINES = {"pipeline-sends", "pipeline-copies", "pipeline-bubble"}


def simulated(
    plan: Plan, path: Path, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what is found of a simulated pipeline, and its truth."""
    setup = pipeline(np.random.default_rng(seed), plan)
    result = setup.run()
    truth = [finding["metrics"] for finding in setup.findings(Ranks(result))]
    return bubbles(closed_analysis(recorded(setup, path, result), only=[ID])), truth


def assert_near(found: Sequence[dict[str, Any]], truth: Sequence[dict[str, Any]]) -> None:
    """Compare stages with the truth: parts to 1.5 % of the bubble, the rest exactly."""
    assert len(found) == len(truth)
    for one, expected in zip(found, truth, strict=True):
        assert one["bubble_ns"] == expected["bubble_ns"] == sum(one[part] for part in PARTS)
        for part in PARTS:
            assert one[part] == pytest.approx(expected[part], abs=0.015 * expected["bubble_ns"])
        for name in ("num_stages", "num_micro_batches", "ideal_fraction"):
            assert one[name] == expected[name]


@pytest.mark.parametrize("num_stages", long_after(1, [4, 2, 8]))
@pytest.mark.parametrize("order", long_after(1, ["interleaved", "1f1b", "gpipe"]))
@pytest.mark.parametrize("is_copying", long_after(1, [True, False]))
def test_unequal_stages(tmp_path: Path, order: str, num_stages: int, is_copying: bool) -> None:
    # One thread cannot launch 8 GPUs' interleaved passes in time: it has fewer to launch.
    num_stages = 4 if is_copying and order == "interleaved" else num_stages
    plan = Plan(
        order, num_stages, num_stages, (1.0, 1.4, *(1.0,) * (num_stages - 2)), 2,
        is_copying=is_copying,
    )  # fmt: skip
    found, truth = simulated(plan, tmp_path / "run.sqlite")
    assert_near(found, truth)
    assert {one["schedule"] for one in found} == {order}


@pytest.mark.parametrize("order", long_after(1, ["gpipe", "1f1b", "interleaved"]))
@pytest.mark.parametrize("num_stages", long_after(1, [2, 4, 8]))
def test_the_closed_formula_holds_on_ideal_pipelines(
    tmp_path: Path, order: str, num_stages: int
) -> None:
    plan = Plan(order, num_stages, 8, num_steps=2, rates=_NO_TIME, is_even=True)
    found, _ = simulated(plan, tmp_path / "run.sqlite")
    ideal = (num_stages - 1) / (8 * (2 if order == "interleaved" else 1))
    for one in found:
        assert one["ideal_fraction"] == ideal
        # The optimizer is no forward and no backward.
        passes_ns = one["bubble_ns"] / one["actual_fraction"] - 2 * kernels.ADAM.duration_ns
        assert one["warm_up_ns"] / passes_ns == pytest.approx(ideal, rel=0.01)
        # Streams and links take microseconds from each pass to the next.
        hops = 2 * 2 * 8 * one["num_chunks"]
        assert one["bubble_ns"] - one["warm_up_ns"] < hops * 10_000


@pytest.mark.parametrize(
    "plan",
    long_after(
        1,
        [
            Plan("1f1b", 4, 4, (1.0, 1.0, 1.2, 1.7), 3, 9_000_000, is_prefetching=True),
            Plan("interleaved", 4, 4, num_steps=2, is_prefetching=True),
            Plan("gpipe", 2, 5, (1.0, 1.6), 2, 4_000_000),
            Plan("1f1b", 3, 1, num_steps=3),
        ],
    ),
)
def test_late_data_and_early_receives(tmp_path: Path, plan: Plan) -> None:
    assert_near(*simulated(plan, tmp_path / "run.sqlite", seed=3))


@pytest.mark.parametrize(
    "plan",
    long_after(
        1,
        [
            Plan("interleaved", 2, 4, (1.0, 1.2), 2),
            Plan("gpipe", 2, 4, num_steps=2, is_prefetching=True),
            Plan("1f1b", 4, 6, (1.0, 1.3, 1.0, 1.1), 2, 5_000_000),
        ],
    ),
)
def test_it_agrees_with_plain_python(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "run.sqlite"
    found, _ = simulated(plan, path)
    for one, expected in zip(found, reference.bubbles(path), strict=True):
        # Means are rounded: a nanosecond for each pass.
        assert {name: one[name] for name in expected} == pytest.approx(expected, abs=200)


def test_without_ranges_parts_are_near_and_the_schedule_is_unknown(tmp_path: Path) -> None:
    plan = Plan("1f1b", 4, 4, num_steps=2, is_labelled=False)
    found, truth = simulated(plan, tmp_path / "run.sqlite")
    for one, expected in zip(found, truth, strict=True):
        assert one["schedule"] is None
        assert one["num_micro_batches"] == 4
        assert one["bubble_ns"] == expected["bubble_ns"]
        for part in PARTS:
            assert one[part] == pytest.approx(expected[part], abs=0.02 * expected["bubble_ns"])


def test_stages_wait_for_each_other_in_collectives(tmp_path: Path) -> None:
    """Each step ends with an AllReduce of all stages, for which their optimizers wait."""
    plan = Plan("gpipe", 3, 4, num_steps=3, rates=_NO_TIME, is_even=True)
    group = Communicator(0xC0FFEE, "norm", (0, 1, 2))
    setup = pipeline(np.random.default_rng(0), plan)
    for host in setup.hosts:
        starts = [
            number
            for number, action in enumerate(host.actions)
            if isinstance(action, Push) and action.name == "optimizer step"
        ]
        for start in reversed(starts):
            after = host.actions[start:]
            del host.actions[start:]
            host.collective("all_reduce", group, host.nccl, 1 << 10, after=host.compute)
            host.follow(host.compute, host.nccl)
            host.actions += after
    first, *_, last = bubbles(closed_analysis(recorded(setup, tmp_path / "run.sqlite"), only=[ID]))
    # The last stage's backwards are over two passes before those of the first.
    # Without the AllReduce the last stage waits for no backward of the others.
    ideal_ns = plan.num_steps * 2 * (last["forward_ns"] + last["backward_ns"])
    for stage in (first, last):
        assert stage["bubble_ns"] == pytest.approx(ideal_ns, rel=0.1)


def test_two_ranks_without_ranges_are_no_pipeline(tmp_path: Path) -> None:
    plan = Plan("1f1b", 2, 4, num_steps=2, is_labelled=False)
    assert simulated(plan, tmp_path / "run.sqlite")[0] == []


@pytest.mark.long
def test_reports_of_several_machines(tmp_path: Path) -> None:
    plan = Plan("1f1b", 4, 4, (1.0, 1.3, 1.0, 1.0), 3)
    setup, rng = pipeline(np.random.default_rng(0), plan), np.random.default_rng(1)
    result = setup.run()
    nodes = (
        Node(
            f"node-{stage}", int(rng.integers(-(10**7), 10**7)), int(rng.integers(-50_000, 50_000))
        )
        for stage in range(plan.num_stages)
    )
    paths = recorded_apart(setup, result, tmp_path, nodes, rng)
    found = bubbles(closed_analysis(tmp_path, only=[ID]))
    truth = [finding["metrics"] for finding in setup.findings(Ranks(result))]
    # Here members leave their messages up to 20 µs apart, and some earlier: 3 % of the bubble.
    for one, expected in zip(found, truth, strict=True):
        for name in ("bubble_ns", *PARTS):
            assert one[name] == pytest.approx(expected[name], abs=0.03 * expected["bubble_ns"])
    analysis = closed_analysis(*paths[:2], only=[ID])
    # One more, at least, exchanges messages with these two.
    assert all(one["coverage"] == 2 / 3 for one in bubbles(analysis))
    assert all("(at least 1 more)" in finding.title for finding in analysis.findings)


@pytest.mark.parametrize("sample", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_other_samples_have_no_pipeline(sample: Path) -> None:
    with analysis_of(sample) as analysis:
        assert bool(bubbles(analysis)) == (sample.stem in _PIPELINES)


@pytest.mark.parametrize("is_ring", long_after(1, [False, True]))
@pytest.mark.parametrize("num_ranks", long_after(1, [4, 2]))
@pytest.mark.parametrize("sends_first", long_after(1, [False, True]))
def test_neighbours_that_exchange_their_edges_are_no_pipeline(
    tmp_path: Path, num_ranks: int, is_ring: bool, sends_first: bool
) -> None:
    """A solver: all ranks compute at once, then each sends to its neighbours and receives."""
    rng = np.random.default_rng(0)
    hosts = tuple(Host(rank, rng) for rank in range(num_ranks))
    for host in hosts:
        rank = host.process
        others = [other for other in (rank - 1, rank + 1) if is_ring or 0 <= other < num_ranks]
        for step in range(6):
            with host.step(step):
                with host.range("forward"):
                    host.operator(host.compute, "aten::mm", kernels.UP, kernels.DOWN)
                for is_send in (sends_first, not sends_first):
                    for other in {one % num_ranks for one in others}:
                        _edge(host, other, is_send)
                for other in {one % num_ranks for one in others}:
                    host.follow(host.compute, host.stream(25 + 4 * other))
                with host.range("backward"):
                    host.operator(host.compute, "aten::mm", kernels.UP)
                host.synchronize(host.compute)
    path = recorded(Setup(hosts, lambda _: []), tmp_path / "run.sqlite")
    assert bubbles(closed_analysis(path, only=[ID])) == []


def _edge(host: Host, other: int, is_send: bool) -> None:
    pair = (host.process, other) if is_send else (other, host.process)
    low, high = sorted(pair)
    group = Communicator(0x5EED + 64 * pair[0] + pair[1], f"edge{pair[0]}{pair[1]}", (low, high))
    stream = host.stream((24 if is_send else 25) + 4 * other)
    operation = "send" if is_send else "recv"
    host.send_recv(operation, other, group, stream, 1 << 20, after=host.compute)


def test_a_finding_says_what_it_is_part_of(tmp_path: Path) -> None:
    setup = pipeline(np.random.default_rng(0), Plan("gpipe", 4, 4, num_steps=3))
    with closing(analyze(recorded(setup, tmp_path / "run.sqlite"))) as analysis:
        found = [finding for finding in analysis.findings if finding.id == ID]
        whole = {(one.id, one.rank): one.impact_ns for one in analysis.findings}
    mixed = []
    for finding in found:
        bubble_ns = finding.metrics["bubble_ns"]
        assert isinstance(bubble_ns, int)
        assert finding.impact_ns <= bubble_ns
        if finding.part_of is not None:
            assert finding.impact_ns <= whole[finding.part_of, finding.rank]
        communicating_ns = finding.metrics["communicating_ns"]
        assert isinstance(communicating_ns, int)
        is_mixed = 0.1 < communicating_ns / bubble_ns < 0.9
        said = f"{percent(communicating_ns / bubble_ns)} of it is exposed-communication, too"
        assert (said in finding.title) == is_mixed
        mixed.append(is_mixed)
    assert {*mixed} == {True, False}


def stage_of(took: Sequence[int]) -> StageGaps:
    """A stage of forwards that take so long."""
    end = np.cumsum(took)
    nothing = np.zeros(len(took) + 1, np.int64)
    return StageGaps(
        0, end - np.array(took), end, np.full(len(took), FORWARD), nothing[1:], nothing, nothing,
        np.zeros((len(nothing), 4), np.int64), 0, nothing[1:], nothing[1:], 0,
    )  # fmt: skip


def test_the_longest_stage_is_that_of_most_pipelines() -> None:
    even, long = [10, 10], [20, 20]
    alone = [stage_of(even), stage_of(even), stage_of(long)]
    assert longest_stages([alone]) == {3: 2}
    others = [[stage_of(even)] * 3 for _ in range(2)]
    assert longest_stages([alone, *others]) == {}  # one rank is slow, and no stage
    assert longest_stages([alone, alone, others[0]]) == {3: 2}
    assert longest_stages([[stage_of(even), stage_of([10, 10])]]) == {}
