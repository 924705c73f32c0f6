"""Which rows a rank's timeline has, and what is in them."""

from pathlib import Path

import numpy as np
import pytest

from dashboards.timeline.tracks import read_gpu, with_host
from tests.support.builders import TraceBuilder
from tests.support.dashboard import drawn, timelines
from tests.support.traces import SAMPLE, ranks_of
from traceprof.analysis import analyze
from traceprof.trace.nsight import schema

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_streams_are_distinguished_by_what_they_do(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(0, 10, "gemm", launch=False)
        .kernel(30, 40, "relu", launch=False)
        .memcpy(12, 15, launch=False)
        .memset(16, 17, launch=False)
        .graph(18, 25, launch=False)
        .kernel(5, 28, ALL_REDUCE, stream=20, launch=False)
        .memcpy(30, 35, "PtoP", source=0, destination=1, stream=20, launch=False)
        .memcpy(2, 3, "DtoH", stream=21, launch=False)
        .shuffled(1)
    )
    with timelines(trace, tmp_path) as (timeline,):
        assert drawn(timeline) == [
            (
                "GPU 0",
                "stream 7 · compute",
                "compute",
                [(0, 10, "gemm"), (18, 25, "CUDA graph"), (30, 40, "relu")],
            ),
            (
                "GPU 0",
                "stream 7 · copy",
                "copy",
                [(12, 15, "Host-to-Device copy"), (16, 17, "memset")],
            ),
            (
                "GPU 0",
                "stream 20 · communication",
                "communication",
                [(5, 28, ALL_REDUCE), (30, 35, "Peer-to-Peer copy")],
            ),
            ("GPU 0", "stream 21 · copy", "copy", [(2, 3, "Device-to-Host copy")]),
        ]
        assert timeline.extent_ns == (0, 40)
        assert sum(len(track.row) for track in timeline.tracks) == 8


def test_threads_stand_below_with_their_ranges_and_calls(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .thread_name("trainer")
        .nvtx("outer", 0, 90)
        .nvtx("inner", 5, 50)
        .nvtx("async", 10, 60, event_type=schema.NVTX_START_END)
        .nvtx("async", 30, 80, event_type=schema.NVTX_START_END)
        .kernel(20, 30, launch=(11, 15))
        .api("cuLaunchKernel", 12, 14)
        .kernel(40, 50, launch=(31, 35), tid=3)
        .nvtx("backward", 33, 34, tid=3)
    )
    with timelines(trace, tmp_path) as (timeline,):
        main, other = "thread 1000 · trainer", "thread 3"
        assert [track[:3] for track in drawn(timeline)] == [
            ("GPU 0", "stream 7 · compute", "compute"),
            (main, "NVTX start/end", "nvtx"),
            (main, "NVTX start/end · level 2", "nvtx"),
            (main, "NVTX", "nvtx"),
            (main, "NVTX · level 2", "nvtx"),
            (main, "CUDA API", "host"),
            (main, "CUDA API · level 2", "host"),
            (other, "NVTX", "nvtx"),
            (other, "CUDA API", "host"),
        ]
        assert [track[3] for track in drawn(timeline)][1:7] == [
            [(10, 60, "async")], [(30, 80, "async")], [(0, 90, "outer")], [(5, 50, "inner")],
            [(11, 15, "cudaLaunchKernel")], [(12, 14, "cuLaunchKernel")],
        ]  # fmt: skip


def test_busy_threads_are_open_and_the_others_folded_below(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("watchdog", 0, 9, tid=9)
    for index in range(3):
        trace.kernel(100 * index, 100 * index + 50, tid=5)
    trace.kernel(300, 350, tid=4).kernel(400, 450, tid=4).kernel(500, 550, tid=6)
    with timelines(trace, tmp_path) as (timeline,):
        assert [(track.group, track.is_folded) for track in timeline.tracks] == [
            ("GPU 0", False), ("thread 5", False), ("thread 4", False), ("thread 6", True),
            ("thread 9", True),
        ]  # fmt: skip


def test_a_range_that_never_closed_ends_with_the_capture(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("open", 5, None).kernel(10, 70).nvtx("late", 90, None)
    with timelines(trace, tmp_path) as (timeline,):
        assert drawn(timeline)[1][3] == [(5, 70, "open"), (90, 90, "late")]


def test_steps_stand_above_all(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .nvtx("step 4", 0, 99)
        .kernel(50, 120, launch=(10, 20))
        .nvtx("step 5", 100, 200)
        .kernel(150, 190, launch=(110, 120))
    )
    with timelines(trace, tmp_path) as (timeline,):
        assert drawn(timeline)[0] == (
            "",
            "steps on the GPU",
            "step",
            [(50, 150, "step 4"), (150, 190, "step 5")],
        )


def test_every_rank_has_its_own_process_and_device(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(0, 10, "a", device=0)
        .kernel(20, 30, "b", device=1)
        .kernel(40, 50, "c", pid=2000, device=1)
    )
    with timelines(trace, tmp_path) as ranks:
        assert [drawn(rank)[0][3] for rank in ranks] == [
            [(0, 10, "a")],
            [(20, 30, "b")],
            [(40, 50, "c")],
        ]
        # Two devices of one process share its threads.
        assert [len(drawn(rank)[-1][3]) for rank in ranks] == [2, 2, 1]


def test_without_calls_or_ranges(tmp_path: Path) -> None:
    with timelines(TraceBuilder().kernel(0, 10, launch=False), tmp_path) as (timeline,):
        assert [track.kind for track in timeline.tracks] == ["compute"]


@pytest.mark.long
def test_all_that_a_trace_holds_is_in_a_row(real_trace: Path) -> None:
    with ranks_of(real_trace) as ranks:
        for rank in ranks:
            timeline = with_host(read_gpu(rank, ()))
            ranges = rank.trace.range_table(rank.process)
            expected = {
                "op": sum(map(len, rank.operations.groups)),
                "call": 0 if rank.calls is None else len(rank.calls),
                "range": 0 if ranges is None else len(ranges),
            }
            for source, count in expected.items():
                of_source = [track for track in timeline.tracks if track.source == source]
                indices = [track.index for track in of_source] or [np.empty(0, np.int32)]
                assert sorted(np.concatenate(indices).tolist()) == list(range(count))
            for track in timeline.tracks:
                assert (np.diff(track.row.start_ns) >= 0).all()


def test_the_sample_has_what_one_looks_for() -> None:
    analysis = analyze(SAMPLE)
    kinds = {track.kind for track in with_host(read_gpu(analysis.run.ranks[0], ())).tracks}
    assert kinds == {"nvtx", "host", "compute", "communication", "copy"}
    analysis.close()
