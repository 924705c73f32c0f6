"""Ranks without a GPU: who is one, what it did, and that all reports cope with it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.support.builders import TraceBuilder
from tests.support.traces import OWN_CPU_PROFILES, OWN_CPU_TRACE, closed_analysis
from traceprof.analyses.breakdown import Measures
from traceprof.analysis import analyze_reports
from traceprof.errors import UsageError


def call(seq: int = 0, *, rank: int = 0, group: str = "0", size: int = 400) -> str:
    facts = f"bytes={size} dtype=float32 group={group} rank={rank} size=2 seq={seq}"
    return f"all_reduce {facts}"


def whole(builder: TraceBuilder, tmp_path: Path) -> Measures:
    (result,) = closed_analysis(builder.write(tmp_path)).result.breakdown
    return result.whole


def parts(measures: Measures) -> tuple[int, int, int, int]:
    """Return compute, communication, exposed communication, idle."""
    return (
        measures.compute_ns,
        measures.communication_ns,
        measures.exposed_communication_ns,
        measures.idle_ns,
    )


# -- what time goes to ----------------------------------------------------------------------------


IN_FLIGHT: dict[str, Any] = {"in_flight": True}
OTHER: dict[str, Any] = {"tid": 1001}
SENT = "bytes=64 dtype=float32 group=0 rank=0 size=2 seq=0"
LAST = ("bucket index=0 bytes=4 last=1", 20, 90, IN_FLIGHT)


@pytest.mark.parametrize(
    ("labels", "expected", "num"),
    [
        ([("forward", 0, 100), (call(), 30, 60)], (70, 30, 30, 0), 1),
        # A launch, and 25 of the flight hidden while the thread computes.
        ([("forward", 0, 50), (call(), 20, 25), (call(), 20, 80, IN_FLIGHT)], (45, 60, 35, 0), 1),
        ([("backward", 0, 100), ("wait op=all_reduce group=0", 40, 70),
          (call(), 10, 60, IN_FLIGHT)], (70, 60, 30, 0), 1),
        ([("backward", 0, 100), (call(), 30, 60, OTHER)], (100, 30, 0, 0), 1),
        ([("step 0", 0, 100), ("forward", 10, 30), ("data loading", 40, 60),
          ("optimizer step", 60, 70), (call(), 80, 90)], (30, 10, 10, 60), 1),
        ([("backward", 0, 50), ("backward", 60, 100), LAST, (call(), 20, 90, IN_FLIGHT)],
         (20 + 40, 70, 30 + 10, 0), 1),
        ([("forward", 0, 10), ("batch_isend_irecv group=0 rank=0 size=2", 10, 50),
          (f"isend dst=1 {SENT}", 12, 17), (f"isend dst=2 {SENT}", 20, 25),
          ("coalesced group=0 rank=0 size=2", 60, 80), (call(), 61, 62)], (10, 60, 60, 10), 3),
        ([(call(), 5, 5)], (0, 0, 0, 0), 1),
    ],
    ids=["a synchronous call", "in flight", "waiting", "another thread's compute", "in no range",
         "the backward that holds the last bucket", "calls around others", "no length"],
)  # fmt: skip
def test_where_time_goes(
    labels: list[tuple[Any, ...]], expected: tuple[int, ...], num: int, tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for text, start, end, *how in labels:
        builder.label(text, start, end, **(how[0] if how else {}))
    found = whole(builder, tmp_path)
    assert parts(found) == expected
    assert found.num_communication == num  # a call may have a launch, a wait and a bucket


def test_the_end_of_a_backward_waits_for_its_last_bucket(tmp_path: Path) -> None:
    # backward |=============================|   0-100
    # bucket 0     |=======|                     20-60
    # bucket 1                  |======|         70-95, the last
    # flights       |=====|      |====|          22-58, 72-94
    # Between 70 and 72 the hook computes; from 94 on the gradients are copied back.
    builder = TraceBuilder().label("backward", 0, 100)
    for index, (start, end) in enumerate(((20, 60), (70, 95))):
        builder.label(
            f"bucket index={index} bytes=400 dtype=float32 last={index}", start, end, in_flight=True
        )
        builder.label(call(index), start + 2, start + 3)
        last = 58 if index == 0 else 94
        builder.label(call(index), start + 2, last, in_flight=True)
    builder.label("optimizer step", 100, 120)
    found = whole(builder, tmp_path)
    assert parts(found) == (120 - 1 - 22, 36 + 22, 1 + 22, 0)
    assert found.overlapped_communication_ns == 35


def test_ranges_that_were_open_when_the_capture_ended(tmp_path: Path) -> None:
    builder = TraceBuilder().label("step 0", 0, 1000).label("forward", 0, 50)
    builder.label(call(), 60, None).machine(end=1000)  # the step was open, too
    analysis = closed_analysis(builder.label("data loading", 50, 200, **OTHER).write(tmp_path))
    (result,) = analysis.result.breakdown
    assert (result.whole.window_ns, *parts(result.whole)) == (200, 50, 140, 140, 10)
    assert [(step.number, step.measures.window_ns) for step in result.steps] == [(0, 200)]
    assert any("open when the capture ended (2)" in note for _, note in analysis.notes)


def test_a_call_that_was_made_again_with_the_same_text(tmp_path: Path) -> None:
    # calls    |=|   |=|        |=|
    # flights  |=======|  (the second call's is missing)  |====|
    builder = TraceBuilder().label("forward", 0, 5)
    for start, end in ((10, 12), (20, 22), (40, 42)):
        builder.label(call(), start, end)
    builder.label(call(), 10, 21, in_flight=True).label(call(), 40, 60, in_flight=True)
    (groups,) = closed_analysis(builder.write(tmp_path)).result.collectives
    (use,) = groups.uses
    assert (use.count, use.total_ns) == (3, 11 + 2 + 20)


# -- who is a rank --------------------------------------------------------------------------------


def ranks(builder: TraceBuilder, tmp_path: Path) -> list[tuple[int, int, int | None]]:
    """Return (rank, pid, device) of each."""
    analysis = closed_analysis(builder.write(tmp_path))
    return [(rank.rank, rank.pid, rank.device) for rank in analysis.run.ranks]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([(10, call(rank=1)), (11, call(rank=0))], [(0, 11), (1, 10)]),
        # Numbers that contradict each other or are missing: in order.
        ([(10, call(rank=3)), (11, call(rank=3))], [(0, 10), (1, 11)]),
        ([(10, call()), (11, "all_reduce bytes=4 group=0 size=2 seq=0")], [(0, 10), (1, 11)]),
        ([(9, call(0, rank=7)), (9, call(1, rank=8))], [(0, 9)]),
        # Each of these makes a rank.
        *(([(9, text)], [(0, 9)]) for text in ("step 3", "forward", "backward", "optimizer step")),
    ],
)
def test_labels_tell_the_rank(
    labels: list[tuple[int, str]], expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for place, (pid, text) in enumerate(labels):
        builder.label(text, 6 * place, 6 * place + 5, pid=pid)
    assert ranks(builder, tmp_path) == [(*one, None) for one in expected]


def test_labels_tell_the_rank_of_a_process_with_a_gpu_before_mpi(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for pid, rank in ((10, 5), (11, 4)):
        builder.kernel(0, 9, pid=pid).label(call(rank=rank), 0, 5, pid=pid)
        builder.thread_name(f"MPI Rank {pid - 10}", pid=pid)
    assert ranks(builder, tmp_path) == [(4, 11, 0), (5, 10, 0)]


def test_processes_that_only_help_are_no_ranks(tmp_path: Path) -> None:
    builder = TraceBuilder().label("step 0", 0, 9, pid=1)
    builder.label("pin_memory bytes=4096", 0, 5, pid=2).label("validate", 0, 5, pid=2)
    builder.label("data loading", 0, 5, pid=3).nvtx("all_reduce bytes=4 group=0", 0, 5, pid=4)
    assert ranks(builder, tmp_path) == [(0, 1, None)]


def test_labels_of_a_process_with_a_gpu_make_no_second_rank(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 9, pid=2).label("step 0", 0, 9, pid=2)
    builder.label(call(), 0, 5, pid=2).label(call(1, rank=1), 0, 5, pid=1)
    # Those without a GPU come last, whatever their process ids.
    assert ranks(builder, tmp_path) == [(0, 2, 0), (1, 1, None)]


# -- steps and windows ----------------------------------------------------------------------------


def three_steps() -> TraceBuilder:
    """Two ranks: each step's range takes 80 of 100 ns, loading data the rest."""
    builder = TraceBuilder()
    for pid in (1, 2):
        for step in range(3):
            start = 1000 * pid + 100 * step
            builder.label(f"step {step}", start, start + 80, pid=pid)
            builder.label("forward", start, start + 30, pid=pid)
            builder.label(call(step, rank=pid - 1), start + 20, start + 60, pid=pid)
            builder.label("optimizer step", start + 60, start + 80, pid=pid)
            builder.label("data loading", start + 80, start + 100, pid=pid)
    return builder


def test_steps_follow_each_other_and_the_last_ends_with_its_range(tmp_path: Path) -> None:
    analysis = closed_analysis(three_steps().shuffled(4).write(tmp_path))
    for result in analysis.result.breakdown:
        found = [(step.number, step.measures.window_ns) for step in result.steps]
        assert found == [(0, 100), (1, 100), (2, 80)]
        assert [parts(step.measures) for step in result.steps] == [
            (40, 40, 40, 20),
            (40, 40, 40, 20),
            (40, 40, 40, 0),
        ]


def test_steps_that_begin_before_or_after_all_labels_are_shown(tmp_path: Path) -> None:
    """Ranges of the user's own are steps, and labels lie inside of them."""
    builder = TraceBuilder()
    for step in range(4):
        builder.nvtx(f"step {step}", 100 * step, 100 * step + 80)
    for step in range(3):
        builder.label("forward", 100 * step + 10, 100 * step + 60)
    result = closed_analysis(builder.write(tmp_path)).result
    (breakdown,), (totals,) = result.breakdown, result.measured.step_totals
    found = [(step.number, step.measures.window_ns) for step in breakdown.steps]
    assert found == [(0, 100), (1, 100), (2, 100), (3, 0)]
    assert totals.steps == (0, 1, 2)
    assert breakdown.training is not None
    assert (breakdown.training.before_ns, breakdown.whole.window_ns) == (0, 300)


def test_an_optimizer_step_that_the_capture_cuts_off_closes_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder().machine(end=100)
    for start, end in ((0, 40), (40, 100)):
        builder.label("forward", start, start + 20).label("optimizer step", start + 20, end)
    path = builder.label(call(), 60, 70).write(tmp_path)
    (result,) = closed_analysis(path).result.breakdown
    assert [(step.number, step.measures.window_ns) for step in result.steps] == [(0, 40)]


def test_steps_and_time_ranges_can_be_chosen(tmp_path: Path) -> None:
    path = three_steps().write(tmp_path)
    analysis = closed_analysis(path, steps=(1, 2))
    assert [asdict(row.whole)["window_start_ns"] for row in analysis.result.breakdown] == [
        1100,
        2100,
    ]
    assert [row.whole.num_communication for row in analysis.result.breakdown] == [1, 1]
    assert [collective.uses[0].count for collective in analysis.result.collectives] == [1, 1]
    inside = closed_analysis(path, time_range=(1000, 1050)).result.breakdown
    assert parts(inside[0].whole) == (20, 30, 30, 0)
    assert parts(inside[1].whole) == (0, 0, 0, 50)
    with pytest.raises(UsageError, match="the steps found are 0 to 2"):
        closed_analysis(path, steps=(3, None))


def test_steps_that_the_user_names(tmp_path: Path) -> None:
    builder = TraceBuilder().label(call(), 0, 100)
    builder.nvtx("batch 7", 10, 30).nvtx("batch 8", 40, None)
    path = builder.write(tmp_path)
    (result,) = closed_analysis(path, step_pattern=r"batch (\d+)").result.breakdown
    assert [(step.number, step.measures.window_ns) for step in result.steps] == [(7, 30), (8, 60)]


# -- real recordings ------------------------------------------------------------------------------


REAL = [
    ([OWN_CPU_TRACE], [(6870, 58413, 56914, 5530), (7448, 54270, 52277, 5394)]),
    (OWN_CPU_PROFILES, [(14441, 36650, 33221, 5424), (9664, 34595, 31791, 7100)]),
]
"""Of each rank compute, communication, exposed communication and idle, in µs."""


@pytest.mark.parametrize(("recording", "parts_us"), REAL, ids=["nsys", "torch"])
def test_real_recordings_say_what_the_training_did(
    recording: list[Path], parts_us: list[tuple[int, ...]]
) -> None:
    """Six steps of `programs/train.py`: gradients in two buckets, a parcel to rank 1, the loss."""
    result = analyze_reports(recording)
    assert [tuple(part // 1000 for part in parts(rank.whole)) for rank in result.breakdown] == (
        parts_us
    )
    assert [[step.number for step in rank.steps] for rank in result.breakdown] == [
        [*range(10, 16)]
    ] * 2
    used = {
        (collective.rank, use.operation, use.count, use.bytes)
        for collective in result.collectives
        for use in collective.uses
    }
    gradients, parcel = 4 * 96 * 96 * 4, 1000 * 4
    assert used == {
        (0, "AllReduce", 18, 6 * (gradients + 4)),
        (1, "AllReduce", 18, 6 * (gradients + 4)),
        (0, "Send", 6, 6 * parcel),
        (1, "Recv", 6, 6 * parcel),
    }
