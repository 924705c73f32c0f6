"""Where the time went in real exports: exactly what the reference says."""

from pathlib import Path

import pytest

from tests.reference.breakdown import read
from tests.support.changes import on_one_clock
from tests.support.claims import analyzed, assert_agreement, assert_agrees, measured_in
from tests.support.traces import ranks_of


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
