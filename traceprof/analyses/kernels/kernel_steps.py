"""Time of the kernels of a name in a steady step, with its standard error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses.steps.step_means import block_of, num_blocks
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.steady_steps import SteadySteps


class InSteadyStep(Record, frozen=True):
    """Time of the kernels of one name in a steady step of one rank.

    Attributes:
        ns: the mean over steps of the sum of their durations.
        error_ns: the standard error of that mean, by blocks of neighbouring steps; None if there
            are too few steps.
        place: where in a step the first of them starts, as a share of it, 0 to 1.
    """

    ns: float
    error_ns: float | None
    place: float


def in_steady_steps(
    start_ns: Int64, length_ns: Int64, which: Int64, num_names: int, steps: SteadySteps
) -> list[InSteadyStep | None]:
    """Return the time of each name in a steady step; None if it occurs in none.

    Args:
        start_ns: int64[n], ascending, of kernels.
        length_ns: int64[n].
        which: int64[n], the name of each.
        num_names: how many names there are.
        steps: ascending, and apart from each other.
    """
    num = len(steps.start_ns)
    blocks, block = max(num_blocks(num), 1), block_of(num)
    firsts = np.searchsorted(start_ns, steps.start_ns).tolist()
    stops = np.searchsorted(start_ns, steps.end_ns).tolist()
    spent = np.zeros((blocks, num_names))
    place = np.full(num_names, np.nan)
    for step, (first, stop) in enumerate(zip(firsts, stops, strict=True)):
        names = which[first:stop]
        spent[block[step]] += np.bincount(names, length_ns[first:stop], num_names)
        if np.isnan(place.take(names)).any():
            distinct, index = np.unique(names, return_index=True)
            begin, end = steps.start_ns[step], steps.end_ns[step]
            offset = (start_ns[first:stop][index] - begin) / (end - begin)
            place[distinct] = np.where(np.isnan(place[distinct]), offset, place[distinct])
    mean = spent.sum(axis=0) / num
    error: list[float | None] = [None] * num_names
    if num_blocks(num):
        deviation = spent / np.bincount(block, minlength=blocks)[:, np.newaxis] - mean
        error = np.sqrt((deviation**2).sum(axis=0) / (blocks - 1) / blocks).tolist()
    return [
        None if math.isnan(offset) else InSteadyStep(ns, wrong_by, offset)
        for ns, wrong_by, offset in zip(mean.tolist(), error, place.tolist(), strict=True)
    ]
