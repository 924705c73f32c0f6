"""Periods of a program, which are its steps if no range marks any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.steps.lags import best_lag, longest_run
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, medians_of_known

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.steps.lags import Names


MIN_RETURNS = 4
"""Fewer returns of a kernel are no period."""
MIN_COVERED = 0.8
"""Of the operations' time: periods that cover less are not what the program does."""
_MIN_RETURNS_OF_A_PHASE = 10  # where there are several, one after the other
_MAX_PHASES = 4
_MIN_PHASE = 0.02  # of the time: what is shorter between phases is not searched
_MIN_REGULAR = 0.9  # of the distances between returns are one period
_TOLERANCE = 0.05  # of a period: returns that far apart are one
_MAX_COMMON = 0.05  # of the returns of a phase's kernel may lie in other phases
_LOOKED_AT = (0.5, 0.25, 0.75)  # of the operations: where periods are looked at
_SAMPLED = 64  # periods by which the longest gap is found
_TRIED = 32  # kernels that may begin the period


class Items(Record, frozen=True):
    """The n operations by which periods are found, in order of start.

    Attributes:
        signature: unsigned integers[n], equal for equal ones, from 0; narrow ones are faster.
        start_ns: int64[n].
        end_ns: int64[n].
    """

    signature: Names
    start_ns: Int64
    end_ns: Int64

    def chosen(self, chosen: Mask | slice) -> Items:
        """Return some of them."""
        return Items(self.signature[chosen], self.start_ns[chosen], self.end_ns[chosen])


class Phase(Record, frozen=True):
    """A part of a program that runs the same operations again and again.

    Attributes:
        lag: the number of operations of a period.
        first: the first operation that returns: at most a period before the first one begins.
        begins: int64[m], ascending, the operations at which a period begins.
        stop: one past the last operation of the last period.
        match: share of the operations that return after one period.
    """

    lag: int
    first: int
    begins: Int64
    stop: int
    match: float


class Periods(Record, frozen=True):
    """The periods of a program.

    Attributes:
        items: the operations by which they were found.
        phases: in order of time; several where the program does one thing after the other.
    """

    items: Items
    phases: tuple[Phase, ...]

    @property
    def match(self) -> float:
        """Share of the operations that return after one period."""
        num = [len(phase.begins) * phase.lag for phase in self.phases]
        return float(np.average([phase.match for phase in self.phases], weights=num))


def find_periods(items: Items) -> Periods | None:
    """Return the periods that cover the operations; None if nothing returns regularly.

    Args:
        items: all operations of the time that is searched, or those of a stream.
    """
    num = len(items.signature)
    if num < MIN_RETURNS:
        return None
    phases = _disjoint(items, _phases(items, 0, num, _MAX_PHASES))
    covered = sum(_time(items, phase.first, phase.stop) for phase in phases)
    if not phases or covered < MIN_COVERED * _time(items, 0, num):
        return None
    return Periods(items, tuple(phases))


def _time(items: Items, first: int, stop: int) -> int:
    """Return the time of some operations; time without any is not part of a period."""
    return int((items.end_ns[first:stop] - items.start_ns[first:stop]).sum())


def _phases(items: Items, first: int, stop: int, most: int) -> list[Phase]:
    """Return the phases among operations, at most so many; none where they cover too little."""
    if most == 0 or stop - first < MIN_RETURNS:
        return []
    if _time(items, first, stop) < _MIN_PHASE * _time(items, 0, len(items.signature)):
        return []
    phase = _phase(items, first, stop)
    if phase is None:
        return []
    before = _phases(items, first, phase.first, most - 1)
    after = _phases(items, phase.stop, stop, most - 1 - len(before))
    return [*before, phase, *after]


def _disjoint(items: Items, phases: list[Phase]) -> list[Phase]:
    """Return the longest phase, and the others that begin with a kernel which no other one has."""
    by_time = sorted(phases, key=lambda phase: -_time(items, phase.first, phase.stop))
    kept = by_time[:1]
    for phase in by_time[1:]:
        is_long = len(phase.begins) >= _MIN_RETURNS_OF_A_PHASE
        if is_long and all(_come_apart(items, phase, other) for other in kept):
            kept.append(phase)
    return sorted(kept, key=lambda phase: phase.first)


def _come_apart(items: Items, one: Phase, other: Phase) -> bool:
    """Return whether hardly a kernel that begins periods of one phase runs in the other one."""
    for phase, beside in ((one, other), (other, one)):
        inside = items.signature[beside.first : beside.stop]
        num = int((inside == items.signature[phase.begins[0]]).sum())
        if num > _MAX_COMMON * len(phase.begins):
            return False
    return True


def _phase(items: Items, first: int, stop: int) -> Phase | None:
    """Return the phase that covers most of some operations, None if nothing returns."""
    signature = items.signature[first:stop]
    lag = best_lag(signature)
    begins = None if lag is None else _begins(items.chosen(slice(first, stop)), lag)
    if lag is None or begins is None:
        # A lag of several phases together is none of theirs.
        run = longest_run(signature)
        if run is None:
            return None
        first, stop = first + run.first, first + run.stop
        signature = items.signature[first:stop]
        lag = best_lag(signature) or run.lag
        begins = _begins(items.chosen(slice(first, stop)), lag)
    if begins is None:
        return None
    same = signature[lag:] == signature[:-lag]
    begin, last = int(begins[0]), _end_of_last(signature, begins, lag)
    match = float(same[begin : int(begins[-1])].mean())
    earlier = max(begin - lag, 0)
    if earlier < begin and same[earlier:begin].mean() >= _MIN_REGULAR:
        begin = earlier
    return Phase(lag, first + begin, first + begins, first + last, match)


def _end_of_last(names: Names, begins: Int64, lag: int) -> int:
    """Return where the last period ends: at the latest where only something else runs.

    It is compared with the latest whole period: one with an insertion has its operations elsewhere.
    """
    begin = int(begins[-1])
    is_whole = np.diff(begins) == lag
    whole = int(begins[np.flatnonzero(is_whole)[-1] if is_whole.any() else -2])
    usual, last = names[whole : whole + lag], names[begin : begin + lag]
    is_other = last != usual[: len(last)]  # never the first, at which both begin
    if is_other.mean() > 1 - _MIN_REGULAR:
        return begin + int(is_other.argmax())
    return begin + int(np.flatnonzero(is_in(last, usual))[-1]) + 1


def _begins(part: Items, lag: int) -> Int64 | None:
    """Return where periods begin: at the operation with the longest gap before it.

    Only one that returns once in each period begins one, else one that does so together with
    those before it.

    Args:
        part: the operations.
        lag: how many of them are a period.

    Returns:
        int64[m], ascending; None if no operation returns regularly.
    """
    names = part.signature
    gap = np.zeros(len(names), np.int64)
    gap[1:] = np.maximum(part.start_ns[1:] - np.maximum.accumulate(part.end_ns)[:-1], 0)
    length = 1
    while True:
        # Where a phase runs its operations several times in a period, none returns once.
        candidates = [_regular(names, gap, lag, share) for share in _LOOKED_AT]
        known = [begins for begins in candidates if begins is not None]
        if known:
            return max(known, key=len)
        if length >= lag:
            return None
        # The names of twice as many operations, those up to this one, as one name.
        before = np.concatenate((np.full(length, names[0]), names[:-length])).astype(np.int64)
        pairs = before * (int(names.max()) + 1) + names
        names = np.unique(pairs, return_inverse=True)[1].astype(np.uint32)
        length *= 2


def _regular(names: Names, gap: Int64, lag: int, share: float) -> Int64 | None:
    """Return where the name with the longest gap returns, of those that return every period.

    Args:
        names: of the operations.
        gap: before each.
        lag: how many of them are a period.
        share: where the period is whose names are tried, 0 to 1.
    """
    samples = _good_periods(names, lag, share)
    if not len(samples):
        return None
    rows = samples[:, np.newaxis] + np.arange(lag)
    pattern = names[rows[int(share * (len(rows) - 1))]]
    is_same = names[rows] == pattern
    is_alike = is_same.mean(axis=1) >= _MIN_REGULAR
    gaps = medians_of_known(np.where(is_same, gap[rows], np.nan)[is_alike].T)
    _, place, count = np.unique(pattern, return_inverse=True, return_counts=True)
    once = np.flatnonzero(count[place] == 1)
    best: Int64 | None = None
    for column in once[np.argsort(-gaps[once], kind="stable")][:_TRIED].tolist():
        returns = _returns(names, int(pattern[column]), lag)
        if best is None or len(returns) > (1 + _TOLERANCE) * len(best):
            best = returns
    return best if best is not None and len(best) >= MIN_RETURNS else None


def _good_periods(names: Names, lag: int, share: float) -> Int64:
    """Return where to look at periods, int64[m]: places from which one returns almost whole."""
    num = len(names)
    some = min((_SAMPLED + 2) * lag, num)
    first = int(share * (num - some))
    names = names[first : first + some]
    before = np.concatenate(([0], np.cumsum(names[lag:] == names[:-lag])))
    num_same = before[lag:] - before[:-lag]
    good = np.flatnonzero(num_same >= max(num_same.max(), _MIN_REGULAR * lag))
    if not len(good):
        return good
    # In step with each other: every period from one of them, as far as it returns.
    middle = int(share * (len(good) - 1))
    in_step = first + good[(good - good[middle]) % lag == 0]
    chosen = np.linspace(0, len(in_step) - 1, min(len(in_step), _SAMPLED)).astype(np.int64)
    places: Int64 = in_step[chosen]
    return places


def _returns(names: Names, name: int, lag: int) -> Int64:
    """Return where a name returns once in each period; empty if it does so irregularly."""
    returns = np.flatnonzero(names == name)
    is_one = np.abs(np.diff(returns) - lag) <= _TOLERANCE * lag
    regular = np.flatnonzero(is_one)
    if not len(regular):
        return returns[:0]
    chosen = slice(int(regular[0]), int(regular[-1]) + 2)
    if len(regular) < _MIN_REGULAR * (regular[-1] + 1 - regular[0]):
        return returns[:0]
    return returns[chosen]
