"""An independent reference for ranks compared by their work, for tests only: plain loops."""

from collections.abc import Sequence
from math import log2
from statistics import mean, median
from typing import NamedTuple

Times = Sequence[Sequence[Sequence[float]]]  # by rank, step and part


class Expected(NamedTuple):
    excess_ns: list[float]  # by rank, mean over the steps
    noise_ns: float
    outliers: set[int]
    changing_ns: float | None  # None where it does not change from part to part


def expected(times: Times, step_ns: float) -> Expected:
    """Return what peers differ by, given what each takes in each part of each step."""
    num_ranks, num_steps, num_parts = len(times), len(times[0]), len(times[0][0])
    totals = [[sum(step) for step in rank] for rank in times]
    beyond = [
        [
            totals[rank][step]
            - median(totals[other][step] for other in range(num_ranks) if other != rank)
            for step in range(num_steps)
        ]
        for rank in range(num_ranks)
    ]
    typical = median(value for rank in totals for value in rank)
    usual = [median(of_rank) for of_rank in beyond]
    noise, limit = 0.01 * typical, 0.2 * typical
    if num_steps >= 3:
        left = [abs(value - usual[r]) for r, of_rank in enumerate(beyond) for value in of_rank]
        noise = max(noise, 1.4826 * median(left))
        if num_ranks >= 4:
            middle = median(usual)
            noise = max(noise, 1.4826 * median(abs(value - middle) for value in usual))
        limit = min(limit, 3 * noise)
    else:
        usual = [min(of_rank) for of_rank in beyond]
    outliers = {
        rank for rank, value in enumerate(usual) if value > limit and value > 0.01 * step_ns
    }
    far, far_ns, cost = 0, 0.0, 0.0
    for part in range(num_parts):
        own = [[times[rank][step][part] for rank in range(num_ranks)] for step in range(num_steps)]
        above = [
            [row[rank] - median(row[:rank] + row[rank + 1 :]) for rank in range(num_ranks)]
            for row in own
        ]
        of_part = median(value for row in own for value in row)
        most = 0.2 * (1 + log2(max(num_ranks / 6, 1)) / 6) * of_part
        for row, values in zip(own, above, strict=True):
            if max(values) > most:
                far += 1
                far_ns += mean(row)
                cost += max(row) - mean(row)
    whole_ns = sum(map(sum, totals)) / num_ranks
    is_changing = far >= 3 and 2 * far_ns >= whole_ns and cost / num_steps >= 0.01 * step_ns
    return Expected(
        [mean(of_rank) for of_rank in beyond],
        noise,
        outliers,
        cost / num_steps if is_changing else None,
    )
