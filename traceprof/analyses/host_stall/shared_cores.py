"""Signs of too little CPU time in the stalls of a run: few cores, a quota, slices of the scheduler.

*Few cores*: the stalls of the ranks of a machine coincide, and while any of them is stalled the
number of ranks that go on is nearly constant, far more so than by chance. *Quota*: stalls end on a
grid of 100 ms, the period after which Linux lets a container that has used up its quota go on.
*Slices*: stalls last multiples of a tick, for which another process had the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Intervals

MIN_RANKS = 3
MIN_STALLS = 8
MIN_STALLED = 0.5
"""Of the ranks of a machine: so many are stalled at once, at the median, where cores are few."""
MIN_CONSTANT = 0.8
"""Of the time in which a rank is stalled the number that goes on is the usual one, or one off."""
MAX_VARIATION = 0.5
"""Of the variance of the number that goes on if ranks stalled independently of each other."""
QUOTA_PERIOD_NS = 100_000_000
TICKS_NS = (10_000_000, 4_000_000, 1_000_000)
"""The scheduler's ticks of Linux with HZ = 100, 250, 1000."""
_MIN_LENGTH = 0.8
_MIN_EVIDENCE = 12.0  # n R²: by chance once in 160 000 (Rayleigh)
_MIN_PERIODS = 5


class SharedCores(Record, frozen=True):
    """The ranks of a machine that share cores.

    Attributes:
        num_ranks: on the machine.
        num_running: how many of them go on while one is stalled, at the median over time.
        constant_fraction: the share of that time in which it is that number, or one off.
        variation: the variance of that number, as a share of that of ranks that stall as much, but
            independently of each other.
    """

    num_ranks: int
    num_running: int
    constant_fraction: float
    variation: float

    @property
    def are_few(self) -> bool:
        """Whether the ranks share fewer cores than they need."""
        num_stalled = self.num_ranks - self.num_running
        return (
            self.num_running > 0
            and num_stalled >= MIN_STALLED * self.num_ranks
            and self.constant_fraction >= MIN_CONSTANT
            and self.variation <= MAX_VARIATION
        )


def shared_cores(stalled: Sequence[Intervals], start_ns: int, end_ns: int) -> SharedCores | None:
    """Return how many ranks of a machine go on while one is stalled.

    Args:
        stalled: of each rank, on one clock.
        start_ns: since when all ranks are judged.
        end_ns: until when.

    Returns:
        None for too few ranks, or without any stall.
    """
    if len(stalled) < MIN_RANKS:
        return None
    inside = [intervals.clip(of_rank, start_ns, end_ns) for of_rank in stalled]
    begin = np.concatenate([of_rank.start_ns for of_rank in inside])
    end = np.concatenate([of_rank.end_ns for of_rank in inside])
    time = np.concatenate((end, begin))  # of equal times, ends come first
    order = np.argsort(time, kind="stable")
    change = np.repeat([-1, 1], len(begin))[order]
    num_stalled, length = np.cumsum(change)[:-1], np.diff(time[order])
    ns = np.zeros(len(stalled) + 1, np.int64)
    np.add.at(ns, num_stalled, length)
    ns[0] = 0
    whole = int(ns.sum())
    if not whole:
        return None
    middle = int(np.searchsorted(np.cumsum(ns), whole / 2))
    near = int(ns[max(middle - 1, 1) : middle + 2].sum())
    return SharedCores(
        len(stalled),
        len(stalled) - middle,
        near / whole,
        _variance(ns) / max(_independent(inside, whole), 1e-9),
    )


def _variance(ns: Int64) -> float:
    """Return the variance of the number of stalled ranks, by how long there were so many."""
    number = np.arange(len(ns))
    mean = float((number * ns).sum() / ns.sum())
    return float(((number - mean) ** 2 * ns).sum() / ns.sum())


def _independent(stalled: Sequence[Intervals], whole_ns: int) -> float:
    """Return that variance if each rank stalled as much, independently of the others."""
    fractions = [of_rank.measure_ns / whole_ns for of_rank in stalled]
    return sum(fraction * (1 - fraction) for fraction in fractions)


def has_quota(end_ns: Int64) -> bool:
    """Return whether stalls end on a grid of `QUOTA_PERIOD_NS`.

    Args:
        end_ns: int64[n], when the stalls of a process ended.
    """
    num_periods = len(distinct_values((end_ns - end_ns.min(initial=0)) // QUOTA_PERIOD_NS))
    mean = _mean_direction(end_ns, QUOTA_PERIOD_NS)
    return num_periods >= _MIN_PERIODS and _is_concentrated(mean, len(end_ns))


def tick_of(length_ns: Int64) -> int | None:
    """Return the tick whose multiples the stalls last; None if there is none.

    Args:
        length_ns: int64[n], of the stalls.
    """
    for tick_ns in TICKS_NS:
        multiples = distinct_values(np.rint(length_ns / tick_ns))
        if len(multiples) > 1 and multiples[0] >= 1 and _is_multiple(length_ns, tick_ns):
            return tick_ns
    return None


def _is_multiple(length_ns: Int64, period_ns: int) -> bool:
    """Return whether most lengths are multiples: concentrated, and around 0."""
    mean = _mean_direction(length_ns, period_ns)
    return _is_concentrated(mean, len(length_ns)) and abs(float(np.angle(mean))) < np.pi / 4


def _mean_direction(values: Int64, period_ns: int) -> complex:
    phase = values % period_ns * (2 * np.pi / period_ns)
    return complex(np.exp(1j * phase).mean()) if len(values) else 0j


def _is_concentrated(mean: complex, num: int) -> bool:
    strength = abs(mean)
    return num >= MIN_STALLS and strength >= _MIN_LENGTH and num * strength**2 >= _MIN_EVIDENCE
