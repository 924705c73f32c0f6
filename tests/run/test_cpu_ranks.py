"""Ranks without a GPU: who is one, what it did, and that all reports cope with it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import asdict

from tests.reference.host_ranks import host_ranks
from tests.support.builders import TraceBuilder
from tests.support.selection import few_and_many, for_examples
from tests.support.traces import OWN_CPU_PROFILES, OWN_CPU_TRACE, closed_analysis, ranks_of
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
    assert_agreement(path)


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


# -- against the reference ------------------------------------------------------------------------


def assert_agreement(path: Path, time_range: tuple[int, int] | None = None) -> None:
    analysis = closed_analysis(path, time_range=time_range)
    expected = host_ranks(path, time_range)
    pids = {rank.rank: rank.pid for rank in analysis.run.ranks}
    hosts = [rank.pid for rank in analysis.run.ranks if rank.device is None]
    assert hosts == [rank.pid for rank in expected]
    by_pid = {pids[row.rank]: row for row in analysis.result.breakdown}
    uses_of = {pids[collective.rank]: collective.uses for collective in analysis.result.collectives}
    for other in expected:
        found = by_pid[other.pid]
        for measures, true in (
            (found.whole, other.whole),
            *zip([step.measures for step in found.steps], other.steps, strict=True),
        ):
            assert measures.window_start_ns == true.start_ns
            assert measures.window_ns == true.window_ns
            told = (true.compute_ns, true.communication_ns, true.exposed_communication_ns)
            assert parts(measures) == (*told, true.idle_ns)
        assert [step.number for step in found.steps] == [step.number for step in other.steps]
        rows = [
            {name: value for name, value in asdict(use).items() if name in other.uses[0]}
            for use in uses_of[other.pid]
        ]
        key = ("total_ns", "operation", "communicator", "peer")
        assert sorted(rows, key=lambda row: [str(row[name]) for name in key]) == sorted(
            other.uses, key=lambda row: [str(row[name]) for name in key]
        )


@pytest.mark.parametrize("recording", [[OWN_CPU_TRACE], OWN_CPU_PROFILES], ids=["nsys", "torch"])
def test_real_recordings_say_what_the_training_did(recording: list[Path]) -> None:
    """Six steps of `programs/train.py`: gradients in two buckets, a parcel to rank 1, the loss."""
    result = analyze_reports(recording)
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


def test_a_real_recording_agrees() -> None:
    assert_agreement(OWN_CPU_TRACE)
    with ranks_of(OWN_CPU_TRACE) as ranks:
        start, length = ranks[0].window.start_ns, ranks[0].window.length_ns
    assert_agreement(OWN_CPU_TRACE, (start + length // 3, start + length // 2))


LABELS = st.sampled_from(
    [
        "forward",
        "backward",
        "optimizer step",
        "data loading",
        "step 0",
        "step 1",
        "validate",
        "wait op=all_reduce group=0 seq=0",
        "bucket index=0 bytes=4 last=0",
        "bucket index=1 bytes=4 last=1",
        "batch_isend_irecv group=0 rank=0 size=2",
        "send dst=1 bytes=8 group=0 rank=0 size=2 seq=0",
        "irecv src=1 bytes=8 group=0 rank=0 size=2 seq=0",
        "barrier group=0 rank=0 size=2 seq=2",
        "all_reduce bytes=4 group=0 rank=0 size=2 seq=0",
        "all_reduce bytes=4 group=0 rank=0 size=2 seq=1",
        "all_gather bytes=4 group=1 rank=0 size=2 seq=0",
    ]
)


@st.composite
def exports(draw: st.DrawFn) -> TraceBuilder:
    """Generate labels on two threads of two processes, in an order that means nothing."""
    builder = TraceBuilder()
    for _ in range(draw(st.integers(1, 16))):
        start = draw(st.integers(0, 40))
        end = draw(st.none() | st.integers(start, start + 20))
        pid = draw(st.sampled_from([1, 2]))
        builder.label(
            draw(LABELS),
            start,
            end,
            pid=pid,
            tid=draw(st.sampled_from([pid, pid + 100])),
            in_flight=draw(st.booleans()),
        )
    if draw(st.booleans()):
        builder.machine(end=draw(st.integers(30, 60)))
    if draw(st.booleans()):
        builder.kernel(0, 9, pid=2)
    return builder.shuffled(draw(st.integers(0, 3)))


TIME_RANGE = st.none() | st.tuples(st.integers(0, 29), st.integers(30, 70))


@pytest.mark.slow
@few_and_many(6, 250)
def test_generated_labels_agree_with_the_reference(
    num_examples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def check(builder: TraceBuilder, time_range: tuple[int, int] | None) -> None:
        path = builder.write(tmp_path_factory.mktemp("generated") / "t.sqlite")
        try:
            assert_agreement(path, time_range)
        except UsageError as refusal:
            assume("nothing was captured in it" not in str(refusal))
            raise

    for_examples(num_examples, check, exports(), TIME_RANGE)
