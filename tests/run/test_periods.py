"""Lags of sequences: planted periods, and the reference that tries every lag."""

from pathlib import Path

import numpy as np
import pytest

from tests.reference.period_steps import period
from tests.support.builders import TraceBuilder
from tests.support.planted import INSERTED, WITHOUT_INSERTIONS, drawn, named, noisy
from tests.support.selection import known, long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.intervals import Int64
from traceprof.run.periods import Items, Periods, best_lag, find_periods


@pytest.mark.parametrize("name", WITHOUT_INSERTIONS)
def test_planted_periods(name: str) -> None:
    sequence, expected = WITHOUT_INSERTIONS[name]
    assert best_lag(named(sequence)) == expected
    if len(sequence) <= 9000:
        assert period(np.array(sequence)) == expected


@pytest.mark.parametrize("name", INSERTED)
def test_what_some_periods_lack(name: str) -> None:
    sequence, expected = INSERTED[name]
    assert best_lag(named(sequence)) == expected


@pytest.mark.parametrize("num", [0, 1, 2, 3])
def test_hardly_any(num: int) -> None:
    assert best_lag(named([1] * num)) is None


def test_real_sequences(real_trace: Path) -> None:
    """As by trying every lag, wherever that finds one; insertions it does not know."""
    with ranks_of(real_trace) as ranks:
        for rank in ranks:
            kernels = rank.operations.kernels
            signature: Int64 = kernels.signature[~rank.is_communication_kernel][:8000]
            expected = period(signature)
            if expected is not None:
                assert best_lag(named(signature.tolist())) == expected


_LENGTH = 10


def items(sequence: list[int], gap_before: int | None = None) -> Items:
    """Return operations of 10 ns with gaps of 2 ns, before one name of 50 ns."""
    gaps = np.where(np.array(sequence) == gap_before, 50, 2).astype(np.int64)
    start = np.cumsum(gaps + _LENGTH) - _LENGTH
    return Items(named(sequence), start, start + _LENGTH)


def begins(found: Periods | None) -> list[tuple[int, list[int]]]:
    """Return lag and distances of the periods of each phase."""
    phases = () if found is None else found.phases
    return [(phase.lag, sorted({*np.diff(phase.begins).tolist()})) for phase in phases]


PLANTED = {
    name: case
    for name, case in {**WITHOUT_INSERTIONS, **INSERTED}.items()
    if name not in {"equal ones in turns", "cut at both ends"}
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_period_covers_all(name: str) -> None:
    sequence, lag = PLANTED[name]
    found = find_periods(items(sequence))
    if lag is None:
        assert found is None
        return
    (phase,) = known(found).phases
    assert phase.lag == lag
    assert len(phase.begins) == pytest.approx(len(sequence) / lag, rel=0.1)
    assert phase.first <= lag
    # What ends the sequence and is no part of a period belongs to none.
    begin = int(phase.begins[-1])
    inside = np.flatnonzero(np.isin(sequence, sequence[begin - lag : begin]))
    assert inside[-1] - 1 <= phase.stop <= inside[-1] + 1


def test_it_begins_after_the_longest_gap_of_a_name_that_returns_once() -> None:
    body = [1, 2, 1, 3, 4, 1]
    for name in (2, 3, 4):
        found = known(find_periods(items(body * 20, gap_before=name)))
        assert found.phases[0].begins.tolist() == [
            6 * number + body.index(name) for number in range(20)
        ]


def test_names_that_all_return_twice_are_told_apart_by_those_before() -> None:
    body = [1, 2, 3, 3, 2, 1]
    assert begins(find_periods(items([*body * 20]))) == [(6, [6])]


def test_operations_that_take_no_time_have_none(tmp_path: Path) -> None:
    nothing = np.zeros(5, np.int64)
    assert find_periods(Items(named([1, 1, 2, 1, 1]), nothing, nothing)) is None
    trace = TraceBuilder()
    for start in (0, 0, 1, 10, 60):
        trace.kernel(start, start)
    closed_analysis(trace.write(tmp_path))


def test_an_insertion_makes_one_period_longer() -> None:
    found = find_periods(items((drawn(40, 12) * 10 + [99, 98]) * 12))
    assert begins(found) == [(40, [40, 42])]


@pytest.mark.parametrize("num", long_after(1, [1, 2]))
def test_operations_more_or_less_in_any_iteration(num: int) -> None:
    """Whatever the last period looks like, it has operations, and none of the next phase."""
    body = [*range(10, 50)]
    for iteration in (0, 15, 26, 27, 28, 29):
        for place in (0, 1, 20, 39):
            at = 40 * iteration + place
            whole = body * 30
            for changed in (
                [*whole[:at], *[99] * num, *whole[at:]],
                [*whole[:at], *whole[at : at + num] * 2, *whole[at + num :]],
                [*whole[:at], *whole[at + num :]],
            ):
                (phase,) = known(find_periods(items(changed))).phases
                assert phase.lag == 40
                assert phase.begins[-1] < phase.stop <= len(changed)
                if iteration < 29:
                    assert phase.stop >= len(changed) - num


def test_what_comes_between_is_one_long_period() -> None:
    found = find_periods(items([*[1] * 100, *[2] * 30, *[1] * 100, *[2] * 30]))
    assert begins(found) == [(1, [1, 31])]


@pytest.mark.parametrize(
    ("before", "other", "after", "distances"),
    [
        ([*range(50)] * 9, [*range(60, 120)], [*range(50)] * 11, [50, 110]),  # an evaluation
        ([*range(50)] * 9, [7] * 60, [*range(50)] * 11, [50, 110]),  # more in one step
        ([*range(50)] * 9 + [*range(30)], [7] * 60, [*range(30, 50)] + [*range(50)] * 9, [50, 110]),
        ([*range(50)] * 9, [*range(60, 160)] * 4, [*range(50)] * 9, None),  # too much else
    ],
)
def test_what_interrupts_periods_once(
    before: list[int], other: list[int], after: list[int], distances: list[int] | None
) -> None:
    """Neither part alone is most of the program; the same periods on both sides are one phase."""
    found = begins(find_periods(items([*before, *other, *after], gap_before=0)))
    assert found == ([] if distances is None else [(50, distances)])


def test_phases_one_after_the_other() -> None:
    first, second = drawn(20, 9) * 100, drawn(33, 9, 1, first=100) * 80
    found = find_periods(items([200, 201, *first, 202, *second]))
    assert begins(found) == [(20, [20]), (33, [33])]
    assert [len(phase.begins) for phase in known(found).phases] == [100, 80]
    # Of one length, and of other kernels.
    assert begins(find_periods(items([1] * 1000 + [2] * 1000))) == [(1, [1]), (1, [1])]


@pytest.mark.parametrize(
    "sequence",
    [
        pytest.param(drawn(20, 9) * 100 + drawn(33, 9, 1) * 80, id="of the same kernels"),
        pytest.param(drawn(20, 9) * 100 + drawn(3000, 50, 1, 9), id="half of the time"),
        pytest.param([1] * 1000 + [2] * 8 + drawn(500, 50, 1, 9), id="too short"),
        pytest.param(noisy([0] * 3000, 0.1), id="a name that is common"),
    ],
)
def test_no_period(sequence: list[int]) -> None:
    assert find_periods(items(sequence)) is None


def test_a_period_drifts() -> None:
    """Each takes longer than the one before, and some operation is missing now and then."""
    source = np.random.default_rng(3)
    sequence = [name for _ in range(80) for name in drawn(60, 40) if source.random() > 0.002]
    start = np.cumsum(np.arange(len(sequence)) + 20) - 15
    (phase,) = known(find_periods(Items(named(sequence), start, start + 5))).phases
    assert phase.lag == 60
    assert 78 <= len(phase.begins) <= 80
