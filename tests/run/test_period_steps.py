"""Steps that nobody marked: periods of kernels as the steps of a rank."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reference.nsight_export import Export
from tests.reference.training import training
from tests.support.builders import ALL_REDUCE, US, TraceBuilder, solver
from tests.support.databases import cut
from tests.support.selection import known
from tests.support.traces import ranks_of, result_of
from traceprof.analysis import analyze
from traceprof.execution.options import Options
from traceprof.reports.time_text import outside_the_training
from traceprof.run import periods
from traceprof.run.opening import open_report
from traceprof.run.periods import GRAPH, Period, _are_near, about_periods
from traceprof.run.rank import Rank
from traceprof.run.steady_steps import StepUse, other_phases, steady_steps
from traceprof.run.step_ranges import NO_TRAINING_RANGES, StepsSource
from traceprof.run.windows import TrainingBasis, choose_window, training_of, training_window
from traceprof.trace.open import open_trace

_ITERATION = (20 + 4 * (30 + 2)) * US
CUTS = [(0.0, 0.95), (0.0, 0.71), (0.0, 0.4), (0.13, 1.0), (0.5, 1.0), (0.2, 0.63), (0.3, 0.92)]
"""Shares of a recording: from when to when a shorter one of the same program would last."""


def test_an_iteration_of_a_solver_is_a_step(tmp_path: Path) -> None:
    with ranks_of(solver(12).write(tmp_path)) as (rank,):
        assert rank.steps is not None
        assert rank.steps.found_by is StepsSource.PERIOD
        assert rank.steps.number.tolist() == list(range(12))
        # `update` returns once, too, but after a shorter gap; both `sweep` are one signature.
        assert known(rank.periods).phases == (Period("norm", 4, is_only=True),)
        assert np.diff(rank.steps.start_ns).tolist() == [_ITERATION] * 11
        assert rank.steps.end_ns[:-1].tolist() == rank.steps.start_ns[1:].tolist()
        assert rank.steps.end_ns[-1] == rank.window.end_ns
        training = training_of(rank)
        assert training.basis is TrainingBasis.PERIODS
        assert training.start_ns == rank.steps.start_ns[0]
        assert (training.before_ns, training.after_ns) == (32 * US, 0)
        steady = steady_steps(rank, training_window(rank))
        assert len(steady.step) == 11  # no step follows the last one
        assert (rank.steps.start_ns - known(rank.host_steps).start_ns).tolist() == [5 * US] * 12
        window = known(choose_window(rank, steps=(2, 4)))
        assert (window.start_ns, window.end_ns) == (rank.steps.start_ns[2], rank.steps.start_ns[4])


def reference_starts(path: Path) -> list[int]:
    export = Export(path)
    (key,) = export.ranks
    return [step.start for step in training(export, *key).steps]


def marked(trace: TraceBuilder) -> TraceBuilder:
    return trace.nvtx("step 0", 0, 6 * _ITERATION).nvtx("step 1", 6 * _ITERATION, 12 * _ITERATION)


def by_optimizer(trace: TraceBuilder) -> TraceBuilder:
    name = "Optimizer.step#SGD.step"
    for number in range(3):
        end = (number + 1) * 4 * _ITERATION
        trace.nvtx(name, end - 20 * US, end - 10 * US)
    return trace


@pytest.mark.parametrize("mark", [marked, by_optimizer])
def test_where_ranges_mark_steps_there_are_no_periods(mark: object, tmp_path: Path) -> None:
    assert callable(mark)
    with ranks_of(mark(solver(12)).write(tmp_path)) as (rank,):
        assert not rank.may_use_period
        assert rank.periods is None
        assert known(rank.steps).found_by is StepsSource.RANGES


def test_the_option_goes_without(tmp_path: Path) -> None:
    with closing(open_trace(solver(12).write(tmp_path))) as trace:
        (rank,) = Options(period=False).ranks_of(trace)
        assert rank.steps is None
        assert choose_window(rank, steps=(0, 2)) is None
        (rank,) = open_report(trace)
        assert rank.steps is not None


def test_phases_of_a_program(tmp_path: Path) -> None:
    builder = solver(40, ("sweep", "norm", "update"))
    begin = 40 * (20 + 3 * 32) * US + 500 * US
    solver(30, ("advect", "project"), builder=builder, begin_ns=begin)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        assert rank.steps is not None
        assert rank.periods is not None
        assert [one.kernel for one in rank.periods.phases] == ["sweep", "advect"]
        assert np.bincount(rank.steps.phases).tolist() == [39, 30]
        assert rank.steps.number.tolist() == list(range(69))
        # What lies between phases is of none, and both lack what follows their last step.
        assert rank.steps.end_ns[38] < begin
        steady = steady_steps(rank, training_window(rank))
        counts = [(steady.uses == use).sum() for use in (StepUse.STEADY, StepUse.PHASE)]
        assert counts == [38, 29]
        assert not rank.steps.phases[steady.step].any()
        assert about_periods(rank.periods.phases) == (
            "No range marks steps; an iteration is from one sweep to the next (3 kernels), then"
            " from one advect to the next (2 kernels), in 2 phases of the program."
        )
        assert about_periods(rank.periods.phases[:1], (3, 18)) == (
            "No range marks steps; a period is a layer of the model, layers 3 to 18:"
            " from one sweep to the next (3 kernels)."
        )
    twice = Period("norm", 4, is_only=False)
    assert str(twice) == "a period of 4 kernels that begins with norm"
    assert str(Period("norm", 1, is_only=True)) == "from one norm to the next (1 kernel)"


@pytest.mark.parametrize("num_later", [0, 6])
def test_algorithms_that_a_library_tries_are_set_up(num_later: int, tmp_path: Path) -> None:
    """TensorFlow and XLA check the memory around each; a new shape may need some later on."""
    tried = ("implicit_convolve_sgemm", "redzone_checker", "winograd_convolve", "redzone_checker")
    trace, step = TraceBuilder(), ("scudnn_convolve", "relu_kernel", "gemm")
    solver(12, tried, builder=trace, length_us=100)
    begin = 12 * (20 + 4 * 102) * US
    solver(20, step, builder=trace, begin_ns=begin)
    later = begin + 20 * (20 + 3 * 32) * US
    solver(num_later, tried, builder=trace, begin_ns=later)
    solver(3, step, builder=trace, begin_ns=later + num_later * (20 + 4 * 32) * US)
    path = trace.write(tmp_path)
    with ranks_of(path) as (rank,):
        assert begin <= training_of(rank).start_ns < begin + 30 * US
    (said,) = outside_the_training(result_of(path).breakdown)
    assert "(48 kernels, set-up: a library tries algorithms)" in said


@pytest.mark.parametrize(
    ("kernel", "num", "length_us", "num_phases"),
    [
        ("sweep", 40, 30, 2),
        ("sweep", 9, 200, 1),  # no loop
        ("sweep", 12, 30, 1),  # takes little
        ("vectorized_elementwise_kernel", 40, 30, 1),  # what prepares data in a known way
    ],
)
def test_a_loop_before_the_first_matrix_multiplication_is_a_program(
    kernel: str, num: int, length_us: int, num_phases: int, tmp_path: Path
) -> None:
    builder = solver(num, (kernel, "axpy_kernel"), length_us=length_us)
    begin = num * (20 + 2 * (length_us + 2)) * US
    solver(60, ("gemm", "scale"), builder=builder, begin_ns=begin)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        phases = known(rank.periods).phases
        assert [phase.kernel for phase in phases] == [kernel, "gemm"][-num_phases:]
        assert (known(rank.main_compute).start_ns < begin) is (num_phases == 2)


def test_the_busiest_stream_counts_where_others_take_turns(tmp_path: Path) -> None:
    builder = solver(12)
    source = np.random.default_rng(1)
    for start in source.integers(0, 12 * _ITERATION, 60).tolist():
        builder.kernel(start, start + US, "decode(char*)", stream=20)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        assert known(rank.periods).phases == (Period("norm", 4, is_only=True),)


def test_a_graph_that_is_traced_as_a_whole(tmp_path: Path) -> None:
    builder = solver(40, ("sample",))
    for number in range(40):
        at = number * 52 * US
        builder.graph(at + 3 * US, at + 19 * US, launch=(at, at + US))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        (period,) = known(rank.periods).phases
        assert period == Period(GRAPH, 2, is_only=True)
        assert np.diff(known(rank.host_steps).start_ns).tolist() == [52 * US] * 38


@pytest.mark.parametrize("kernels", [("decode",) * 8, ("attend", "project") * 4])
def test_no_period_ends_inside_the_launch_of_a_graph(
    kernels: Sequence[str], tmp_path: Path
) -> None:
    trace, at = TraceBuilder(), 0
    for call in range(1000, 1012):
        launch: tuple[int, int] | Literal[False] = (at, at + US)
        for name in kernels:
            trace.kernel(at + 9 * US, at + 19 * US, name, launch=launch, correlation=call)
            at, launch = at + 11 * US, False
        at += 60 * US
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert known(rank.periods).phases == (Period(kernels[0], 8, is_only=False),)
        assert np.diff(known(rank.steps).start_ns).tolist() == [(8 * 11 + 60) * US] * 11


def test_launches_that_are_not_known(tmp_path: Path) -> None:
    builder = solver(12).without("CUPTI_ACTIVITY_KIND_RUNTIME")
    with ranks_of(builder.write(tmp_path)) as (rank,):
        assert rank.host_steps is None
        assert len(known(rank.steps)) == 12


def test_launches_in_another_order(tmp_path: Path) -> None:
    """Two streams take turns, and one is late now and then: the n-th launch begins the n-th."""
    builder = TraceBuilder()
    for number in range(40):
        at = (number ^ (number % 8 == 1)) * 50 * US  # 2 and 3 of each eight change places
        call = number * 50 * US
        builder.kernel(at + 99 * US, at + 120 * US, stream=7 + number % 2, launch=(call, call + US))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        assert rank.host_steps is not None
        assert rank.host_steps.start_ns.tolist() == [number * 50 * US for number in range(40)]


def test_of_very_many_those_in_the_middle_are_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = solver(41, ("sweep", "norm", "update"))
    solver(30, ("advect",), builder=builder, begin_ns=41 * (20 + 3 * 32) * US + 500 * US)
    path = builder.write(tmp_path)
    with ranks_of(path) as (rank,):
        assert rank.steps is not None
        span = int(rank.steps.start_ns[0]), int(rank.steps.end_ns[-1])
        all_steps = rank.steps
    assert not [note for _, note in analyze(path).notes if "return" in note]
    monkeypatch.setattr(periods, "MAX_PERIODS", 12)
    with ranks_of(path) as (rank,):
        steps, training = known(rank.steps), training_of(rank)
        assert np.bincount(steps.phases).tolist() == [6, 5]  # of 40 and 30
        assert steps.number.tolist() == [*range(17, 23), *range(52, 57)]
        assert steps.start_ns.tolist() == all_steps.start_ns[steps.number].tolist()
        assert steps.end_ns.tolist() == all_steps.end_ns[steps.number].tolist()
        assert (training.start_ns, training.end_ns) == span
        window = training_window(rank)
        found = steady_steps(rank, window)
        assert found.step.tolist() == [*range(6)]  # none is cut: more follow
        assert (found.uses[6:] == StepUse.PHASE).all()
        other = other_phases(rank, window)[1]
        last = known(rank.periods).spans_ns[1]
        assert (other.start_ns, other.end_ns) == last == (all_steps.start_ns[40], span[1])
        assert len(known(rank.host_steps).number) == 70
    (note,) = [note for _, note in analyze(path).notes if "its kernels repeat" in note]
    assert "repeat 70 times: 11 of these periods, from the middle, are its steps" in note


def in_turns(*, order: list[int], length_us: int = 30) -> TraceBuilder:
    """Two kernels at a time on the streams of this order, each of kernels of its own."""
    trace, at = TraceBuilder(), 0
    for stream in order:
        for number in range(2):
            name = f"layer_{stream}_{number}(float*)"
            trace.kernel(at, at + length_us * US, name, stream=stream)
            at += (length_us + 2) * US
    return trace


def test_a_stream_of_several_that_run_one_after_the_other_is_no_program(tmp_path: Path) -> None:
    one_by_one = in_turns(order=[stream for stream in range(10, 20) for _ in range(10)])
    with ranks_of(one_by_one.write(tmp_path / "one_by_one.sqlite")) as (rank,):
        assert rank.may_use_period
        assert rank.periods is None
        assert rank.steps is None
    together = in_turns(order=[*range(10, 20)] * 10)
    with ranks_of(together.write(tmp_path / "together.sqlite")) as (rank,):
        assert known(rank.periods).phases[0].num_kernels == 20


def test_launches_of_one_size_of_a_benchmark_are_no_steps(tmp_path: Path) -> None:
    """Of 50 launches 33 are alike; they take 97 % of the time."""

    def benchmark(num_others: int) -> TraceBuilder:
        trace, at = TraceBuilder(), 0
        for number in range(num_others + 33):
            grid = min(number + 1, num_others + 1)
            length = (2 if number < num_others else 30) * US
            trace.kernel(at, at + length, "copy(float*)", grid=(grid, 1, 1))
            at += length + 2 * US
        return trace

    with ranks_of(benchmark(17).write(tmp_path / "17.sqlite")) as (rank,):
        assert rank.periods is None
    with ranks_of(benchmark(5).write(tmp_path / "5.sqlite")) as (rank,):
        assert len(known(rank.steps)) == 33


_ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"


def with_evaluations(
    update: str, num_batches: Sequence[int] = (6,) * 8, *, is_marked: bool = False
) -> TraceBuilder:
    """Training steps of six kernels; after every tenth batches are evaluated, of three kernels.

    `num_batches`: of each evaluation. `is_marked`: whether ranges mark updates.
    """
    trace, at, every = TraceBuilder(), 0, 10
    step = ("gemm_in", "gemm_out", "loss", "gemm_grad", "gemm_weight", update)
    for number in range(every * len(num_batches)):
        num = num_batches[number // every] if number % every == every - 1 else 0
        for name in (*step, *("gemm_in", "gemm_out", "metric") * num):
            launch = at - 5 * US, at - 4 * US
            trace.kernel(at, at + (10 if name == "metric" else 100) * US, name, launch=launch)
            if is_marked and name == update:
                trace.nvtx("Optimizer.step#SGD.step", at - 6 * US, at - 3 * US)
            at += 102 * US
        at += 50 * US
    return trace


@pytest.mark.parametrize("num_batches", [(6,) * 8, (6, 7, 7, 6, 6, 6, 8, 7)])
def test_an_evaluation_after_every_tenth_step_interrupts_the_steps(
    num_batches: Sequence[int], tmp_path: Path
) -> None:
    """The optimizer's kernels tell: without them the ten steps with it are one iteration."""
    path = with_evaluations(_ADAM, num_batches).write(tmp_path / "updates.sqlite")
    with ranks_of(path) as (rank,):
        steps, (period,) = known(rank.steps), known(rank.periods).phases
        assert period == Period("gemm_in", 6, is_only=True)
        assert len(steps) == 80
        uses = steady_steps(rank, training_window(rank)).uses
        rare, last = [*range(9, 79, 10)], [79]
        assert np.flatnonzero(uses == StepUse.RARE).tolist() == rare
        assert np.flatnonzero(uses != StepUse.STEADY).tolist() == [*rare, *last]
    assert reference_starts(path) == steps.start_ns.tolist()
    with ranks_of(with_evaluations("scale").write(tmp_path / "none.sqlite")) as (rank,):
        assert known(rank.periods).phases[0].num_kernels == 78
    marked = with_evaluations("scale", is_marked=True).write(tmp_path / "marked.sqlite")
    with ranks_of(marked) as (rank,):
        uses = steady_steps(rank, training_window(rank)).uses
        assert np.flatnonzero(uses == StepUse.RARE).tolist() == [*range(10, 80, 10)]


_MICRO = ("gemm_in", "gemm_out", "gemm_grad")


@pytest.mark.parametrize(
    "step",
    [
        (*_MICRO * 4, "scale", _ADAM),
        # Copies of lists of tensors, as FSDP makes before each micro-batch.
        (*("void multi_tensor_apply_kernel<CopyFunctor<float>>", *_MICRO) * 32, "scale", _ADAM),
        # A critic's updates, several for each of the generator.
        (*(*_MICRO, _ADAM) * 5, "gemm_noise", "gemm_made", _ADAM),
    ],
    ids=["accumulation", "accumulation with lists", "two optimizers"],
)
@pytest.mark.parametrize("num", [5, 20])
def test_what_repeats_itself_within_a_step_is_none(
    step: Sequence[str], num: int, tmp_path: Path
) -> None:
    path = solver(num, step).write(tmp_path)
    with ranks_of(path) as (rank,):
        assert known(rank.periods).phases[0].num_kernels == len(step)
        starts = known(rank.steps).start_ns.tolist()
    assert reference_starts(path) == starts


def between_collectives(
    changed: Sequence[str] = ("gemm",),
    *,
    lacking: float = 0.0,
    off_stream: bool = False,
    shift: int = 0,
) -> TraceBuilder:
    """30 steps of 40 equal GEMMs and an AllReduce, which a share of them lacks.

    `changed`: what a third of the steps, by chance, has in place of one GEMM. `shift`: how many
    GEMMs earlier or later an AllReduce may come.
    """
    trace, at, source = TraceBuilder(), 0, np.random.default_rng(0)
    shifts = [0, *np.random.default_rng(1).integers(-shift, shift + 1, 28).tolist(), 0, 0]
    for number in range(30):
        num = 40 + shifts[number + 1] - shifts[number]
        place = int(source.integers(num))
        one = changed if source.random() < 1 / 3 else ["gemm"]
        for name in [*["gemm"] * place, *one, *["gemm"] * (num - 1 - place)]:
            launch = at - 5 * US, at - 4 * US
            trace.kernel(at, at + 30 * US, f"{name}(float*)", launch=launch)
            at += 32 * US
        if source.random() >= lacking:
            begin = at - 20 * US if off_stream else at
            launch = begin - 5 * US, begin - 4 * US
            stream = 20 if off_stream else 7
            trace.kernel(begin, begin + 30 * US, ALL_REDUCE, stream=stream, launch=launch)
            at = begin + 32 * US
        at += 20 * US
    return trace


@pytest.mark.parametrize("off_stream", [False, True])
@pytest.mark.parametrize("changed", [["gemm"], ["scale", "gemm"], ["gemm", "gemm"], []])
def test_equal_kernels_between_collectives_are_a_step(
    changed: list[str], off_stream: bool, tmp_path: Path
) -> None:
    path = between_collectives(changed, off_stream=off_stream).write(tmp_path)
    with ranks_of(path) as (rank,):
        steps, (period,) = known(rank.steps), known(rank.periods).phases
        assert period == Period("gemm", 40, is_only=False)
        assert len(steps) == 30
        # Each begins with the GEMM after an AllReduce.
        collectives = rank.operations.kernels.start_ns[rank.is_communication_kernel]
        assert (np.searchsorted(steps.start_ns, collectives) == np.arange(1, 31)).all()
    assert len(reference_starts(path)) == 30


def test_collectives_whose_place_varies_end_steps(tmp_path: Path) -> None:
    path = between_collectives(shift=6).write(tmp_path)
    with ranks_of(path) as (rank,):
        assert known(rank.periods).phases == (Period("gemm", 41, is_only=False),)  # the median
        collectives = rank.operations.kernels.start_ns[rank.is_communication_kernel]
        steps = known(rank.steps)
        assert (np.searchsorted(steps.start_ns, collectives) == np.arange(1, 31)).all()
    assert reference_starts(path) == steps.start_ns.tolist()


def test_a_collective_after_every_tenth_iteration_is_inserted(tmp_path: Path) -> None:
    """As a kernel would be: of 40 others it is too few to make another period."""
    trace, layers = TraceBuilder(), [f"layer_{number}" for number in range(40)]
    for number in range(100):
        at = number * 2000 * US
        solver(1, layers, builder=trace, begin_ns=at)
        if number % 10 == 9:
            trace.kernel(at + 1500 * US, at + 1600 * US, ALL_REDUCE)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert known(rank.periods).phases == (Period("layer_0", 40, is_only=True),)
        assert len(known(rank.steps)) == 100


def test_a_step_with_a_collective_is_one_whatever_kind_of_it_runs(tmp_path: Path) -> None:
    trace, names = TraceBuilder(), (ALL_REDUCE, ALL_REDUCE.replace("RING", "TREE"))
    for number in range(40):
        at = number * 200 * US
        solver(1, ("forward", "backward", "update"), builder=trace, begin_ns=at)
        trace.kernel(at + 150 * US, at + 160 * US, names[number % 2])
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert known(rank.periods).phases == (Period("forward", 3, is_only=True),)
        assert len(known(rank.steps)) == 39  # from the first gap on


def test_collectives_alone_are_no_phase(tmp_path: Path) -> None:
    trace = between_collectives()
    for number in range(300):
        at = (50_000 + number * 40) * US
        trace.kernel(
            at, at + 30 * US, "ncclDevKernel_AllGather_RING_LL()", launch=(at - 5 * US, at - 4 * US)
        )
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert known(rank.periods).phases == (Period("gemm", 40, is_only=False),)


def test_collectives_that_lie_anywhere_make_no_longer_period(tmp_path: Path) -> None:
    with ranks_of(between_collectives(lacking=0.5).write(tmp_path)) as (rank,):
        assert known(rank.periods).phases[0].num_kernels == 1


PROGRAMS: dict[str, tuple[int, Callable[[int], TraceBuilder]]] = {
    "a solver": (4, solver),
    "two streams": (20, lambda num: in_turns(order=[*range(10, 20)] * num)),
    "other lengths": (6, lambda num: solver(num, ("a", "b", "c", "b", "d", "a"), noise=0.3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_recordings_of_any_length_have_the_same_period_or_none(name: str, tmp_path: Path) -> None:
    lag, program = PROGRAMS[name]
    path = program(30).write(tmp_path / "whole.sqlite")
    with ranks_of(path) as (rank,):
        start_ns, length_ns = rank.window.start_ns, rank.window.length_ns
        assert known(rank.periods).phases[0].num_kernels == lag
    num_known = 0
    for number, (begin, end) in enumerate(CUTS):
        part = tmp_path / f"{number}.sqlite"
        recorded = start_ns + int(begin * length_ns), start_ns + int(end * length_ns)
        with ranks_of(cut(path, part, *recorded)) as (rank,):
            lags = (
                [] if rank.periods is None else [phase.num_kernels for phase in rank.periods.phases]
            )
            assert lags in ([], [lag])
            num_known += bool(lags)
    assert num_known >= len(CUTS) - 1


def test_parts_of_real_recordings_have_the_same_period_or_none(
    real_trace: Path, tmp_path: Path
) -> None:
    """A shorter one is a layer of the iteration, of which the part shows no two.

    The kernels of other streams are counted, or not: DALI's two, in a part that has all of them.
    """
    with ranks_of(real_trace) as ranks:
        wholes = {rank.rank: _lags(rank) for rank in ranks if len(rank.operations.kernels)}
        spans = [rank.window for rank in ranks if rank.rank in wholes]
    if not any(wholes.values()):
        return
    start_ns = min(window.start_ns for window in spans)
    length_ns = max(window.end_ns for window in spans) - start_ns
    for number, (begin, end) in enumerate(CUTS):
        part = tmp_path / f"{number}.sqlite"
        recorded = start_ns + int(begin * length_ns), start_ns + int(end * length_ns)
        with ranks_of(cut(real_trace, part, *recorded)) as ranks:
            for rank in ranks:
                whole, lags = wholes.get(rank.rank, ()), _lags(rank)
                layers = {lag for lag in lags if not any(_are_near(one, lag) for one in whole)}
                assert not whole or all(2 * lag <= max(whole) for lag in layers)
        part.unlink()


def _lags(rank: Rank) -> tuple[int, ...]:
    """Return the periods of a rank, also if it has marked steps."""
    if rank.device is None or not len(rank.operations.kernels):
        return ()
    unmarked = replace(NO_TRAINING_RANGES, warm_up=rank.training_ranges.warm_up)
    bare = replace(rank, training_ranges=unmarked, may_use_period=True)
    lags = () if bare.periods is None else tuple(one.num_kernels for one in bare.periods.phases)
    bare.release()
    return lags


def test_marked_steps_of_real_recordings_are_found_without_their_marks(real_trace: Path) -> None:
    """Where at least four are marked, each holds one period, but at the ends of the recording."""
    with ranks_of(real_trace) as ranks:
        for rank in ranks:
            steps = rank.steps
            if rank.step_ranges is None or steps is None or len(steps) < 4:
                continue
            unmarked = replace(NO_TRAINING_RANGES, warm_up=rank.training_ranges.warm_up)
            bare = replace(rank, training_ranges=unmarked, may_use_period=True)
            assert bare.steps is not None
            assert bare.steps.found_by is StepsSource.PERIOD
            step = np.searchsorted(steps.start_ns, bare.steps.start_ns, side="right") - 1
            held = np.bincount(step[step >= 0], minlength=len(steps))[1:-1]
            is_at_limits = "trace_diff" in real_trace.name  # returns come where steps begin
            assert held.mean() == pytest.approx(1, abs=0.3 if is_at_limits else 0)
            bare.release()
