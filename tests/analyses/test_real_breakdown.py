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
def test_known_answers_on_two_h100(traces: Path) -> None:
    first, _ = analyzed(traces / "h100x2_torchrun_nccl_on_compute_stream.sqlite")
    whole = first[2]
    assert whole["window_ns"] == 299_848_812
    assert whole["compute_ns"] == 253_690_832
    assert whole["exposed_communication_ns"] == 17_172_652
    assert whole["overlapped_communication_ns"] == 0
    assert whole["exposed_copy_ns"] == 2_954_303
    assert whole["idle_ns"] == 26_031_025


@pytest.mark.long
def test_known_answers_on_four_a100(traces: Path) -> None:
    ((_, _, whole, steps),) = analyzed(traces / "a100x4_ddp_baseline_rank0.sqlite")
    assert whole["window_ns"] == 1_828_647_601
    assert whole["compute_ns"] == 1_661_359_183
    assert whole["communication_ns"] == 292_789_300
    assert whole["overlapped_communication_ns"] == 270_990_237
    assert whole["copy_ns"] == 483_674_208
    assert whole["exposed_copy_ns"] == 85_711_833
    assert whole["idle_ns"] == 59_777_522
    assert [number for number, _ in steps] == list(range(59))


@pytest.mark.long
def test_a_pattern_of_the_users_finds_other_steps(traces: Path) -> None:
    path = traces / "a100x4_ddp_baseline_rank0.sqlite"
    ((_, _, _, steps),) = assert_agreement(path, step_pattern="^forward$")
    assert [number for number, _ in steps] == list(range(59))
