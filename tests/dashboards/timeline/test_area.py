"""Areas, strips and neighbours, against what was planted and counted one by one."""

from pathlib import Path

from dashboards.timeline.area import listed, statistics
from dashboards.timeline.events import NameTable
from dashboards.timeline.tiles import strip
from dashboards.timeline.tracks import RankTimeline, Track
from tests.support.builders import TraceBuilder
from tests.support.dashboard import timelines

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>,"
    " std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float,"
    " float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)"
)


def rows_of(timeline: RankTimeline) -> dict[str, tuple[RankTimeline, Track]]:
    return {f"0.{index}": (timeline, track) for index, track in enumerate(timeline.tracks)}


def test_an_area_counts_what_is_inside_of_it(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(0, 100, "a", launch=False)
        .kernel(110, 150, "b", launch=False)
        .kernel(160, 170, "a", launch=False)
        .kernel(50, 90, ALL_REDUCE, stream=20, launch=False)
    )
    with timelines(trace, tmp_path) as (timeline,):
        area = statistics(rows_of(timeline), 60, 165)
        assert (area["count"], area["num_names"]) == (4, 3)
        by_name = {name["name"]: name for name in area["names"]}
        # Of the first one 40 ns are inside, of the last one 5.
        assert by_name["a"] == {
            "source": "op", "name": "a", "count": 2, "total": "45", "longest": "40",
            "share": 45 / 115,
        }  # fmt: skip
        assert by_name["b"]["total"] == "40"
        compute, communication = area["rows"]
        assert (compute["busy"], compute["idle"]) == ("85", "20")
        assert (communication["busy"], communication["idle"]) == ("30", "75")
        empty = statistics(rows_of(timeline), 151, 155)
        assert (empty["count"], empty["names"]) == (0, [])


def test_the_events_of_an_area_stand_in_their_order(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for index in range(300):
        trace.kernel(10 * index, 10 * index + 5, f"k{index}", launch=False)
    trace.kernel(7, 2000, ALL_REDUCE, stream=20, launch=False)
    with timelines(trace, tmp_path) as (timeline,):
        events = listed(rows_of(timeline), 12, 10_000)
        assert events["count"] == 300  # all but the first kernel, and the one that goes on
        assert len(events["events"]) == 200
        starts = [int(event["start"]) for event in events["events"]]
        assert starts == sorted(starts)
        assert starts[:3] == [7, 10, 20]
        assert events["events"][1] == {
            "id": "0.op.2", "row": "0.0", "label": "k1", "start": "10", "duration": "5",
        }  # fmt: skip


def test_a_strip_is_the_union_of_all_streams(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(0, 60, launch=False)
        .kernel(40, 100, stream=8, launch=False)
        .kernel(50, 75, ALL_REDUCE, stream=20, launch=False)
    )
    with timelines(trace, tmp_path) as (timeline,):
        assert strip(timeline, 0, 200, 4) == {
            "compute": [1000, 1000, 0, 0],
            "communication": [0, 500, 0, 0],
        }


def test_the_label_of_a_generic_kernel_says_what_it_computes() -> None:
    names = NameTable([ADD, MUL, "void gemm<4>(int)"], num_kernels=3)
    assert names.label(0) == "add · vectorized_elementwise_kernel"
    assert names.label(1) == "MulFunctor · vectorized_elementwise_kernel"
    assert names.label(2) == "gemm"
    assert names.matching("mulfunctor").tolist() == [1]
