"""Other orders of sends: what the replay says, beside the simulator's run of that program."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator.scenarios.stages import (
    NUM_MICRO_BATCHES,
    NUM_STAGES,
    Send,
    copying_pipeline,
    nccl_pipeline,
    sends_of,
)
from tests.support.builders import TraceBuilder
from tests.support.changes import middle_step_ns, recorded
from tests.support.selection import long_after
from traceprof.analysis import Analysis, Options, analyze
from traceprof.communication.messages import messages
from traceprof.ranks.pipelines import one_forward_one_backward
from traceprof.replay.assumptions.assumption import combined, parse
from traceprof.replay.assumptions.run_change import (
    RunChange,
    _sends_of,
    changed_steps,
    in_order,
    order_of_readiness,
)
from traceprof.replay.graph.longest_path import CircularError
from traceprof.replay.graph.run_graph import RunGraph, run_graph, synchronizing_groups
from traceprof.replay.graph.weights import Variant
from traceprof.replay.results import Refusal
from traceprof.replay.whatif import whatif

Orders = dict[int, list[Send]]
_SEND = 1
Name = tuple[int, int]
"""The other stage, and the micro-batch."""


def as_computed(stage: int) -> list[Send]:
    """The sends of a stage as they become ready."""
    passes = one_forward_one_backward(stage, NUM_STAGES, NUM_MICRO_BATCHES)
    last, first = stage == NUM_STAGES - 1, stage == 0
    return [
        Send(one.is_forward, one.micro_batch)
        for one in passes
        if not (last if one.is_forward else first)
    ]


def gradients_last(stage: int) -> list[Send]:
    return sorted(sends_of(stage), key=lambda send: not send.is_forward)


PLANTED: Orders = {stage: sends_of(stage) for stage in range(NUM_STAGES)}


@dataclass(frozen=True)
class Replayed:
    analysis: Analysis
    graph: RunGraph

    def step_ns(self, change: RunChange | Refusal) -> float:
        assert isinstance(change, RunChange)
        return float(np.median(changed_steps(self.graph, (0,), [change])[:, 0]))

    def in_order(self, wanted: dict[int, list[Name]]) -> RunChange:
        """Let streams run their sends in an order, in every step that has the same ones."""
        sends = _sends_of(self.analysis, self.graph)
        assert sends is not None
        ends: dict[int, tuple[int, int]] = {}
        for group, matched in zip(
            synchronizing_groups(self.analysis), self.graph.matched, strict=True
        ):
            for column, member in enumerate(group.members):
                place = group.waits.group.place[group.together, column]
                is_sent = messages(self.analysis.run.ranks[member]).direction[place] == _SEND
                for node in matched.node[is_sent, column].tolist():
                    ends[node] = (member, group.members[1 - column])
        sequence: list[int] = []
        for unit in range(int(sends.unit[-1]) + 1):
            rows = np.flatnonzero(sends.unit == unit).tolist()
            places: dict[Name, int] = {}
            stage = -1
            for row in rows:
                stage, peer = ends.get(int(sends.node[row]), (-1, -1))
                places[peer, sum(other == peer for other, _ in places)] = row
            order = wanted.get(stage, [])
            sequence += [places[name] for name in order] if {*order} == {*places} else rows
        return in_order(self.graph, sends, np.array(sequence))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    path = recorded(nccl_pipeline(np.random.default_rng(0)), tmp_path_factory.mktemp("run") / "a")
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        yield Replayed(analysis, run_graph(analysis, [Variant()]))


def names(orders: Orders) -> dict[int, list[Name]]:
    return {
        stage: [(stage + 1 if send.is_forward else stage - 1, send.micro_batch) for send in sends]
        for stage, sends in orders.items()
    }


@pytest.mark.parametrize(
    "orders",
    long_after(
        3,
        [
            PLANTED,
            {stage: as_computed(stage) for stage in range(NUM_STAGES)},
            {**PLANTED, 1: gradients_last(1), 2: as_computed(2)},
            {**PLANTED, 1: as_computed(1)},
            {**PLANTED, 2: as_computed(2)},
        ],
    ),
    ids=["planted", "as computed", "gradients last", "first", "second"],
)
def test_an_order_takes_what_the_program_takes_in_it(orders: Orders, replayed: Replayed) -> None:
    truth = middle_step_ns(nccl_pipeline(np.random.default_rng(0), orders).run())
    change = replayed.in_order(names(orders))
    assert replayed.step_ns(change) == pytest.approx(truth, rel=0.005)


def test_an_order_that_never_ends_is_told(replayed: Replayed) -> None:
    orders = {**PLANTED, 2: gradients_last(2)}
    with pytest.raises(RuntimeError, match="deadlock"):
        nccl_pipeline(np.random.default_rng(0), orders).run()
    change = replayed.in_order(names(orders))
    with pytest.raises(CircularError):
        replayed.step_ns(change)


def test_sends_come_in_the_order_in_which_they_are_computed(replayed: Replayed) -> None:
    change = order_of_readiness(replayed.analysis, replayed.graph)
    wanted = replayed.in_order(names({stage: as_computed(stage) for stage in (1, 2)}))
    assert replayed.step_ns(change) == pytest.approx(replayed.step_ns(wanted), rel=1e-6)


def test_without_event_records_no_order_is_told(tmp_path: Path) -> None:
    """Another order would bring 1.3 to 5.3 ms, by when sends were ready; 4.8 are true."""
    setup = nccl_pipeline(np.random.default_rng(0))
    asked = whatif(recorded(setup, tmp_path / "run.sqlite", has_events=False)).whatif
    (order,) = (one for one in asked.answers if "send-order" in one.assume)
    assert order.step_ns is None
    assert order.how_to_collect == "--cuda-event-trace=true"
    assert "when sends were ready" in (order.refused or "")


def test_two_values_at_once_are_told(replayed: Replayed) -> None:
    both = ["bucket-cap-mb=25", "bucket-cap-mb=100"]
    refused = combined([parse(text) for text in both]).run_changes(
        replayed.analysis, replayed.graph
    )
    assert isinstance(refused, Refusal)
    assert refused.why == "bucket-cap-mb cannot have two values"
    assert not isinstance(
        parse("send-order=ready-first+send-order=ready-first").run_changes(
            replayed.analysis, replayed.graph
        ),
        Refusal,
    )


@pytest.mark.long
def test_copies_have_no_order(tmp_path: Path) -> None:
    path = recorded(copying_pipeline(np.random.default_rng(0)), tmp_path / "run.sqlite")
    asked = whatif(path, assume=["send-order=ready-first"]).whatif
    (only,) = asked.answers
    assert "no two sends" in (only.refused or "")
    assert all("send-order" not in one.assume for one in whatif(path).whatif.answers)


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(("ranks", "is_refused"), [((0, 1), False), ((1,), True), ((0,), True)])
def test_waits_for_a_side_that_is_not_known_are_no_transfers(
    tmp_path: Path, ranks: tuple[int, ...], *, is_refused: bool
) -> None:
    # In each step rank 0 computes and sends; rank 1, which has been waiting for that, computes.
    builder = TraceBuilder()
    for step in range(5):
        for rank in ranks:
            at, pid, where = step * 300_000, 1000 + rank, {"pid": 1000 + rank, "device": rank}
            sending = at + (0 if rank else 100_000), at + 105_000
            builder.kernel(*sending, SEND_RECV, stream=20, **where)  # type: ignore[arg-type]
            computing = at + 110_000 * rank
            builder.kernel(computing, computing + 100_000, **where)  # type: ignore[arg-type]
            builder.nvtx(f"step {step}", at - 200, at + 290_000, pid=pid)
    asked = whatif(builder.write(tmp_path), assume=["kernel:gemm=0.5x", "communication=0"]).whatif
    reasons = [answer.refused or "" for answer in asked.answers[:2]]
    assert [
        "the other side of sends, receives and all-to-alls" in reason for reason in reasons
    ] == [is_refused, False]
