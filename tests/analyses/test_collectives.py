"""Rates by operation and communicator, and messages that pay latency."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import (
    ALL_GATHER,
    ALL_REDUCE,
    SEND_RECV,
    TraceBuilder,
    call,
    label,
    prepare,
)
from tests.support.claims import only_gap, results_of
from tests.support.kept_claims import Kept
from tests.support.traces import SAMPLE_FOLDER, ranks_of
from traceprof.analyses import collectives
from traceprof.analyses.collectives import CollectivesResult
from traceprof.communication.messages import best_time_and_latency
from traceprof.run.opening import Window

SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()"
US = 1_000


results = partial(results_of, collectives.run)


def result(
    builder: TraceBuilder, tmp_path: Path, window: Window | None = None
) -> CollectivesResult:
    (found,) = results(builder.write(tmp_path), window)
    return found


def labelled(kernel: str, text: str) -> TraceBuilder:
    builder = prepare(TraceBuilder(), schemas=())
    label(builder, f"{text} seq=1", 0, 10)
    return builder.kernel(1000, 2000, kernel, launch=(3, 5))


def exchanging(*calls: str) -> TraceBuilder:
    """Launch a kernel in each of these calls."""
    builder = prepare(TraceBuilder(), schemas=())
    for index, name in enumerate(calls):
        label(builder, f"{name} bytes=8 group=0 size=4 seq={index}", 100 * index, 100 * index + 10)
        start, launch = 1000 + 100 * index, (100 * index + 3, 100 * index + 5)
        builder.kernel(start, start + 50, SEND_RECV, launch=launch)
    return builder


def in_a_block(block: str, kernel: str, *calls: str) -> TraceBuilder:
    """The block launches what was called in it when it ends."""
    builder = prepare(TraceBuilder(), schemas=())
    label(builder, f"{block} group=7 rank=0 size=4", 0, 100)
    for seq, name in enumerate(calls):
        start = 10 + 20 * seq
        label(builder, f"{name} bytes=8 group=7 size=4 seq={seq}", start, start + 10)
    return builder.kernel(500, 600, kernel, launch=(90, 95))


def without_ranks() -> TraceBuilder:
    """Rates need sizes, and the number of ranks."""
    builder = prepare(TraceBuilder())
    call(builder, "ncclAllReduce", 0, 10, 7, 1000)
    builder.kernel(1000, 2000, ALL_REDUCE, launch=(3, 5))
    return builder.kernel(2000, 2500, SCATTER)


def of_unknown_size() -> TraceBuilder:
    """One of two: it takes no part in the rate."""
    builder = prepare(TraceBuilder(), schemas=(904,))
    call(builder, "ncclAllReduce", 0, 10, 1000, 2, schema=904)
    return builder.kernel(1000, 2000, ALL_REDUCE, launch=(3, 5)).kernel(3000, 9000, ALL_REDUCE)


def of_two_communicators() -> TraceBuilder:
    builder = prepare(TraceBuilder())
    for index, communicator in enumerate((7, 8, 7)):
        call(builder, "ncclAllReduce", 10 * index, 10 * index + 9, communicator, 100)
        start = 1000 * (index + 1)
        builder.kernel(start, start + 400, ALL_REDUCE, launch=(10 * index + 3, 10 * index + 4))
    return builder.kernel(9000, 9900, SEND_RECV)


OF_EIGHT = "bytes=1000 group=0 desc=dp size=8"
PROGRAMS = {
    # Rates are as in nccl-tests; sizes of all-gathers and reduce-scatters are one rank's.
    "all-reduce": labelled(ALL_REDUCE, f"all_reduce {OF_EIGHT}"),
    "all-gather": labelled(ALL_GATHER, f"all_gather_into_tensor {OF_EIGHT}"),
    "reduce-scatter": labelled(SCATTER, f"reduce_scatter_tensor {OF_EIGHT}"),
    "broadcast": labelled("ncclDevKernel_Broadcast_RING_LL()", f"broadcast {OF_EIGHT}"),
    "send": labelled(SEND_RECV, f"send dst=1 {OF_EIGHT}"),
    "a call of unknown kind fits any kernel": labelled(SCATTER, "permute bytes=8 group=0 size=4"),
    "one peer": exchanging("send dst=3", "recv src=3"),
    "two peers": exchanging("send dst=3", "send dst=2"),
    "a peer that is not known": exchanging("send dst=3", "send"),
    "a block": in_a_block("coalesced", ALL_REDUCE, "all_reduce", "all_reduce"),
    # The bytes are those of one direction.
    "both directions": in_a_block("batch_isend_irecv", SEND_RECV, "isend dst=1", "irecv src=1"),
    "without ranks": without_ranks(),
    "of unknown size": of_unknown_size(),
    "of two communicators": of_two_communicators(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    kept(result(PROGRAMS[name], tmp_path).uses)


def test_a_window_counts_what_starts_in_it(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 10, ALL_REDUCE).kernel(10, 20, ALL_REDUCE)
    (use,) = result(builder, tmp_path, Window(10, 20)).uses
    assert use.count == 1


@pytest.mark.parametrize(
    ("sizes", "rate", "expected"),
    [
        ([1 << 30, 4096, 1 << 14], 100.0, [0, 10_000, 10_000]),  # from large messages
        ([4096, 1 << 16, 1 << 15], 20.0, [10_000] * 3),  # from two sizes
    ],
)
def test_latency(sizes: list[int], rate: float, expected: list[int]) -> None:
    took = np.array([10_000 + round(size / rate) for size in sizes])
    best, latency = best_time_and_latency(np.array(sizes), took)
    assert best.tolist() == took.tolist()
    assert latency.tolist() == pytest.approx(expected, abs=2)


def test_latency_of_one_size_is_all_or_nothing() -> None:
    for size, expected in ((1 << 16, 9_000), ((1 << 16) + 1, 0)):
        _, latency = best_time_and_latency(np.array([size]), np.array([9_000]))
        assert latency.tolist() == [expected]


def test_waiting_for_others_is_no_latency() -> None:
    rng = random.Random(1)
    took = np.array([10_000 + rng.choice([0, 0, 0, 900_000]) for _ in range(50)])
    best, latency = best_time_and_latency(np.full(50, 4096), took)
    assert set(best.tolist()) == set(latency.tolist()) == {10_000}
    best, latency = best_time_and_latency(np.full(50, 4096), took + 700_000)
    assert set(best.tolist()) == set(latency.tolist()) == {100_000}


def test_messages_that_took_no_time() -> None:
    best, latency = best_time_and_latency(np.array([0, 1 << 20]), np.array([0, 0]))
    assert best.tolist() == latency.tolist() == [0, 0]


def small_ones(number: int, *, hidden: bool = False) -> TraceBuilder:
    builder = prepare(TraceBuilder())
    for index in range(number):
        host, start = 100 * index, 100_000 + 20 * US * index
        call(builder, "ncclAllReduce", host, host + 90, 7, 4096)
        builder.kernel(start, start + 10 * US, ALL_REDUCE, launch=(host + 3, host + 5), stream=20)
    builder.kernel(0, 100_000 + (30 * US * number if hidden else 0))
    return builder


def test_calls_without_payloads_need_another_export_only(traces: Path) -> None:
    for found in results(traces / "h100x2_torchrun_nccl_on_compute_stream.sqlite"):
        missing = only_gap(collectives.findings(found))
        assert "--include-blobs=true" in missing.how_to_collect
        assert found.num_with_call == 32


def test_bus_bandwidth_against_the_peak_of_the_machine() -> None:
    with ranks_of(SAMPLE_FOLDER / "small-collectives.sqlite") as ranks:
        uses = [use for rank in ranks for use in collectives.run(rank, rank.window).uses]
    assert {use.peak_gb_per_s for use in uses} == {300.0}  # both ranks are here, on an A100-SXM4
    for use in uses:
        assert use.busbw_gb_per_s is not None
        assert use.utilization == use.busbw_gb_per_s / 300


@pytest.mark.parametrize(("num", "hidden"), [(20, False), (19, False), (20, True), (0, False)])
def test_small_ones(num: int, hidden: bool, tmp_path: Path, kept: Kept) -> None:
    kept(collectives.findings(result(small_ones(num, hidden=hidden), tmp_path)))


def test_without_sizes_it_says_how_to_collect_them(tmp_path: Path, kept: Kept) -> None:
    builder = TraceBuilder().kernel(0, 9, ALL_REDUCE, launch=(3, 5))
    kept(collectives.findings(result(builder, tmp_path)))
