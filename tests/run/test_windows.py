"""Windows that the user chooses: also where ranks did nothing in them."""

from pathlib import Path

import pytest

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
    result = analyzed(time_range, builder.kernel(1000, 1990, pid=2).write(tmp_path / "t.sqlite"))
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
    path = builder.write(tmp_path / "t.sqlite")
    assert len(analyzed((start, start + 10), path).breakdown) == 1
    with pytest.raises(UsageError, match=f"the capture lasts from {start} to {start + 1100} ns"):
        analyzed((0, 1_000_000_000), path)
