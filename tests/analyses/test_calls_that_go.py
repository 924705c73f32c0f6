"""Limits of findings whose end takes calls of the host away, too, beside what really comes."""

from pathlib import Path

import pytest

from tests.reference.gpu_machine import US
from tests.reference.gpu_programs import Program, ranks, short_kernels, small_copies, small_messages
from tests.support.selection import long_after, rows_long_after
from traceprof.analysis import analyze_reports

_LOOSE = 1.2  # times the gain: a limit may be as large


def held(before: Program, after: Program, finding: str, path: Path) -> float:
    """Return how many times what really comes the limit of a finding is."""
    one, other = before.run(0), after.run(0)
    result = analyze_reports([one.write(path)])
    (limit_ns,) = {
        found.saving.high_ns
        for found in result.findings
        if found.id == finding and found.saving is not None
    }
    assert limit_ns is not None
    return limit_ns / (one.step_ns(3, 12) - other.step_ns(3, 12))


@pytest.mark.parametrize("pace_ns", long_after(1, [30 * US, 8 * US]))
def test_no_fewer_messages_gain_more_than_the_limit(pace_ns: float, tmp_path: Path) -> None:
    """With launches of 30 us the host is the slower one: twice as much goes as their latency."""
    many, one = (Program(ranks(small_messages(num), 2, pace_ns=pace_ns), "") for num in (60, 1))
    assert 1 <= held(many, one, "small-collectives", tmp_path / "run.sqlite") < _LOOSE


@pytest.mark.parametrize("pace_ns", long_after(1, [20 * US, 8 * US]))
def test_no_fused_kernels_gain_more_than_the_limit(pace_ns: float, tmp_path: Path) -> None:
    """Behind a wait the GPU idles for launches: fewer of them are over sooner."""
    several, fused = (
        Program(ranks(short_kernels(is_fused=is_fused), pace_ns=pace_ns), "")
        for is_fused in (False, True)
    )
    assert 1 <= held(several, fused, "unfused-kernels", tmp_path / "run.sqlite") < _LOOSE


@pytest.mark.parametrize("beside", long_after(1, [False, True]))
@pytest.mark.parametrize(
    ("kind", "pageable"),
    rows_long_after(
        3, [("HtoD", False), ("DtoH", True), ("DtoD", False), ("HtoD", True), ("DtoH", False)]
    ),
)
def test_no_larger_copies_gain_more_than_the_limit(
    kind: str, pageable: bool, beside: bool, tmp_path: Path
) -> None:
    """Sixty copies become one: with them go their calls and the code around them."""
    many, one = (
        Program(
            ranks(small_copies(kind, num, pageable=pageable, beside=beside), pace_ns=30 * US), ""
        )
        for num in (60, 1)
    )
    assert 1 <= held(many, one, "exposed-copy", tmp_path / "run.sqlite") < _LOOSE


@pytest.mark.parametrize("pageable", [False, True])
def test_the_turn_around_of_small_copies_counts(pageable: bool, tmp_path: Path) -> None:
    """With launches of 8 us the GPU is the slower one, unless the calls wait."""
    many, one = (
        Program(ranks(small_copies("HtoD", num, pageable=pageable)), "") for num in (60, 1)
    )
    assert 1 <= held(many, one, "exposed-copy", tmp_path / "run.sqlite") < _LOOSE
