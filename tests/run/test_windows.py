"""Windows that the user chooses: also where ranks did nothing in them."""

from pathlib import Path

import pytest

from tests.reference.breakdown import reference
from tests.reference.nsight_export import export_of
from tests.reference.training import training as expected_training
from tests.support.builders import TraceBuilder, global_tid
from tests.support.selection import as_rows
from tests.support.traces import ranks_of
from traceprof.analysis import Options, RunResult, analyze_reports
from traceprof.errors import UsageError
from traceprof.run.rank import Rank
from traceprof.run.windows import Range, Training, TrainingBasis, training_of

MS = 1_000_000
_BASIS = {
    TrainingBasis.STEPS: "steps",
    TrainingBasis.OPTIMIZER: "optimizer",
    TrainingBasis.PERIODS: "periods",
    TrainingBasis.MAIN_COMPUTE: "main compute",
    TrainingBasis.WINDOW: "window",
}


def check_all(path: Path) -> list[Training]:
    """Compare each rank of an export with the reference, and return their training."""
    export = export_of(path)
    with ranks_of(path) as opened:
        ranks = [rank for rank in opened if rank.device is not None]
        for rank in ranks:
            expected = expected_training(export, rank.key.process, rank.key.device)
            result = training_of(rank)
            assert _BASIS[result.basis] == expected.basis
            assert (result.start_ns, result.end_ns) == (expected.start, expected.end)
            assert (result.before_ns, result.after_ns) == (expected.before_ns, expected.after_ns)
            steps = rank.steps
            columns = () if steps is None else (steps.number, steps.start_ns, steps.end_ns)
            rows = as_rows(*columns)
            kept = rows[result.num_left_out :]
            if expected.basis == "periods":
                check_launches(rank, expected.launches)
            assert kept == [(step.number, step.start, step.end) for step in expected.steps]
        assert len(ranks) == len(export.ranks)
        return [training_of(rank) for rank in ranks]


def check_launches(rank: Rank, launches: tuple[int | None, ...]) -> None:
    """Hold when the host launched periods: in its order; unknown where one call launched two."""
    known = sorted(launch for launch in launches if launch is not None)
    if len(known) < len(launches) or len(set(known)) < len(known):
        assert rank.host_steps is None
        return
    assert rank.host_steps is not None
    assert rank.host_steps.start_ns.tolist() == known
    assert rank.host_steps.end_ns.tolist()[:-1] == known[1:]


def test_real_trainings(real_trace: Path) -> None:
    check_all(real_trace)


def kernels(*names: str) -> TraceBuilder:
    """A copy from 0 to 5 ms, then kernels of 5 ms from 10 ms on every 10 ms."""
    trace = TraceBuilder().memcpy(0, 5 * MS)
    for number, name in enumerate(names, start=1):
        start = number * 10 * MS
        trace.kernel(start, start + 5 * MS, name, launch=(start - MS, start))
    return trace


def marked(trace: TraceBuilder, *numbers: int) -> TraceBuilder:
    for place, number in enumerate(numbers):
        start = (place * 10 + 8) * MS
        trace.nvtx(f"step {number}", start, start + 9 * MS)
    return trace


def overhead(trace: TraceBuilder, *starts_ms: int, process: int | None = None) -> TraceBuilder:
    """Have the profiler work for 3 ms at times."""
    trace.raw("StringIds", id=90_000, value="CUPTI")
    for start in starts_ms:
        trace.raw(
            "PROFILER_OVERHEAD",
            start=start * MS,
            end=(start + 3) * MS,
            globalTid=global_tid() if process is None else process,
            nameId=90_000,
            returnValue=0,
        )
    return trace


def by_optimizer(name: str) -> TraceBuilder:
    trace = kernels("cast", "gemm", "adam", "gemm", "adam", "gemm", "adam", "test")
    for start in (28, 48, 68):
        trace.nvtx(name, start * MS, (start + 5) * MS)
        trace.nvtx(name, (start + 1) * MS, (start + 2) * MS, tid=1001)
    return trace


_BODY = [f"kernel_{number}" for number in range(24)]


def one_more(iteration: int, place: int, name: str = "norm", num: int = 1) -> TraceBuilder:
    """Ten iterations of 24 kernels that nobody marked, one of them with a kernel more, or several.

    Kernels take 1 ms, with 1 ms between them and 5 ms before an iteration.
    """
    trace, start = TraceBuilder(), 0
    for number in range(10):
        body = [*_BODY]
        if number == iteration:
            body[place:place] = [name, *(f"{name}_{place}" for place in range(1, num))]
        start += 4 * MS
        for kernel in body:
            trace.kernel(start, start + MS, kernel, launch=(start - MS, start))
            start += 2 * MS
    return trace


MADE = {
    "one kernel more in the last iteration but one": one_more(8, 12),
    "one more at its end": one_more(8, 24),
    "the first one twice": one_more(8, 1, _BODY[0]),
    "one more in the last iteration": one_more(9, 12),
    "one more in the last but two": one_more(7, 12),
    "an evaluation after the fifth": one_more(4, 24, "evaluate", 40),
    "too many others after the fifth": one_more(4, 24, "evaluate", 80),
    "steps": marked(kernels("a", "b", "c"), 3, 4, 5),
    "optimizer": by_optimizer("optimizer step"),
    "torch optimizer": by_optimizer("Optimizer.step#AdamW.step"),
    "both optimizers": by_optimizer("optimizer step").nvtx(
        "Optimizer.step#SGD.step", 28 * MS, 29 * MS
    ),
    "an optimizer cut off": by_optimizer("optimizer step")
    .nvtx("optimizer step", 79 * MS, 100 * MS)
    .machine(end=100 * MS),
    "by name": kernels("fill", "ampere_sgemm_128x64_tn", "fill"),
    "by time": kernels("fill", "stencil", "stencil", "fill2"),
    "equal times": kernels("b", "a"),
    "warm-up": kernels("gemm", "gemm", "gemm").nvtx("Warm-up", 0, 25 * MS),
    "all warm-up": kernels("gemm", "gemm").nvtx("warmup", 0, 25 * MS),
    "steps of warm-up": marked(kernels("a", "b", "c"), 0, 1, 2).nvtx("warm up", 0, 18 * MS),
    "only steps of warm-up": marked(kernels("a", "b"), 0, 1).nvtx("warm up", 0, 99 * MS),
    "distorted": overhead(marked(kernels("a", "b", "c"), 0, 1, 2), 12, 31),
    "all distorted": overhead(marked(kernels("a", "b"), 0, 1), 12, 21),
    "of another process": overhead(marked(kernels("a", "b"), 0, 1), 12, process=99 << 24),
    "warm-up, then distorted": overhead(
        marked(kernels("a", "b", "c"), 0, 1, 2).nvtx("warm up", 0, 18 * MS), 22
    ),
    "no compute": TraceBuilder().memcpy(MS, 2 * MS).memset(5 * MS, 6 * MS),
    "steps that launched nothing": kernels("gemm", "gemm").nvtx("step 7", MS, 2 * MS),
}


KNOWN_MS = {
    "an optimizer cut off": (20, 75),
    "one kernel more in the last iteration but one": (4, 443),
    "steps": (10, 35),
    "optimizer": (20, 75),
    "by name": (20, 35),
    "by time": (20, 45),
    "warm-up": (30, 35),
    "all warm-up": (10, 25),
    "steps of warm-up": (20, 35),
    "distorted": (20, 35),
    "no compute": (1, 6),
}


@pytest.mark.parametrize("name", MADE)
def test_made_trainings(name: str, tmp_path: Path) -> None:
    (training,) = check_all(MADE[name].write(tmp_path))
    found = training.start_ns / MS, training.end_ns / MS
    assert KNOWN_MS.get(name, found) == found


def test_two_devices_of_a_process(tmp_path: Path) -> None:
    """Steps from optimizer to optimizer begin with the first launch on either."""
    trace = by_optimizer("optimizer step")
    trace.kernel(6 * MS, 7 * MS, "gemm", device=1, launch=(5 * MS, 6 * MS))
    trace.kernel(36 * MS, 37 * MS, "gemm", device=1, launch=(35 * MS, 36 * MS))
    trainings = check_all(trace.write(tmp_path))
    assert [training.start_ns for training in trainings] == [10 * MS, 6 * MS]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    with ranks_of(MADE["warm-up, then distorted"].write(tmp_path)) as ranks:
        training = training_of(ranks[0])
    assert (training.num_warm_up, training.num_distorted) == (1, 1)
    assert training.num_left_out == 2


def analyzed(time_range: Range, *paths: Path) -> RunResult:
    return analyze_reports(paths, Options(time_range=time_range), jobs=1)


@pytest.mark.parametrize(
    "time_range", [(0, 900), (0, 1000), (None, 950), (2000, 2900), (2950, None)]
)
def test_a_rank_without_work_in_the_window_has_an_empty_one(
    tmp_path: Path, time_range: Range
) -> None:
    builder = TraceBuilder().machine(end=3000).kernel(1200, 1300, pid=1).kernel(1500, 1600, pid=1)
    result = analyzed(time_range, builder.kernel(1000, 1990, pid=2).write(tmp_path))
    assert [measured.rank for measured in result.breakdown] == [0, 1]
    first = result.breakdown[0].whole
    assert first.compute_ns == 0
    assert first.idle_ns == first.window_ns
    assert result.findings == ()
    assert any(gap.id == "gpu-idle" for gap in result.not_applicable) == (first.window_ns > 0)


def test_what_lies_outside_of_all_captures_is_an_error(tmp_path: Path) -> None:
    early = TraceBuilder().kernel(1000, 1100).write(tmp_path / "early.sqlite")
    late = TraceBuilder().kernel(5000, 5100).write(tmp_path / "late.sqlite")
    assert len(analyzed((4000, 5050), early, late).breakdown) == 2
    with pytest.raises(UsageError, match="the capture lasts from 0 to 1100 ns"):
        analyzed((4000, 5050), early)
    with pytest.raises(UsageError, match="the capture lasts from 0 to 5100 ns"):
        analyzed((5100, None), early, late)


def test_a_capture_in_utc_begins_with_its_session(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    builder = TraceBuilder().machine(start_utc=start).kernel(start + 1000, start + 1100)
    path = builder.write(tmp_path)
    assert len(analyzed((start, start + 10), path).breakdown) == 1
    with pytest.raises(UsageError, match=f"the capture lasts from {start} to {start + 1100} ns"):
        analyzed((0, 1_000_000_000), path)


def test_copies_that_run_ahead_begin_no_step(tmp_path: Path) -> None:
    """Nothing holds the host up, so that it fills its queue: the copy of step 9 ends before step 1.

    The first copy begins its step, and so does the last one: nothing runs when these begin.
    """
    builder = TraceBuilder()
    for step in range(10):
        launched, began = 100 + 100 * step, 1_000 + 1_000 * step
        builder.nvtx(f"step {step}", launched, launched + 90)
        builder.memcpy(launched + 20, launched + 40, stream=9, launch=(launched + 1, launched + 2))
        for place in range(3):
            at = launched + 10 * (place + 1)
            start, end = began + 300 * place, began + 300 * place + 290
            builder.kernel(start, end, stream=7, launch=(at, at + 5))
    builder.nvtx("step 10", 1_100, 1_190)
    builder.memcpy(20_000, 20_500, stream=9, launch=(1_101, 1_102))
    path = builder.write(tmp_path)
    (rank,) = reference(path)
    (steps,) = [one.steps for one in analyze_reports([path]).breakdown]
    windows = [(one.number, one.measures.window_start_ns, one.measures.window_ns) for one in steps]
    assert windows[0] == (0, 120, 1_880)
    assert windows[1:9] == [(step, 1_000 + 1_000 * step, 1_000) for step in range(1, 9)]
    assert windows[9:] == [(9, 10_000, 10_000), (10, 20_000, 500)]
    assert windows == [
        (one.number, one.measures.window_start_ns, one.measures.window_ns) for one in rank.steps
    ]
