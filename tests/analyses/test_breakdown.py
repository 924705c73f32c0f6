"""Where the time went in small exports whose answers can be counted by hand, and in real ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from msgspec.structs import asdict

from tests.reference.breakdown import read
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.changes import on_one_clock
from tests.support.claims import analyzed, assert_agreement, assert_agrees, measured_in
from tests.support.databases import change
from tests.support.kept_claims import Kept
from tests.support.selection import few_and_many, for_examples
from tests.support.traces import closed_analysis, ranks_of
from traceprof import labels
from traceprof.analyses.breakdown import Measures
from traceprof.analysis import FINDING_IDS
from traceprof.errors import UsageError
from traceprof.run.steady_steps import StepUse, steady_steps


def whole(path: Path) -> Measures:
    (result,) = closed_analysis(path).result.breakdown
    return result.whole


def test_every_part(tmp_path: Path) -> None:
    # compute        |=====|           0-100
    # communication     |======|       50-150
    # copy                  |====|     120-200
    # idle                       |==|  200-250, then a memset 250-260
    builder = TraceBuilder().kernel(0, 100).kernel(50, 150, NCCL, stream=20).memcpy(120, 200)
    path = builder.memset(250, 260).write(tmp_path)
    assert_agreement(path)
    assert asdict(whole(path)) == {
        "window_start_ns": 0, "window_ns": 260, "compute_ns": 100, "communication_ns": 100,
        "overlapped_communication_ns": 50, "exposed_communication_ns": 50, "copy_ns": 90,
        "exposed_copy_ns": 60, "idle_ns": 50, "num_kernels": 1, "num_communication": 1,
        "num_copies": 2, "lost_ns": 0,
    }  # fmt: skip


def test_operations_without_length_at_both_ends(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 0).kernel(5, 8).kernel(10, 10).write(tmp_path)
    measures = assert_agreement(path)[0][2]
    assert (measures["window_ns"], measures["num_kernels"], measures["idle_ns"]) == (10, 3, 7)
    # In a half-open range the one at its end is outside.
    ((_, _, inside, _),) = assert_agreement(path, time_range=(0, 10))
    assert inside["num_kernels"] == 2


def test_peer_copies_are_communication(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 10, "PtoP").memcpy(10, 20, "DtoD", source=0, destination=1)
    builder.memcpy(20, 30, "DtoD", source=0, destination=0).memcpy(30, 40, "DtoD")
    path = builder.write(tmp_path)
    assert_agreement(path)
    assert (whole(path).communication_ns, whole(path).num_communication) == (20, 2)
    assert (whole(path).copy_ns, whole(path).num_copies) == (20, 2)


def test_copy_kinds_are_told_by_the_exports_own_enumeration(tmp_path: Path) -> None:
    path = TraceBuilder().memcpy(0, 10, "HtoD").write(tmp_path)
    change(path, "UPDATE ENUM_CUDA_MEMCPY_OPER SET label = 'Peer-to-Peer' WHERE id = 1")
    assert whole(path).num_communication == 1


def test_graphs_traced_as_a_whole_are_compute_of_unknown_content(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).graph(10, 90).write(tmp_path)
    assert_agreement(path)
    assert (whole(path).compute_ns, whole(path).num_kernels) == (90, 1)
    analysis = closed_analysis(path)
    missing = next(e for e in analysis.not_applicable if e.id == "exposed-communication")
    assert "--cuda-graph-trace=node" in missing.how_to_collect
    assert any("--cuda-graph-trace=node" in note for _, note in analysis.notes)


def test_ranks_are_numbered_as_mpi_says(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 5, pid=1).kernel(0, 5, pid=2)
    builder.thread_name("MPI Rank 7", pid=1).thread_name("MPI Rank 3", pid=2)
    ranks = closed_analysis(builder.write(tmp_path)).run.ranks
    assert [(rank.pid, rank.rank) for rank in ranks] == [(2, 3), (1, 7)]


def three_steps() -> TraceBuilder:
    """Launch two kernels in each of three steps; the GPU runs 100 ns late, and once more after."""
    builder = TraceBuilder()
    for step in range(3):
        host = 1000 * step
        builder.nvtx(f"step {step}", host, host + 900)
        for index in range(2):
            call = host + 100 * index
            builder.kernel(call + 100, call + 180, launch=(call, call + 5))
    return builder.kernel(2900, 2950, launch=(2905 - 10, 2900))


THREE = [(0, 100, 1000), (1, 1100, 1000), (2, 2100, 850)]


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (three_steps(), THREE),  # from the first operation to that of the next step
        # The ranges of instrument count before those of the profiler.
        (three_steps().nvtx("ProfilerStep#1", 0, 5000), THREE),
        # The capture ended in the last one.
        (
            three_steps().nvtx("step 3", 2990, None).kernel(3000, 3100),
            [*THREE[:2], (2, 2100, 900), (3, 3000, 100)],
        ),
        # An operation whose launch is not known is in no step, nor is a range without any.
        (three_steps().kernel(0, 50, launch=False), THREE),
        (TraceBuilder().nvtx("step 0", 0, 10).nvtx("step 1", 10, 20).kernel(12, 15), [(1, 12, 3)]),
        # Another thread launches for it.
        (
            TraceBuilder().nvtx("step 0", 0, 100).kernel(10, 20).kernel(50, 60, tid=77),
            [(0, 10, 50)],
        ),
        # A correlation id is used twice in one process.
        (
            TraceBuilder()
            .nvtx("step 0", 0, 99)
            .nvtx("step 1", 100, 199)
            .kernel(20, 30, correlation=5)
            .kernel(120, 130, correlation=5),
            [(0, 20, 100), (1, 120, 10)],
        ),
    ],
)
def test_a_step_is_what_its_range_launched(
    tmp_path: Path, builder: TraceBuilder, expected: list[tuple[int, int, int]]
) -> None:
    ((_, _, _, steps),) = assert_agreement(builder.write(tmp_path))
    found = [(number, step["window_start_ns"], step["window_ns"]) for number, step in steps]
    assert found == expected
    path = builder.without("CUPTI_ACTIVITY_KIND_RUNTIME").write(tmp_path / "no_calls.sqlite")
    ((_, _, _, steps),) = analyzed(path)
    assert steps == []


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("step 0", "step 1", "step 2"), [0, 1, 2]),
        (("ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#9"), [7, 8, 9]),
        (("iteration_3", "iteration_4", "iteration_5"), [3, 4, 5]),
        (("Iteration 3", "Iteration 4", "Iteration 5"), [3, 4, 5]),
        (("train_step",) * 3, [0, 1, 2]),
        (("[pl][profile]run_training_batch",) * 3, [0, 1, 2]),
        (
            (
                "execute_context_1(512)_generation_30(30)",
                "execute_32_context_0(sq0sk0)_generation_32(sq32sk55086)",
            ),
            [0, 1],
        ),
        (("execute_context_1(9)_generation_0(0)", "step[EXTEND bs=15 toks=15360]"), [0]),
    ],
)
def test_steps_are_found_by_every_name(
    tmp_path: Path, names: tuple[str, ...], numbers: list[int]
) -> None:
    builder = TraceBuilder()
    for index, name in enumerate(names):
        builder.nvtx(name, 100 * index, 100 * index + 99, registered=index % 2 == 0)
        builder.nvtx("forward", 100 * index, 100 * index + 50)
        builder.kernel(100 * index + 10, 100 * index + 20)
    ((_, _, _, steps),) = analyzed(builder.write(tmp_path))
    assert [number for number, _ in steps] == numbers


def test_a_step_that_an_exception_cut_is_not_counted(tmp_path: Path) -> None:
    builder = three_steps().nvtx(labels.cut("step 1"), 1500, 1500).nvtx("step 3", 2990, None)
    with ranks_of(builder.kernel(3000, 3100).write(tmp_path)) as (rank,):
        steps = steady_steps(rank, rank.window)
    assert steps.uses.tolist() == [StepUse.STEADY, StepUse.CUT, StepUse.STEADY, StepUse.CUT]


def test_steps_asked_for(tmp_path: Path) -> None:
    path = three_steps().write(tmp_path)
    ((_, _, measures, steps),) = analyzed(path, steps=(1, 3))
    assert (measures["window_start_ns"], measures["window_ns"]) == (1100, 1850)
    assert [number for number, _ in steps] == [1, 2]
    ((_, _, _, steps),) = analyzed(path, steps=(None, 1))
    assert [number for number, _ in steps] == [0]


def test_step_numbers_that_repeat_cannot_be_asked_for_by_number(tmp_path: Path) -> None:
    builder = three_steps()
    for step in range(3):
        builder.nvtx(f"step {step}", 4000 + 100 * step, 4099 + 100 * step)
        builder.kernel(4000 + 100 * step, 4050 + 100 * step)
    path = builder.write(tmp_path)
    with pytest.raises(UsageError, match="more than once"):
        closed_analysis(path, steps=(1, 2))


# -- generated exports ----------------------------------------------------------------------------

TIME = st.integers(0, 60)


@st.composite
def exports(draw: st.DrawFn) -> TraceBuilder:
    """Generate kernels, copies and steps of two processes, in an order that means nothing."""
    builder = TraceBuilder()
    kinds = st.sampled_from(["kernel", "nccl", "copy", "peer", "memset", "graph"])
    for _ in range(draw(st.integers(1, 14))):
        start = draw(TIME)
        end = start + draw(st.integers(0, 20))
        pid, device = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 1]))
        call = max(start - draw(st.integers(0, 30)), 0)
        launch = draw(st.sampled_from([(call, call + 1), False]))
        correlation = draw(st.one_of(st.none(), st.integers(1, 4)))
        how = {"pid": pid, "device": device, "launch": launch, "correlation": correlation}
        kind = draw(kinds)
        if kind in ("kernel", "nccl"):
            builder.kernel(start, end, NCCL if kind == "nccl" else "gemm", **how)  # type: ignore[arg-type]
        elif kind in ("copy", "peer"):
            builder.memcpy(start, end, "PtoP" if kind == "peer" else "HtoD", **how)  # type: ignore[arg-type]
        elif kind == "memset":
            builder.memset(start, end, **how)  # type: ignore[arg-type]
        else:
            builder.graph(start, end, **how)  # type: ignore[arg-type]
    for number in range(draw(st.integers(0, 4))):
        start = draw(TIME)
        stop = start + draw(st.integers(0, 30)) if draw(st.booleans()) else None
        builder.nvtx(f"step {number}", start, stop, pid=draw(st.sampled_from([1, 2])))
    return builder.shuffled(draw(st.integers(0, 3)))


TIME_RANGE = st.none() | st.tuples(TIME, st.integers(1, 100)).map(lambda pair: (pair[0], sum(pair)))


@pytest.mark.slow
@few_and_many(5, 100)
def test_generated_exports_agree_with_the_reference(
    num_examples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def check(builder: TraceBuilder, time_range: tuple[int, int] | None) -> None:
        builder.machine(end=1000)  # so that every time range is within the capture
        path = builder.write(tmp_path_factory.mktemp("generated") / "t.sqlite")
        assert_agreement(path, time_range=time_range)

    for_examples(num_examples, check, exports(), TIME_RANGE)


def exposed_once() -> TraceBuilder:
    return TraceBuilder().kernel(0, 600).kernel(500, 800, NCCL, stream=20).kernel(800, 1000)


def ten_gaps() -> TraceBuilder:
    builder = TraceBuilder()
    for index in range(10):
        builder.kernel(100 * index, 100 * index + 90 - index)
    return builder


def just_below_the_threshold() -> TraceBuilder:
    return TraceBuilder().kernel(0, 9901).kernel(10_000, 20_000, NCCL)


@pytest.mark.parametrize("program", [exposed_once, ten_gaps, just_below_the_threshold])
def test_parts_that_cost(program: Callable[[], TraceBuilder], tmp_path: Path, kept: Kept) -> None:
    path = program().write(tmp_path)
    kept(closed_analysis(path, only=["exposed-communication", "gpu-idle"]).findings)


def test_an_export_without_gpu_work_is_said_to_be_unjudged(tmp_path: Path) -> None:
    analysis = closed_analysis(TraceBuilder().nvtx("step 0", 0, 9).write(tmp_path))
    assert analysis.findings == ()
    assert {gap.id for gap in analysis.not_applicable} == set(FINDING_IDS)


def test_users_can_name_their_own_communication_kernels(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10, "exchange(int)").kernel(10, 20).write(tmp_path)
    analysis = closed_analysis(path, communication_kernels=["exch.*=AllToAll"])
    assert analysis.result.breakdown[0].whole.communication_ns == 10
    (use,) = analysis.result.collectives[0].uses
    assert (use.operation, use.count, use.total_ns) == ("AllToAll", 1, 10)


def test_lost_time_is_no_work() -> None:
    measures = Measures(0, 100, 30, 25, 5, 20, 15, 10, 28, 3, 2, 1, lost_ns=12)
    assert measures.busy_ns == 60 == measures.window_ns - measures.idle_ns - measures.lost_ns


def test_the_whole_and_time_ranges_agree_with_the_reference(
    real_trace: Path, tmp_path: Path
) -> None:
    path = on_one_clock(real_trace, tmp_path / "t.sqlite")
    # The reference reads the export once: that takes far longer than to measure a window.
    events = read(path)
    rows = analyzed(path)
    assert_agrees(rows, events)
    if not rows:
        return
    # All ranks are measured in windows within that of the last one.
    *_, (_, _, whole, _) = rows
    start, length = whole["window_start_ns"], whole["window_ns"]
    inside = (start + length // 3, start + 2 * length // 3)
    beyond = (start - 10, start + length // 2)
    with ranks_of(path) as ranks:
        for time_range in (beyond, (inside[0], None), (None, inside[1])):
            assert_agrees(measured_in(ranks, time_range), events, time_range)
    # What the user asks for reaches the measurement.
    assert_agrees(analyzed(path, time_range=inside), events, inside)


@pytest.mark.long
def test_a_pattern_of_the_users_finds_other_steps(traces: Path) -> None:
    path = traces / "a100x4_ddp_baseline_rank0.sqlite"
    ((_, _, _, steps),) = assert_agreement(path, step_pattern="^forward$")
    assert [number for number, _ in steps] == list(range(59))
