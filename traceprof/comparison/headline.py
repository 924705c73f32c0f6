"""The verdict of a comparison: its word, its sentence, and what would decide an open one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from traceprof.analyses.gpu_idle import CAUSES
from traceprof.comparison.gates import SAME, beyond
from traceprof.comparison.mean_change import MIN_STEPS, steps_to_find
from traceprof.comparison.statistics import LEVEL, Interval
from traceprof.host.idle_causes import IdleCause
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.comparison.series import Series
    from traceprof.documents.comparison import Comparison, Spread, Step, Verdict

LEVEL_TEXT = f"{LEVEL * 100:.0f} %"
_USUAL_STEPS = 60  # which show 2 % (docs/compare.md)
_THREE = "Record three a side"
_CAUSES = frozenset(cause.value.replace("_", " ") for cause in IdleCause)


def verdict_of(interval: Interval | None, between: Interval | None) -> Verdict:
    """Return the verdict of an interval in hundredths, and of the same with other recordings."""
    if interval is None:
        return "inconclusive"
    is_chance = between is not None and between.low <= 0 <= between.high
    is_within = interval.low <= 0 <= interval.high
    if not is_within and not is_chance:
        return "faster" if interval.high < 0 else "slower"
    if max(-interval.low, interval.high) <= 100 * SAME:
        return "same"
    return "inconclusive" if is_within else "differs"


def to_decide(step: Step, before: Series, after: Series, spread: Sequence[Spread]) -> str | None:
    """Return what to record where the verdict is open; None where it is not."""
    if step.verdict == "differs":
        return _THREE
    if step.verdict != "inconclusive":
        return None
    if step.basis == "training":
        return "Name the range around a step (--step-pattern)"
    if step.basis == "captures":
        return f"Record more a side than {len(before.captures)} and {len(after.captures)}"
    return _steps_to_record(step, before, after, spread)


def _steps_to_record(step: Step, before: Series, after: Series, spread: Sequence[Spread]) -> str:
    lengths = before.lengths[0], after.lengths[0]
    num = min(map(len, lengths))
    if num < MIN_STEPS:
        return f"Record {_USUAL_STEPS} steps a side, not {num}"
    mix = step.at_same_mix
    change = (step.change or 0.0) if mix is None else mix.change
    size = max(abs(change), SAME)
    needed = 0 if mix else max(steps_to_find(one, size) for one in lengths)
    place = 10 ** max(len(str(needed)) - 2, 0)
    steps = f"{math.ceil(needed / place) * place} steps" if needed > num else ""
    # Whatever the number of steps, runs may differ by so much.
    alike = beyond(Interval(100 * size, 100 * size), before, after, spread)
    if alike is not None and alike.low <= 0:
        return f"{_THREE}, of about {steps} each, not {num}" if steps else _THREE
    return f"Record about {steps} a side, not {num}" if steps else "Record more steps a side"


def sentence(comparison: Comparison) -> str:
    """Return the verdict on the step, and what would decide it."""
    step = comparison.step
    if step.verdict == "differs":
        return _differs(comparison)
    values = f"{exact(step.before_ns)} before and {exact(step.after_ns)} after"
    what = "The training, without steps," if step.basis == "training" else "A step"
    end = "" if step.to_decide is None else f" {step.to_decide}."
    if step.low is None or step.high is None:
        change = "" if step.change is None else f" ({signed(step.change)})"
        why = step.verdict if step.verdict == "not comparable" else "inconclusive"
        return f"{what} takes {values}{change}: {why}, no interval can be given.{end}"
    over = f"{LEVEL_TEXT} over {'recordings' if step.basis == 'captures' else 'steps'}"
    mean = span(step.change or 0.0, step.low, step.high)
    mix = step.at_same_mix
    if mix is None:
        return f"{what} takes {values}: {step.verdict}, {mean[:-1]}, {over}).{end}"
    return (
        f"{what} takes {values}: {step.verdict}, {span(mix.change, mix.low, mix.high)[:-1]},"
        f" {over}) at the same mix of short and long steps; the mean {mean}.{end}"
    )


def _differs(comparison: Comparison) -> str:
    """Say what differs between two recordings, that may do so without a change of the program."""
    step, part = comparison.step, comparison.step.varying or ""
    if part in _CAUSES:
        what = CAUSES[IdleCause(part.replace(" ", "_"))]
        changes = [one.change_ns for one in comparison.idle if one.cause.replace("_", " ") == part]
    else:
        what = part
        changes = [one.change_ns or 0 for one in comparison.part_changes if one.part == part]
    mix = step.at_same_mix
    change = signed(step.change or 0.0)
    if mix is not None:
        change = f"{signed(mix.change)} at the same mix of short and long steps (mean {change})"
    return (
        f"These two recordings differ by {change}, {exact(step.before_ns)} a step before and"
        f" {exact(step.after_ns)} after: runs of one program differ so, in {what} above all"
        f" (here {change_text(sum(changes))}). {step.to_decide}."
    )


def span(change: float, low: float, high: float) -> str:
    """Write a change and its interval, given as fractions."""
    return f"{signed(change)} ({signed(low)} to {signed(high)})"


def signed(fraction: float) -> str:
    """Write a fraction as hundredths with its sign."""
    return f"{100 * fraction:+.2f} %"


def change_text(change_ns: int) -> str:
    """Write a change of time with its sign: `-774 µs`."""
    return "0 ns" if not change_ns else f"{'-' if change_ns < 0 else '+'}{duration(abs(change_ns))}"


def exact(length_ns: int) -> str:
    """Write a step's length with a digit more than usual: changes of a per cent need it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if length_ns >= size:
            value = length_ns / size
            return f"{value:.{max(3 - len(str(int(value))), 0) + 1}f} {unit}"
    return f"{length_ns} ns"
