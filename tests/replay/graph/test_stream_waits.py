"""What streams may have waited for, held to what event records tell."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import SCENARIOS
from tests.support.builders import ALL_REDUCE, TraceBuilder, call, prepare
from tests.support.changes import recorded
from tests.support.selection import long_after
from traceprof.analysis import Options, analyze
from traceprof.replay.graph import columns
from traceprof.replay.graph.columns import GpuWork
from traceprof.replay.graph.longest_path import EdgeKind
from traceprof.replay.graph.stream_waits import (
    awaited,
    event_waits,
    possible_waits,
    queued_communication,
)
from traceprof.run.opening import Rank


def held_until(
    work: GpuWork, producers: list[int], consumers: list[int]
) -> dict[int, dict[int, int]]:
    """Return for each operation that waits the last one of each other stream, in plain Python.

    What one waits for, those behind it on its stream wait for as well.
    """
    own: dict[int, list[int]] = {}
    for producer, consumer in zip(producers, consumers, strict=True):
        own.setdefault(consumer, []).append(producer)
    chains = work.chain.tolist()
    held: dict[int, dict[int, int]] = {}
    before: dict[int, int] = {}
    for operation, chain in enumerate(chains):
        if operation and chain != chains[operation - 1]:
            before = {}
        for producer in own.get(operation, ()):
            other = chains[producer]
            before = {**before, other: max(producer, before.get(other, producer))}
        held[operation] = before
    return held


def check(ranks: list[tuple[int, Rank]]) -> int:
    """Hold what may have been waited for to what was; return how many waits there were."""
    process = columns.recorded(ranks)
    work, events = process.work, event_waits(process)
    assert events is not None
    producers, consumers = possible_waits(process)
    assert (work.chain[producers] != work.chain[consumers]).all()
    assert (work.end_ns[producers] <= work.start_ns[consumers]).all()
    held = held_until(work, producers.tolist(), consumers.tolist())
    num = 0
    for producer, consumer in zip(*(side.tolist() for side in awaited(events, work)), strict=True):
        assert held[consumer][int(work.chain[producer])] >= producer
        num += 1
    return num


def check_run(path: Path) -> int:
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        by_process: dict[int, list[tuple[int, Rank]]] = {}
        for index, rank in enumerate(analysis.run.ranks):
            by_process.setdefault(rank.process, []).append((index, rank))
        return sum(check(ranks) for ranks in by_process.values())


@pytest.mark.parametrize(
    "program", long_after(1, ["nccl-serialization", "overlap-slowdown", "pipeline-sends"])
)
def test_nothing_was_waited_for_that_is_not_possible(program: str, tmp_path: Path) -> None:
    setup = SCENARIOS[program].build(np.random.default_rng(1))
    assert check_run(recorded(setup, tmp_path / "run.sqlite")) > 20


@pytest.mark.long
def test_nothing_was_waited_for_in_a_real_run_that_is_not_possible(traces: Path) -> None:
    assert check_run(traces / "a100x4_ddp_baseline_rank0.sqlite") > 1000


@pytest.mark.parametrize("num_queued", [(2, 2), (2, 0), (0, 2)])
def test_the_order_of_each_gpu_of_a_process_is_kept(
    num_queued: tuple[int, int], tmp_path: Path
) -> None:
    """Each GPU runs AllReduce of one communicator right behind each other, or a kernel only."""
    builder = prepare(TraceBuilder())
    for device, num in enumerate(num_queued):
        builder.kernel(0, 10, device=device, launch=(-5, -4))
        for number in range(num):
            at = 1000 * device + 100 * number
            call(builder, "ncclAllReduce", at, at + 10, 0xABC, 4096)
            begin = 5000 + 100 * number
            builder.kernel(
                begin, begin + 100, ALL_REDUCE, device=device, stream=20, launch=(at + 3, at + 5)
            )
    with closing(analyze(builder.write(tmp_path), options=Options(savings=False))) as analysis:
        ranks = list(enumerate(analysis.run.ranks))
        queued = queued_communication(columns.recorded(ranks))
    assert len(ranks) == 2
    num = sum(num == 2 for num in num_queued)
    held = {kind: len(later) for kind, (_, later) in queued.items() if len(later)}
    assert held == {EdgeKind.INDEPENDENT_BEGIN: num, EdgeKind.INDEPENDENT_ORDER: num}
