"""Windows that the user chooses: also where ranks did nothing in them."""

from pathlib import Path

import pytest

from tests.reference.breakdown import reference
from tests.support.builders import TraceBuilder
from traceprof.analysis import Options, RunResult, analyze_reports
from traceprof.errors import UsageError
from traceprof.run.windows import Range


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
