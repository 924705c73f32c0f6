"""Change of the mean step between two recordings, with its interval, from blocks of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traceprof.intervals import Float64, Int64, Mask
from traceprof.run.steady_steps import long_steps, regular_spacing

LEVEL = 0.95
"""Of intervals: in so many of a hundred the true change lies inside."""
MAX_FALSE = 0.05
"""Of the kernels that are said to have changed, so many may be wrong."""
_MAX_T = 1e6


class Interval(NamedTuple):
    """Confidence interval of a change."""

    low: float  # its lower end
    high: float  # its upper end


def of_captures(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of means over captures; None with one per side.

    The spread between captures is that of the machine, and the same before and after.
    """
    freedom = len(before) + len(after) - 2
    if freedom < 1:
        return None
    means = [float(np.mean(side)) for side in (before, after)]
    squares = sum(
        float(((np.asarray(side) - mean) ** 2).sum())
        for side, mean in zip((before, after), means, strict=True)
    )
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    reach = t_quantile((1 + LEVEL) / 2, freedom) * error
    return Interval(means[1] - means[0] - reach, means[1] - means[0] + reach)


def t_probability(t: float, freedom: int) -> float:
    """Cumulative probability of Student's t (Abramowitz, Stegun 26.7.3); `freedom`: at least 1."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    is_odd = freedom % 2
    for power in range(is_odd + 2, freedom + 1, 2):
        total += term
        term *= square * (power - 1) / power
    if is_odd:
        within = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        within = math.sin(angle) * total
    return (1 + within) / 2


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t, by bisection, of a `probability` above a half."""
    low, high = 0.0, _MAX_T
    for _ in range(200):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def p_value(change: float, errors: Sequence[tuple[float, int]]) -> float:
    """Return the p-value of a difference of two means by their errors and freedoms (Welch)."""
    variance = sum(error**2 for error, _ in errors)
    if not variance:
        return 1.0 if not change else 0.0
    freedom = variance**2 / sum(error**4 / number for error, number in errors)
    return 2 * (1 - t_probability(abs(change) / math.sqrt(variance), max(int(freedom), 1)))


def adjusted(probabilities: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests (Benjamini, Hochberg).

    If those up to a limit count as changes, at most this share of them is false.
    """
    number = len(probabilities)
    order = sorted(range(number), key=lambda index: -probabilities[index])
    values, least = [1.0] * number, 1.0
    for place, index in enumerate(order):
        least = min(least, probabilities[index] * number / (number - place))
        values[index] = least
    return values


def mann_whitney(before: Float64, after: Float64) -> float:
    """Return the p-value of the Mann-Whitney test (1947), normal with a correction for ties."""
    both = np.concatenate((before, after))
    _, of, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[of]
    num, others = len(before), len(after)
    total = num + others
    statistic = float(ranks[:num].sum()) - num * (num + 1) / 2
    ties = float((counts**3 - counts).sum()) / (total * (total - 1))
    variance = num * others / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    distance = max(abs(statistic - num * others / 2) - 0.5, 0.0)
    return math.erfc(distance / math.sqrt(2 * variance))


MIN_STEPS = 3
"""Of each recording: of fewer no interval is given."""
_MIN_BLOCKED_STEPS = 6  # of fewer each step is a block
_BLOCKS = 10  # at least as many, unless blocks would have fewer than two steps
_MAX_BLOCK = 6  # steps; loaders alternate, so that a block has an even number of them
_MIN_CORRELATION = 0.1  # of neighbouring blocks: below it is noise
_MAX_CORRELATION = 0.6
_KINDS_EXPLAINED = 0.90  # of the variance: so clear are kinds whose shares are compared
_LONGER = 1.25  # than the usual step
_UNCERTAIN = 0.05  # of a mean: its standard error
_CERTAIN = 0.99  # level at which shares of kinds, or halves of a recording, differ


class Mean(NamedTuple):
    """A mean with its noise."""

    value: float  # the mean
    variance: float  # of the mean
    freedom: float  # degrees of freedom of that variance


class AtSameMix(NamedTuple):
    """The change that short and long steps have in common."""

    change: float  # each kind after less the same before, weighted by the share of it in both
    interval: Interval  # where it lies


class MeanChange(NamedTuple):
    """The change of a mean, or of the same steps at the same mix of short and long ones."""

    change: float  # after less before
    interval: Interval | None  # where it lies; None if there are too few steps
    at_same_mix: AtSameMix | None  # the same at equal shares of short and long steps

    @property
    def judged(self) -> Interval | None:
        """The interval that a verdict is made from."""
        return self.interval if self.at_same_mix is None else self.at_same_mix.interval


def mean_change(
    before: Float64, after: Float64, lengths: tuple[Float64, Float64], *, is_share: bool = False
) -> MeanChange:
    """Return the change of the mean of a value of steps, such as their length.

    The interval is Welch's t over means of blocks of neighbouring steps. Blocks have an even
    number of steps, or as many as the regular distance of long ones, so that alternating steps do
    not count as noise; where neighbouring blocks are correlated, the variance is widened by
    (1 + r) / (1 - r).

    `before`, `after`: in order of time. `lengths`: of the same steps; they tell the kinds.
    `is_share`: values are hundredths of the mean before, so that none falls by more than 100.
    """
    sides = (before, after)
    change = float(after.mean() - before.mean())
    if min(map(len, sides)) < MIN_STEPS:
        return MeanChange(change, None, None)
    blocks = [block_length(length) for length in lengths]
    means = [mean_of_blocks(side, block) for side, block in zip(sides, blocks, strict=True)]
    kinds = _kinds(lengths, blocks)
    mix = None if kinds is None else _at_same_mix(sides, lengths, kinds, is_share=is_share)
    return MeanChange(change, difference(means, is_share=is_share), mix)


def difference(means: Sequence[Mean], level: float = LEVEL, *, is_share: bool = False) -> Interval:
    """Return the interval of the difference of two means, before and after (Welch 1947).

    `level`: of confidence. `is_share`: as in `mean_change`; logarithms of uncertain means are
    compared.
    """
    before, after = means
    found = _welch(before, after, level=level)
    is_uncertain = any(mean.variance > (_UNCERTAIN * mean.value) ** 2 for mean in means)
    is_beyond = found.low <= -before.value  # less than nothing would be left
    if is_share and (is_uncertain or is_beyond) and min(before.value, after.value) > 0:
        logarithms = [
            Mean(math.log(mean.value), mean.variance / mean.value**2, mean.freedom)
            for mean in means
        ]
        return Interval(
            *(before.value * math.expm1(end) for end in _welch(*logarithms, level=level))
        )
    return found


def _welch(before: Mean, after: Mean, *, level: float) -> Interval:
    variance = before.variance + after.variance
    change = after.value - before.value
    if variance <= 0:
        return Interval(change, change)
    freedom = variance**2 / sum(mean.variance**2 / mean.freedom for mean in (before, after))
    reach = t_quantile((1 + level) / 2, max(int(freedom), 1)) * math.sqrt(variance)
    return Interval(change - reach, change + reach)


def block_length(lengths: Float64) -> int:
    """Return the number of neighbouring steps in a block; `lengths`: in order of time."""
    num = len(lengths)
    if num < _MIN_BLOCKED_STEPS:
        return 1
    block = max(2 * int(min(num / _BLOCKS, _MAX_BLOCK) / 2), 2)
    is_long = long_steps(lengths)
    spacing = None if is_long is None else regular_spacing(is_long)
    return block if spacing is None else spacing * max(round(block / spacing), 1)


def mean_of_blocks(values: Float64, block: int) -> Mean:
    """Return the mean of all values, with the noise of the means of blocks.

    `values`: float64[n], in order of time, n at least twice the block (neighbouring values).
    """
    num_blocks = len(values) // block
    blocks = values[: num_blocks * block].reshape(num_blocks, block).mean(axis=1)
    variance = float(blocks.var(ddof=1)) / num_blocks * (num_blocks * block / len(values))
    deviations = blocks - blocks.mean()
    squares = float((deviations**2).sum())
    if num_blocks > MIN_STEPS and squares > 0:
        correlation = float((deviations[1:] * deviations[:-1]).sum()) / squares
        if correlation > _MIN_CORRELATION:
            correlation = min(correlation, _MAX_CORRELATION)
            variance *= (1 + correlation) / (1 - correlation)
    return Mean(float(values.mean()), variance, num_blocks - 1)


def steps_to_find(values: Float64, share: float) -> int:
    """Return the steps per side that show a change of the mean in 9 of 10, at 5 % false alarms.

    26 (cv / share)^2, where 26 is 2 (1.96 + 1.64)^2: 95 of 100 if the noise were known. `values`:
    float64[n], lengths of steps in order of time, n at least `MIN_STEPS`. `share`: 0.01 is 1 %.
    """
    mean = mean_of_blocks(values, block_length(values))
    square = mean.variance * len(values) / mean.value**2
    return math.ceil(26 * square / share**2)


def halves(values: Float64) -> tuple[slice, slice] | None:
    """Return the first and the second half of a recording, of whole blocks; None if too short.

    With half a block one of them would have one more of long steps that come regularly.
    """
    half = len(values) // 2
    if half < _MIN_BLOCKED_STEPS:
        return None
    half -= half % block_length(values)
    return slice(half), slice(len(values) - half, None)


def trend(values: Float64) -> float | None:
    """Return how much longer the second half of a recording is, as a share; None if uncertain."""
    parts = halves(values)
    if parts is None:
        return None
    block = block_length(values)
    means = [mean_of_blocks(values[part], min(block, block_length(values[part]))) for part in parts]
    low, high = difference(means, level=_CERTAIN)
    return means[1].value / means[0].value - 1 if low > 0 or high < 0 else None


def _kinds(lengths: tuple[Float64, Float64], blocks: list[int]) -> tuple[Int64, Int64] | None:
    """Return which steps are short (0) or long (1); None unless both sides have equal shares."""
    is_long = [long_steps(length, _KINDS_EXPLAINED) for length in lengths]
    if is_long[0] is None or is_long[1] is None:
        return None
    kinds = (is_long[0].astype(np.int64), is_long[1].astype(np.int64))
    shares = [
        mean_of_blocks(kind.astype(np.float64), block)
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    low, high = difference(shares, level=_CERTAIN)
    one_step = 1 / min(map(len, kinds))  # where a recording begins and ends is chance
    return None if low > one_step or high < -one_step else kinds


def _at_same_mix(
    sides: tuple[Float64, Float64],
    lengths: tuple[Float64, Float64],
    kinds: tuple[Int64, Int64],
    *,
    is_share: bool,
) -> AtSameMix:
    """Return the change of each kind, weighted by its share of the steps of both sides."""
    numbers, num_steps = np.unique(np.concatenate(kinds), return_counts=True)
    shares = (num_steps / num_steps.sum()).tolist()
    pooled = []
    for side, length, kind in zip(sides, lengths, kinds, strict=True):
        means = [
            mean_of_blocks(side[kind == number], block_length(length[kind == number]))
            for number in numbers.tolist()
        ]
        value = sum(share * mean.value for share, mean in zip(shares, means, strict=True))
        variances = [share**2 * mean.variance for share, mean in zip(shares, means, strict=True)]
        # Degrees of freedom of a sum of variances (Welch, Satterthwaite).
        squares = sum(
            variance**2 / mean.freedom for variance, mean in zip(variances, means, strict=True)
        )
        freedom = sum(variances) ** 2 / squares if squares else 1.0
        pooled.append(Mean(value, sum(variances), freedom))
    return AtSameMix(pooled[1].value - pooled[0].value, difference(pooled, is_share=is_share))


class UsualChange(NamedTuple):
    """The change of the median of the commonest kind of steps."""

    medians: tuple[float, float]
    num_longer: tuple[int, int]  # steps that are longer by a quarter or more
    interval: Interval  # of the change, as a fraction of the median before


def usual_change(lengths: tuple[Float64, Float64]) -> UsualChange | None:
    """Return the change of the usual step; None if there are too few steps.

    The variance of a median is taken from the order statistics around it (McKean and Schrader,
    1984), wider where neighbouring steps are alike, as that of the mean. `lengths`: of the steps in
    order of time.
    """
    usual = [side[commonest(side)] for side in lengths]
    if min(map(len, usual)) < MIN_STEPS or min(side.min() for side in usual) <= 0:
        return None
    logarithms = [_median(np.log(side)) for side in usual]
    low, high = difference(logarithms)
    first, second = (math.exp(one.value) for one in logarithms)
    num_longer = (
        int(np.count_nonzero(lengths[0] >= _LONGER * first)),
        int(np.count_nonzero(lengths[1] >= _LONGER * second)),
    )
    return UsualChange((first, second), num_longer, Interval(math.expm1(low), math.expm1(high)))


def commonest(lengths: Float64) -> Mask:
    """Return which steps are of the commonest kind, bool[n]."""
    is_long = long_steps(lengths, _KINDS_EXPLAINED)
    if is_long is None:
        return np.ones(len(lengths), np.bool_)
    return is_long if 2 * is_long.sum() > len(lengths) else ~is_long


def _median(values: Float64) -> Mean:
    num, ascending = len(values), np.sort(values)
    place = max(int((num + 1) / 2 - 1.96 * math.sqrt(num / 4)), 1)
    deviation = float(ascending[-place] - ascending[place - 1]) / (2 * 1.96)
    blocks, spread = mean_of_blocks(values, block_length(np.exp(values))), float(values.var(ddof=1))
    alike = max(blocks.variance * num / spread, 1.0) if spread > 0 else 1.0
    return Mean(float(np.median(values)), deviation**2 * alike, blocks.freedom)
