"""Which rows a rank's timeline has, and what is in them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dashboards.timeline.rows import Row, Samples, view
from tests.support.builders import TraceBuilder
from tests.support.dashboard import asking, drawn, timeline_of, timelines
from tests.support.traces import analysis_of, ranks_of
from traceprof.trace.model.operations import BYTES_PER_MS, PERCENT, LinkSamples
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
        assert all(label.endswith(kind) for _, label, kind, _ in drawn(timeline))
        assert {label: events for _, label, _, events in drawn(timeline)} == {
            "stream 7 · compute": [(0, 10, "gemm"), (18, 25, "CUDA graph"), (30, 40, "relu")],
            "stream 7 · copy": [(12, 15, "Host-to-Device copy"), (16, 17, "memset")],
            "stream 20 · communication": [(5, 28, ALL_REDUCE), (30, 35, "Peer-to-Peer copy")],
            "stream 21 · copy": [(2, 3, "Device-to-Host copy")],
        }
        assert timeline.extent_ns == (0, 40)


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
            ("GPU 0", "place in the program", "place"),
            (main, "NVTX start/end", "nvtx"),
            (main, "NVTX start/end · level 2", "nvtx"),
            (main, "NVTX", "nvtx"),
            (main, "NVTX · level 2", "nvtx"),
            (main, "CUDA API", "host"),
            (main, "CUDA API · level 2", "host"),
            (other, "NVTX", "nvtx"),
            (other, "CUDA API", "host"),
        ]
        assert [track[3] for track in drawn(timeline)][1:8] == [
            [(20, 50, "async")],
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
            ("GPU 0", False), ("GPU 0", False), ("thread 5", False), ("thread 4", False),
            ("thread 6", True), ("thread 9", True),
        ]  # fmt: skip


def test_a_range_that_never_closed_ends_with_the_capture(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("open", 5, None).kernel(10, 70).nvtx("late", 90, None)
    with timelines(trace, tmp_path) as (timeline,):
        assert drawn(timeline)[2][3] == [(5, 70, "open"), (90, 90, "late")]


def test_steps_stand_above_all(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .nvtx("step 4", 0, 99)
        .kernel(50, 120, launch=(10, 20))
        .nvtx("step 5", 100, 200)
        .kernel(150, 190, launch=(110, 120))
    )
    with timelines(trace, tmp_path) as (timeline,):
        steps = [(50, 150, "step 4"), (150, 190, "step 5")]
        assert drawn(timeline)[0] == ("", "steps on the GPU", "step", steps)


def test_every_rank_has_its_own_process_and_device(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(0, 10, "a", device=0)
        .kernel(20, 30, "b", device=1)
        .kernel(40, 50, "c", pid=2000, device=1)
    )
    with timelines(trace, tmp_path) as ranks:
        kernels = [event for rank in ranks for event in drawn(rank)[0][3]]
        assert kernels == [(0, 10, "a"), (20, 30, "b"), (40, 50, "c")]
        # Two devices of one process share its threads.
        assert [len(drawn(rank)[-1][3]) for rank in ranks] == [2, 2, 1]


@pytest.mark.long
def test_all_that_a_trace_holds_is_in_a_row(real_trace: Path) -> None:
    with ranks_of(real_trace) as ranks:
        for rank in ranks:
            timeline = timeline_of(rank)
            ranges = rank.trace.range_table(rank.process)
            expected = {
                "op": sum(map(len, rank.operations.groups)),
                "call": 0 if rank.calls is None else len(rank.calls),
                "range": len(ranges),
            }
            for source, count in expected.items():
                of_source = [track for track in timeline.tracks if track.source == source]
                indices = [track.index for track in of_source] or [np.empty(0, np.int32)]
                assert sorted(np.concatenate(indices).tolist()) == list(range(count))
            for track in timeline.tracks:
                assert (np.diff(track.row.start_ns) >= 0).all()


Event = tuple[int, int]

UTC = 1_700_000_000_000_000_000
MANY = 1000  # long events


def row(events: Sequence[Event], shift: int = 0) -> Row:
    ordered = sorted(events)
    start = np.array([start for start, _ in ordered], np.int64) + shift
    end = np.array([end for _, end in ordered], np.int64) + shift
    return Row.of(start, end)


def in_view(event: Event, start: int, end: int) -> bool:
    return event[0] < end and (event[1] > start or event[0] >= start)


def covered(events: Sequence[Event], start: int, end: int) -> int:
    """Return how many nanoseconds of [start, end) lie in an event: one by one."""
    return sum(any(first <= at < stop for first, stop in events) for at in range(start, end))


def check(
    events: Sequence[Event], start: int, end: int, columns: int, shift: int, most: int
) -> None:
    """Check a view against the definitions; of more than `most` long events none is alone."""
    shown = view(row(events, shift), start + shift, end + shift, columns, most)
    borders = (shown.edges_ns - shift).tolist()
    ordered = sorted(events)
    single = [ordered[index] for index in shown.event.tolist()]
    least = -(-(end - start) // (len(borders) - 1))

    assert (borders[0], borders[-1]) == (start, end)
    assert len(borders) - 1 == min(columns, end - start)
    assert max(np.diff(borders)) - min(np.diff(borders)) <= 1
    # Every event in view is in exactly one rectangle.
    assert len(shown.event) + shown.count.sum() == sum(
        in_view(event, start, end) for event in events
    )
    assert len(set(shown.event.tolist())) == len(single)
    assert all(in_view(event, start, end) for event in single)
    long = [
        event for event in ordered if event[1] - event[0] >= least and in_view(event, start, end)
    ]
    assert single == (long if len(long) <= most else [])
    # The cover of each column is that of all events, whether it has a block or not.
    blocks = dict(zip(shown.column.tolist(), shown.covered_ns.tolist(), strict=True))
    for column, (left, right) in enumerate(pairwise(borders)):
        assert blocks.get(column, covered(single, left, right)) == covered(events, left, right)
    for share, part, column in zip(
        shown.share.tolist(), shown.covered_ns.tolist(), shown.column.tolist(), strict=True
    ):
        width = borders[column + 1] - borders[column]
        assert share == pytest.approx(1000 * part / width, abs=1)
        assert (share == 0) == (part == 0)
        assert (share == 1000) == (part == width)


EVENTS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 40)).map(lambda event: (event[0], sum(event))),
    max_size=40,
)


@settings(deadline=None)
@given(
    EVENTS,
    *(st.integers(-20, 150), st.integers(1, 90), st.integers(1, 30)),
    *(st.sampled_from([0, UTC]), st.sampled_from([0, 2, MANY])),
)
@example([(3, 8)], 0, 10, 2, 0, MANY)  # as long as a column
@example([(3, 7)], 0, 10, 2, 0, MANY)  # shorter, in two columns
@example([(0, 10), (10, 10), (20, 20), (20, 30)], 10, 10, 1, 0, MANY)  # moments, what touches
@example([(0, 12), (1, 90), (2, 3)], 10, 20, 4, 0, MANY)  # begun before the view
@example([(5, 6), (7, 7)], 4, 5, 2000, 0, MANY)  # in columns of a nanosecond
def test_nothing_is_dropped_and_the_cover_is_exact(
    events: list[Event], start: int, span: int, columns: int, shift: int, most: int
) -> None:
    check(events, start, start + span, columns, shift, most)


GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def test_kernels_have_categories_and_blocks_that_of_most_time(tmp_path: Path) -> None:
    trace = TraceBuilder().graph(0, 100, launch=False)
    for start, end, name in (
        *((start, start + 5, ADD) for start in (100, 110, 120)),
        (130, 160, GEMM),
        *((start, start + 20, ADD) for start in (200, 225, 250)),
        (290, 295, GEMM),
        (300, 400, GEMM),
        (400, 520, ADD),
    ):
        trace.kernel(start, end, name, launch=False)
    with analysis_of(trace.write(tmp_path)) as analysis:
        ask = asking(analysis)
        (row,) = (row["row"] for row in ask("rank", rank=0)["rows"] if row["kind"] == "compute")
        tile = ask("tiles", rows=row, start=0, end=600, columns=6)["rows"][row]
        ids = [f"0.op.{event}" for event in tile["event"]]
        said = [ask("event", id=event)["category"] for event in ids]
    named = tile["categories"].__getitem__
    assert [*map(named, tile["category"])] == ["compute", "matmul", "elementwise"]
    assert said == [None, "matmul", "elementwise"]
    assert np.cumsum(tile["column"]).tolist() == [1, 2]
    assert [*map(named, tile["main"])] == ["matmul", "elementwise"]


#  time   0    10   20        40   50 (µs)
#  value  | 20 | 60 |  (gap)  | 100|
START, END, VALUE = [0, 10, 40], [10, 20, 50], [20, 60, 100]


def samples(unit: str = PERCENT) -> Samples:
    start, end = 1000 * np.array(START, np.int64), 1000 * np.array(END, np.int64)
    link = LinkSamples("nvlink", "tx", None, unit, start, end, np.array(VALUE, np.int64))
    return Samples.sampled(link)


@pytest.mark.parametrize(
    ("start", "end", "columns", "expected"),
    [
        (0, 50, 5, {0: 200, 1: 600, 4: 1000}),
        (0, 20, 1, {0: 400}),
        (5, 15, 1, {0: 400}),  # half of each
        (12, 42, 1, {0: 680}),  # 8 of 60 and 2 of 100: the gap was not sampled
        (20, 40, 2, {}),
        (-20, 10, 3, {2: 200}),
    ],
)
def test_a_column_has_the_mean_of_what_was_sampled_in_it(
    start: int, end: int, columns: int, expected: dict[int, int]
) -> None:
    view = samples().view(1000 * start, 1000 * end, columns)
    assert dict(zip(view.column.tolist(), view.share.tolist(), strict=True)) == expected


def test_what_was_sampled_is_said_with_its_unit() -> None:
    said = samples().summary(0, 50_000)["said"]
    assert said == ["60 % in the mean", "3 samples of 20 % to 100 %"]
    assert samples().summary(22_000, 30_000)["said"] == ["nothing was sampled here"]
    rates = samples(BYTES_PER_MS)
    assert rates.label == "NVLink, sent · to 0.0001 GB/s"
    assert rates.top == 100
