"""Ranks that exchange messages as stages of a pipeline do, and the orders of their passes."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reference import pipelines as reference
from tests.support.builders import SEND_RECV, TraceBuilder, record, wait
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.analyses import pipeline_bubble
from traceprof.ranks import passes
from traceprof.ranks.pipelines import ORDERS, PairMessages, _flows, interleaved

US = 1_000


def test_passes_end_where_messages_are_called(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for step, start in enumerate((0, 900)):
        trace.nvtx(f"step {step}", start * US, (start + 800) * US)
    trace.nvtx("forward_step", 1 * US, 40 * US).nvtx("backward_step", 50 * US, 80 * US)
    # Two of the forward, one of the backward, one of neither, one of the next step.
    kernels = (10, 60, 5), (60, 100, 8), (140, 200, 60), (190, 230, 95), (910, 920, 905)
    for start, end, called in kernels:
        stream = 8 if called == 95 else 7  # on another one it may begin before the pass before ends
        trace.kernel(start * US, end * US, launch=(called * US, (called + 1) * US), stream=stream)
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
        "start_ns": [10, 140, 200, 910],
        "end_ns": [100, 200, 230, 920],
        "compute_ns": [90, 60, 40, 10],
        "copying_ns": [0, 7, 0, 0],  # but to other GPUs
        "called_ns": [42, 90],
        "copy_called_ns": [42, 90],
        "copy_start_ns": [100, 205],
        "copy_end_ns": [130, 215],
    }
    assert {name: (getattr(found, name) // US).tolist() for name in times} == times
    assert found.kind.tolist() == [passes.FORWARD, passes.BACKWARD, passes.OTHER, passes.OTHER]
    assert (found.step.tolist(), found.stream.tolist()) == ([0, 0, 0, 1], [7, 7, 8, 7])
    assert (found.input_ns.tolist(), found.copy_to.tolist()) == ([-1, -1], [1, 1])


def test_what_a_message_waited_for_is_its_input_alone(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(10 * US, 60 * US, launch=(1 * US, 2 * US))
    wait(record(trace, 1, 7, 3 * US), 1, 20, 4 * US)
    for called, stream in ((5, 20), (7, 20), (9, 21)):
        start, launch = (60 + called) * US, (called * US, (called + 1) * US)
        trace.kernel(start, start + US, SEND_RECV, launch=launch, stream=stream)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = passes.rank_passes(rank, rank.window)
    assert found.input_ns.tolist() == [60 * US, -1, -1]


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


def without_arguments(trace: dict[str, Any], *, is_one_stream: bool) -> dict[str, Any]:
    """Return a trace of torch.profiler without what it records of calls of communication.

    With `is_one_stream` a rank has one stream for each neighbour, in which one kernel sends and
    receives at once.
    """
    kept = ("device", "context", "stream", "correlation", "grid", "block")
    events = [event for event in trace["traceEvents"] if event["name"] != "record_param_comms"]
    for event in events:
        if event.get("cat") == "kernel":
            event["args"] = {name: event["args"][name] for name in kept}
    if is_one_stream:
        exchanges = [event for event in events if "SendRecv" in event["name"]]
        both = Counter((event["ts"], event["tid"] in (20, 23)) for event in exchanges)
        for event in exchanges:
            if event["tid"] in (22, 23):
                if both[event["ts"], event["tid"] == 23] > 1:
                    events.remove(event)
                event["tid"] = event["args"]["stream"] = {22: 21, 23: 20}[event["tid"]]
    return trace | {"traceEvents": events}


@pytest.mark.parametrize("is_one_stream", [False, True])
def test_stages_follow_from_whose_forward_comes_first(
    traces: Path, tmp_path: Path, *, is_one_stream: bool
) -> None:
    recorded = traces / "kineto" / "bytedance_st"
    for path in recorded.iterdir():
        with gzip.open(path) as file:
            trace = without_arguments(json.load(file), is_one_stream=is_one_stream)
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    known, found = (
        pipeline_bubble.run(closed_analysis(folder, only=["pipeline-bubble"]).measured)
        for folder in (recorded, tmp_path)
    )
    orders = [
        [[result.ranks.ranks[stage.member] for stage in one.stages] for one in result.pipelines]
        for result in (known, found)
    ]
    assert orders[1] == orders[0] == reference.stage_orders(recorded)
    assert {one.schedule.name for one in found.pipelines} == {"1f1b"}
    for with_names, without in zip(known.pipelines, found.pipelines, strict=True):
        for stage, same in zip(with_names.stages, without.stages, strict=True):
            # Without process groups, waits of replicas for each other are in the bubble, too.
            assert same.bubble_ns == pytest.approx(stage.bubble_ns, rel=0.15)


@pytest.mark.parametrize("num_stages", long_after(2, [2, 4, 8]))
@pytest.mark.parametrize(
    ("order", "num_chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)]
)
def test_every_pass_is_there_once(order: str, num_chunks: int, num_stages: int) -> None:
    how = {"num_chunks": num_chunks} if num_chunks > 1 else {}
    for stage in range(num_stages):
        passes = ORDERS[order](stage, num_stages, 2 * num_stages, **how)
        assert len(passes) == len(set(passes)) == 4 * num_stages * num_chunks
        seen = set()
        for one in passes:  # a backward comes after its forward
            if not one.is_forward:
                assert replace(one, is_forward=True) in seen
            seen.add(one)


def test_micro_batches_that_cannot_be_dealt_out() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        interleaved(0, 4, 6)
