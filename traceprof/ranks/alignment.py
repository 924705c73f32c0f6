"""Alignment of the operations of two ranks whose captures begin or stop at different ones.

Both ranks run the same operations in the same order, so only one whole number is needed: the shift
between their lists. With the right shift kinds and sizes agree, and the ends of the operations
differ by the difference of the clocks only, however large that is. With a wrong one, the difference
of the ends varies with how early or late a rank came to each operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.grouping import median_of, medians_of_known

if TYPE_CHECKING:
    from traceprof.intervals import Float64, Int64


# UTC by NTP is off by one to tens of ms (Nsight's user guide, Time Synchronization); without NTP by
# more. Operations further apart than this are not the same one.
FARTHEST_NS = 2_000_000_000
# On one machine, members of an operation leave it up to some ms apart.
ONE_CLOCK_NS = 100_000_000
# An alignment this far off the clocks is half as likely as one that agrees with them.
_USUAL_NS = 50_000_000
_SAMPLES = 512  # operations looked at for each shift
_ALIKE = 0.99  # of the operations must agree in kind and size
_RIVAL = 1.5  # ratio of misfits below which a second shift is as good
_FEW_SAMPLES = 32  # where there are more shifts than
_MAX_SHIFTS = 48
_SHORT = 4  # with fewer operations their ends show no pattern
_RESOLUTION_NS = 1_000.0


class OperationList(Record, frozen=True):
    """Operations of one rank on one communicator, in order.

    Attributes:
        signature: int64[n], equal for operations that may be the same: kind and size.
        end_ns: int64[n], corrected as far as the clocks are known.
    """

    signature: Int64
    end_ns: Int64


def shift_between(first: OperationList, second: OperationList, *, one_clock: bool) -> int | None:
    """Return by how many places `second` begins after `first`.

    Args:
        first: the operations of one rank.
        second: those of another one.
        one_clock: whether both ranks are on one machine, so that ends agree without correction.

    Returns:
        The shift s for which `second[i]` is `first[i + s]`, None if none fits or several do.
    """
    shifts = _promising(
        first, second, _candidates(first, second, one_clock=one_clock), one_clock=one_clock
    )
    costs = np.array(
        [_cost(first, second, shift, one_clock=one_clock) for shift in shifts.tolist()]
    )
    if not np.isfinite(costs).any():
        return None
    best = int(np.argmin(costs))
    rivals = np.delete(costs, best)
    if len(rivals) and rivals.min() < _RIVAL * costs[best]:
        return None
    return int(shifts[best])


def _candidates(first: OperationList, second: OperationList, *, one_clock: bool) -> Int64:
    """Return the shifts that bring the middle of the shorter list near an operation in time."""
    if len(first.end_ns) == 0 or len(second.end_ns) == 0:
        return np.empty(0, np.int64)
    middle = len(second.end_ns) // 2
    at = second.end_ns[middle]
    farthest = ONE_CLOCK_NS if one_clock else FARTHEST_NS
    low, high = np.searchsorted(first.end_ns, [at - farthest, at + farthest])
    return np.arange(low, high, dtype=np.int64) - middle


def _promising(
    first: OperationList, second: OperationList, shifts: Int64, *, one_clock: bool
) -> Int64:
    """Return the shifts that fit a few operations best, if there are too many to try them all."""
    if len(shifts) <= _MAX_SHIFTS:
        return shifts
    num = len(second.end_ns)
    chosen = _spread_out(0, num, _FEW_SAMPLES)
    at = chosen[np.newaxis, :] + shifts[:, np.newaxis]
    is_alike = (at >= 0) & (at < len(first.end_ns))
    at = np.clip(at, 0, len(first.end_ns) - 1)
    is_alike &= first.signature[at] == second.signature[chosen]
    apart = np.where(is_alike, first.end_ns[at] - second.end_ns[chosen], np.nan)
    enough = is_alike.sum(axis=1) * 2 >= len(chosen)
    shifts, apart = shifts[enough], apart[enough]
    middle = medians_of_known(apart)
    residuals = medians_of_known(np.abs(apart - middle[:, np.newaxis]))
    cost = np.abs(middle) if one_clock else residuals * (1 + np.abs(middle) / _USUAL_NS)
    return np.sort(shifts[np.argsort(cost, kind="stable")[:_MAX_SHIFTS]])


def _cost(first: OperationList, second: OperationList, shift: int, *, one_clock: bool) -> float:
    low, high = max(0, -shift), min(len(second.end_ns), len(first.end_ns) - shift)
    if high - low < max(1, min(len(first.end_ns), len(second.end_ns)) // 2):
        return np.inf
    chosen = _spread_out(low, high, _SAMPLES)
    alike = first.signature[chosen + shift] == second.signature[chosen]
    if alike.mean() < _ALIKE:
        return np.inf
    apart = (first.end_ns[chosen + shift] - second.end_ns[chosen]).astype(np.float64)
    middle = float(median_of(apart))
    if one_clock or len(chosen) < _SHORT:
        return abs(middle) + _RESOLUTION_NS
    return (spread(apart) + _RESOLUTION_NS) * (1 + abs(middle) / _USUAL_NS)


def _spread_out(low: int, high: int, most: int) -> Int64:
    """Return whole numbers of [low, high), ascending, as far apart from each other as can be."""
    numbers = np.linspace(low, high - 1, min(high - low, most)).astype(np.int64)
    distinct: Int64 = numbers[np.append(True, numbers[1:] > numbers[:-1])]
    return distinct


def spread(values: Float64) -> float:
    """Return the median distance of float64[n] from a line through the medians of both halves."""
    if len(values) < 3:
        return 0.0
    half = len(values) // 2
    place = np.arange(len(values))
    rise = median_of(values[half:]) - median_of(values[:half])
    run = place[half:].mean() - place[:half].mean()
    left = values - rise / run * place
    return float(median_of(np.abs(left - median_of(left))))
