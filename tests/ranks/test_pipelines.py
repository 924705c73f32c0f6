"""Ranks that exchange messages as the stages of a pipeline do, by a few messages.

The middle one of three stages computes what came from the first, and sends it to the last: its even
passes. Its odd ones do the same on the way back:

    stage 0   0  1  2 …                     n n+1 n+2 …
    stage 1    0  2  4 …        1  3  5 …
    stage 2     0  1  2 … (forward and backward in one)
"""

from typing import Any

import numpy as np
import pytest

from traceprof.ranks.pipelines import PairMessages, _flows


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
