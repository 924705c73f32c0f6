"""Ranks that exchange messages as stages of a pipeline do, and the orders of their passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import TraceBuilder
from tests.support.selection import long_after
from tests.support.traces import ranks_of
from traceprof.ranks import passes
from traceprof.ranks.pipelines import ORDERS, PairMessages, _flows, interleaved

US = 1_000


def test_passes_end_where_messages_are_called(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for step, start in enumerate((0, 900)):
        trace.nvtx(f"step {step}", start * US, (start + 800) * US)
    trace.nvtx("forward_step", 1 * US, 40 * US).nvtx("backward_step", 50 * US, 80 * US)
    # Two of the forward, one of the backward, one of neither, one of the next step.
    kernels = (10, 60, 5), (60, 100, 8), (140, 200, 60), (220, 230, 95), (910, 920, 905)
    for start, end, called in kernels:
        trace.kernel(start * US, end * US, launch=(called * US, (called + 1) * US))
    trace.memcpy(132 * US, 139 * US, launch=(62 * US, 63 * US))
    for start, end, called in ((100, 130, 42), (205, 215, 90)):
        launch = called * US, (called + 1) * US
        trace.memcpy(
            start * US, end * US, "PtoP", source=0, destination=1, stream=20, launch=launch
        )  # fmt: skip
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = passes.rank_passes(rank, rank.window)
    times = {
        "launched_ns": [5, 60, 95, 905],
        "start_ns": [10, 140, 220, 910],
        "end_ns": [100, 200, 230, 920],
        "compute_ns": [90, 60, 10, 10],
        "copying_ns": [0, 7, 0, 0],  # but to other GPUs
        "called_ns": [42, 90],
        "copy_called_ns": [42, 90],
        "copy_start_ns": [100, 205],
        "copy_end_ns": [130, 215],
    }
    assert {name: (getattr(found, name) // US).tolist() for name in times} == times
    assert found.kind.tolist() == [passes.FORWARD, passes.BACKWARD, passes.OTHER, passes.OTHER]
    assert (found.step.tolist(), found.stream.tolist()) == ([0, 0, 0, 1], [7] * 4)
    assert (found.input_ns.tolist(), found.copy_to.tolist()) == ([-1, -1], [1, 1])


def between(source: int, destination: int, producer: Any, consumer: Any) -> PairMessages:
    nothing = np.zeros(len(producer), np.int64)
    return PairMessages(
        source,
        destination,
        are_copies=False,
        producer=producer,
        consumer=consumer,
        **dict.fromkeys(
            ("follows", "holds", "stream", "start_ns", "came_ns", "sent_ns", "end_ns",
             "transfer_ns"),
            nothing,
        ),
    )  # fmt: skip


def three_stages(
    num: int, num_forwarded: int | None = None, num_answered: int | None = None
) -> dict[tuple[int, int], PairMessages]:
    """Return the messages of `num` micro-batches; between the last two stages some may be lost."""
    number = np.arange(num)
    forwarded = number if num_forwarded is None else np.arange(num_forwarded)
    answered = number if num_answered is None else np.arange(num_answered)
    return {
        (0, 1): between(0, 1, number, 2 * number),
        (1, 2): between(1, 2, 2 * forwarded, forwarded),
        (2, 1): between(2, 1, answered, 2 * answered + 1),
        (1, 0): between(1, 0, 2 * number + 1, num + number),
    }


@pytest.mark.parametrize(
    ("numbers", "is_pipeline"),
    [
        ((4, 4, 4), True),
        ((22, 20, 20), True),
        ((23, 20, 20), False),  # of what came to the middle stage, 3 of 20 were not sent on
        ((22, 20, 22), True),
        ((22, 20, 23), False),  # 3 answers are of no message
        ((4, 0, 4), False),
        ((4, 0, 0), False),
    ],
)
def test_a_capture_may_cut_off_a_tenth_of_the_messages(
    numbers: tuple[int, int, int], is_pipeline: bool
) -> None:
    assert _flows((0, 1, 2), three_stages(*numbers)) is is_pipeline


@pytest.mark.parametrize(("num_others", "is_pipeline"), [(1, True), (2, False)])
def test_one_of_a_hundred_may_belong_to_another_pass(num_others: int, is_pipeline: bool) -> None:
    messages = three_stages(100)
    messages[1, 2].producer[5 : 5 + num_others] += 2
    assert _flows((0, 1, 2), messages) is is_pipeline


def test_an_answer_that_is_used_before_its_question_is_none() -> None:
    messages = three_stages(4)
    assert _flows((0, 1), messages)
    early = between(1, 0, messages[1, 0].producer, np.arange(4))  # used in the pass that asks
    assert not _flows((0, 1), messages | {(1, 0): early})
    assert _flows((0, 1), messages | {(1, 0): between(1, 0, early.producer, np.full(4, -1))})


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
