"""Limits of findings whose end takes calls of the host away, too, beside what really comes."""

from pathlib import Path

import pytest

from tests.reference.gpu_machine import US
from tests.reference.gpu_programs import Program, ranks, short_kernels, small_copies, small_messages
from tests.support.builders import TraceBuilder
from tests.support.opened import ranks_of
from traceprof.analysis import analyze_reports
from traceprof.host.synchronization import between_launches

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


@pytest.mark.parametrize("pace_ns", [8 * US, 30 * US])
def test_no_fewer_messages_gain_more_than_the_limit(pace_ns: float, tmp_path: Path) -> None:
    """With launches of 30 us the host is the slower one: twice as much goes as their latency."""
    many, one = (Program(ranks(small_messages(num), 2, pace_ns=pace_ns), "") for num in (60, 1))
    assert 1 <= held(many, one, "small-collectives", tmp_path / "run.sqlite") < _LOOSE


@pytest.mark.parametrize("pace_ns", [8 * US, 20 * US])
def test_no_fused_kernels_gain_more_than_the_limit(pace_ns: float, tmp_path: Path) -> None:
    """Behind a wait the GPU idles for launches: fewer of them are over sooner."""
    several, fused = (
        Program(ranks(short_kernels(is_fused=is_fused), pace_ns=pace_ns), "")
        for is_fused in (False, True)
    )
    assert 1 <= held(several, fused, "unfused-kernels", tmp_path / "run.sqlite") < _LOOSE


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("kind", "pageable"),
    [("HtoD", False), ("HtoD", True), ("DtoH", False), ("DtoH", True), ("DtoD", False)],
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


def test_time_between_launches_of_others_goes_with_a_call(tmp_path: Path) -> None:
    """An event recorded before it does; before the first call nothing is known to.

    call    1..3 (goes)  5..6  event 7..8  9..11 (goes)  14..15
    """
    trace = TraceBuilder()
    for begin, end in ((1, 3), (5, 6), (9, 11), (14, 15)):
        trace.kernel(100 * US + begin, 101 * US + begin, launch=(begin * US, end * US))
    trace.api("cudaEventRecord_v3020", 7 * US, 8 * US)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert rank.calls is not None
        chosen = (rank.calls.start_ns == 1 * US) | (rank.calls.start_ns == 9 * US)
        time = between_launches(rank, rank.calls, chosen)
        assert (time.start_ns // US).tolist() == [1, 6]
        assert (time.end_ns // US).tolist() == [3, 11]
