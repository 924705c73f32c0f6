"""Many devices in one process: what is measured once for the process is not measured for each."""

import cProfile
import pstats
from pathlib import Path

import pytest

from tests.support.builders import ALL_REDUCE, TraceBuilder
from traceprof.analysis import analyze_reports


def num_function_calls(path: Path, num_devices: int) -> int:
    builder = TraceBuilder()
    for number in range(4 * num_devices):
        start = 1000 * (number + 1)
        name = ALL_REDUCE if number // num_devices % 2 else "gemm"
        builder.kernel(start, start + 900, name, device=number % num_devices)
    builder.write(path)
    with cProfile.Profile() as profile:
        assert len(analyze_reports([path], jobs=1).breakdown) == num_devices
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.slow
def test_the_work_grows_with_the_devices_and_no_faster(tmp_path: Path) -> None:
    num_device_counts = 12, 24, 48
    first, second, third = (
        num_function_calls(tmp_path / f"{number}.sqlite", number) for number in num_device_counts
    )
    # What comes once, such as opening the report, is in both differences or in none.
    assert (third - second) < 2.5 * (second - first)
