"""The steady steps of a rank, whose mean is the cost of a step, and kinds of steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from traceprof import intervals
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window, WindowKind
from traceprof.run.windows import training_of
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of, quantiles_of

Int8 = npt.NDArray[np.int8]

MIN_STEPS = 3
"""Of each kind."""
_MIN_SHARE = 0.1  # of the steps, of each kind
_MIN_RATIO = 1.5  # of the means of the kinds
MIN_EXPLAINED = 0.80
"""Share of the variance of the logarithms of the lengths that lies between the two kinds."""


def long_steps(lengths_ns: npt.ArrayLike, min_explained: float = MIN_EXPLAINED) -> Mask | None:
    """Return which steps are of the longer of two kinds, bool[n]; None if all are of one kind.

    They are divided at the cut of their logarithms that explains most of the variance (Otsu, "A
    threshold selection method from gray-level histograms", 1979), at least `min_explained`.
    """
    lengths = np.asarray(lengths_ns, np.float64)
    num = len(lengths)
    least = max(MIN_STEPS, int(np.ceil(_MIN_SHARE * num)))
    if num < 2 * least or lengths.min() <= 0:
        return None
    order = np.argsort(lengths, kind="stable")
    logarithms = np.log(lengths[order])
    deviations = logarithms - logarithms.mean()
    total = float((deviations**2).sum())
    if total <= 0:
        return None
    num_short = np.arange(1, num)
    sums = np.cumsum(deviations)[:-1]
    between = sums**2 * num / (num_short * (num - num_short))
    cut = int(between.argmax()) + 1
    if between[cut - 1] < min_explained * total or min(cut, num - cut) < least:
        return None
    is_long = np.zeros(num, np.bool_)
    is_long[order[cut:]] = True
    if lengths[is_long].mean() < _MIN_RATIO * lengths[~is_long].mean():
        return None
    return is_long


def kinds_of_steps(lengths_ns: Int64) -> list[Mask]:
    """Masks of the steps of each kind, bool[n]: at least one, the shorter kind first."""
    is_long = long_steps(lengths_ns)
    return [np.ones(len(lengths_ns), np.bool_)] if is_long is None else [~is_long, is_long]


def regular_spacing(is_long: Mask) -> int | None:
    """Distance, in steps, between long steps; None if they come irregularly."""
    distances = np.diff(np.flatnonzero(is_long))
    if len(distances) < MIN_STEPS:
        return None
    usual = int(median_of(distances))
    is_regular = usual > 1 and float((distances == usual).mean()) >= MIN_EXPLAINED
    return usual if is_regular else None


MIN_KERNELS = 0.9
"""Of the usual number of kernels: a first or last step with fewer is cut."""
_MAX_AS_FEW = 0.1  # of the other steps have as few kernels as a step that is cut
MIN_LONG = 1.5
"""Of the median length: a first step with few kernels that takes longer is opening, not cut."""
MIN_STEPS_OF_AN_OPENING = 6
MAX_OPENING_SHARE, MAX_OPENING_STEPS = 0.25, 10
MIN_OPENING = 1.05
"""Of the 95 % quantile of the later half: a leading step that takes longer is opening."""
MIN_RARE = 3.0
"""Of the mean of the longest kind: a step that takes longer may be rare."""
MIN_OTHER = 0.1
"""Of the usual number of kernels: where it differs by more, something else ran."""
_MAX_RARE = 0.05  # of the steps, rounded up
_MAX_RARE_UNMARKED = 0.2  # of steps that no range marks: what interrupts them lies in them
_AS_LONG = 0.95  # of the time of the longest phase: one that takes as much is as long


class StepUse(IntEnum):
    """The part of a recording that a step is."""

    STEADY = 0
    CUT = 1
    OPENING = 2
    RARE = 3
    PHASE = 4
    """Steady in a phase of the program that is not the longest one."""


def step_uses(
    lengths_ns: Int64,
    num_kernels: Int64,
    *,
    ends_early: bool,
    is_cut: Mask | None = None,
    ran_else: Callable[[Int64], Mask] | None = None,
    are_marked: bool = True,
) -> Int8:
    """Whether each step is steady, or why not: int8[n] of `StepUse`.

    Cut are the first and the last step with under 90 % of the median number of kernels, where
    hardly another step has as few, and the last one where no step follows. Opening are leading
    steps that take longer than the later half. Rare is a step over three times as long as the
    longest kind, in which something else ran.

    `num_kernels`: zeros where unknown. `ends_early`: no step follows the last one. `is_cut`: known
    to be cut. `ran_else`: whether ranges or calls name something else in some steps.
    `are_marked`: by ranges of steps; else what interrupts a program lies in steps.
    """
    lengths = np.asarray(lengths_ns, np.float64)
    uses = np.zeros(len(lengths), np.int8)
    if is_cut is not None:
        uses[is_cut] = StepUse.CUT
    if len(lengths) < MIN_STEPS:
        return uses
    if ends_early:
        uses[-1] = StepUse.CUT
    for end in (0, -1):
        others = np.delete(num_kernels, end)
        is_short = num_kernels[end] < MIN_KERNELS * median_of(num_kernels)
        if is_short and (others <= num_kernels[end]).mean() <= _MAX_AS_FEW:
            # The recording's edge makes no step longer: something else ran in it.
            is_long = end == 0 and lengths[0] > MIN_LONG * median_of(lengths)
            uses[end] = StepUse.OPENING if is_long else StepUse.CUT
    if not (uses == StepUse.STEADY).any():
        return np.zeros(len(lengths), np.int8)  # nothing else tells what a step takes
    left = np.flatnonzero(uses == StepUse.STEADY)
    if len(lengths) >= MIN_STEPS_OF_AN_OPENING:
        uses[left[: _num_opening(lengths[left])]] = StepUse.OPENING
    left = np.flatnonzero(uses == StepUse.STEADY)
    rare = left[_outliers(lengths[left], _MAX_RARE if are_marked else _MAX_RARE_UNMARKED)]
    if len(rare):
        usual = float(median_of(num_kernels[left]))
        is_other = np.abs(num_kernels[rare] - usual) > MIN_OTHER * usual
        if ran_else is not None and not is_other.all():
            is_other[~is_other] = ran_else(rare[~is_other])
        uses[rare[is_other]] = StepUse.RARE
    return uses


def _num_opening(lengths: npt.NDArray[np.float64]) -> int:
    num = len(lengths)
    limit = MIN_OPENING * float(quantiles_of(lengths[num // 2 :], (0.95,))[0])
    most = min(max(int(MAX_OPENING_SHARE * num), 1), MAX_OPENING_STEPS)
    is_slow = lengths[:most] > limit
    return len(is_slow) if is_slow.all() else int(is_slow.argmin())


def _outliers(lengths: npt.NDArray[np.float64], max_share: float) -> Mask:
    """Steps that take much longer than the longest kind; none if they are many."""
    most = int(np.ceil(max_share * len(lengths)))
    usual = np.sort(lengths)[:-most]
    if len(usual) == 0:
        return np.zeros(len(lengths), np.bool_)
    is_long = long_steps(usual)
    longest = usual if is_long is None else usual[is_long]
    is_outlier: Mask = lengths > MIN_RARE * float(longest.mean())
    return is_outlier if is_outlier.sum() <= most else np.zeros(len(lengths), np.bool_)


_ELSE = re.compile(r"check[ _-]?point|\bsav(?:e|ing)|validat|\beval", re.IGNORECASE)
_FILE_WRITE = re.compile(r"p?write(?:v|64)?\Z|fwrite|f(?:data)?sync\Z|sync_file_range\Z")
_MIN_ELSE = 0.5  # of a step


class SteadySteps(Record, frozen=True):
    """The steady steps of a rank; without steps, the whole window counts as one."""

    step: Int64  # int64[n], indices into the rank's steps; empty without steps
    start_ns: Int64  # int64[m], ascending; m is n, or 1 without steps
    end_ns: Int64  # int64[m]
    judged: Int64  # int64[k], indices of all steps that the window holds, these and others
    uses: Int8  # int8[k] of `StepUse`, why each of them counts or does not


def steady_steps(rank: Rank, window: Window) -> SteadySteps:
    """Return the steady steps of a rank in a window."""
    return rank.cache.get(_steady_steps, rank, window.start_ns, window.end_ns)


def covered_per_step(rank: Rank, window: Window, covered: Intervals) -> int | None:
    """Time of some intervals in the mean steady step, ns; None without steps."""
    has_steps = len(steady_steps(rank, window).step) > 0
    return covered_in_mean(rank, window, covered) if has_steps else None


def covered_in_mean(rank: Rank, window: Window, covered: Intervals) -> int:
    """Time of some intervals in the mean steady step, else in the window, ns."""
    steps = steady_steps(rank, window)
    of_step = intervals.covered_within(covered, steps.start_ns, steps.end_ns)
    return round(intervals.total(of_step) / len(of_step))


def share_per_step(rank: Rank, window: Window, covered: Intervals) -> float | None:
    """Share of some intervals' time in a window that the mean steady step holds; None without."""
    in_step = covered_per_step(rank, window, covered)
    whole_ns = intervals.clip(covered, window.start_ns, window.end_ns).measure_ns
    return in_step / whole_ns if in_step is not None and whole_ns else None


MIN_ONCE = 0.9
"""The share of some time that lies in one step, from which on it happened once."""


class OnlyStep(Record, frozen=True):
    """The step in which something happened, of several."""

    number: int  # of what the GPU did as `--steps` counts them, of idle time as the host marks them
    num_steps: int


def only_step(
    rank: Rank, window: Window, covered: Intervals, *, is_idle: bool = False
) -> OnlyStep | None:
    """Return the one step of a window in which some time lies; None if it recurs.

    Under `MIN_STEPS` steps nothing shows whether it recurs: None, too.
    """
    steps, judged = rank.steps, steady_steps(rank, window).judged
    if steps is None or len(judged) < MIN_STEPS:
        return None
    in_step = intervals.covered_within(covered, steps.start_ns[judged], steps.end_ns[judged])
    whole_ns = intervals.clip(covered, window.start_ns, window.end_ns).measure_ns
    most = int(np.argmax(in_step))
    if not in_step[most] or in_step[most] < MIN_ONCE * whole_ns:
        return None
    number = int(steps.number[judged[most]])
    marked = None
    if is_idle:
        low, high = int(steps.start_ns[judged[most]]), int(steps.end_ns[judged[most]])
        marked = number_of_idle(rank, intervals.clip(covered, low, high))
    return OnlyStep(number if marked is None else marked, len(judged))


def number_of_idle(rank: Rank, idle: Intervals) -> int | None:
    """Return the number on the host's mark around the middle of the longest idle gap, else its end.

    What is in no step's range belongs to the step in which it is needed.
    """
    longest = int(np.argmax(idle.length_ns))
    start, end = int(idle.start_ns[longest]), int(idle.end_ns[longest])
    return marked_number(rank, start + (end - start) // 2, end)


def marked_number(rank: Rank, at_ns: int, else_ns: int | None = None) -> int | None:
    """Return the number on the host's mark around some time, or the last before; None without any.

    `else_ns`: the time that counts where no mark is around the first.
    """
    ranges = rank.step_ranges
    if ranges is None or not len(ranges.start_ns):
        return None
    is_marked = ((ranges.start_ns <= at_ns) & (at_ns < ranges.end_ns)).any()
    if else_ns is not None and not is_marked:
        at_ns = else_ns
    place = int(np.searchsorted(ranges.start_ns, at_ns, side="right")) - 1
    return int(ranges.number[max(place, 0)])


def _steady_steps(rank: Rank, start_ns: int, end_ns: int) -> SteadySteps:
    steps, none = rank.steps, np.empty(0, np.int64)
    whole = np.array([start_ns], np.int64), np.array([end_ns], np.int64)
    if steps is None:
        return SteadySteps(none, *whole, none, none.astype(np.int8))
    # Of two that start at once, one is empty.
    is_inside = (steps.start_ns >= start_ns) & (steps.end_ns <= end_ns)
    inside = np.flatnonzero(is_inside & (steps.end_ns > steps.start_ns))
    training = inside[steps.start_ns[inside] >= training_of(rank).start_ns]
    inside = training if len(training) else inside
    if not len(inside):
        return SteadySteps(none, *whole, none, none.astype(np.int8))
    start, end = steps.start_ns[inside], steps.end_ns[inside]
    num_kernels, phases = np.zeros(len(inside), np.int64), steps.phases
    for group in (rank.operations.kernels, rank.operations.graphs):
        num_kernels += np.diff(np.searchsorted(group.start_ns, (start, end)), axis=0)[0]
    is_cut = _known_cut(rank, steps.source[inside])
    uses = np.zeros(len(inside), np.int8)
    for phase in distinct_values(phases[inside]).tolist():
        chosen = phases[inside] == phase
        last = np.flatnonzero(phases == phase)[-1]
        continues = rank.step_ranges is None and rank.periods is not None and rank.periods.is_part
        uses[chosen] = step_uses(
            (end - start)[chosen],
            num_kernels[chosen],
            ends_early=int(inside[chosen][-1]) == last and not continues,
            is_cut=is_cut[chosen],
            ran_else=_names_else(rank, start[chosen], end[chosen]),
            are_marked=rank.step_ranges is not None and rank.training_ranges.steps is not None,
        )
    # Of phases equally long, within 5 %, the first: all ranks of a run choose the same one.
    spent_ns = np.bincount(phases[inside], np.where(uses == StepUse.STEADY, end - start, 0))
    longest = int((spent_ns >= _AS_LONG * spent_ns.max()).argmax())
    uses[(phases[inside] != longest) & (uses == StepUse.STEADY)] = StepUse.PHASE
    kept = uses == StepUse.STEADY
    return SteadySteps(inside[kept], start[kept], end[kept], inside, uses)


def other_phases(rank: Rank, window: Window) -> dict[int, Window]:
    """Return when the phases of the program ran whose steps are not counted, by their number."""
    steps, found, spans = rank.steps, steady_steps(rank, window), phase_spans(rank, window)
    if steps is None or not len(found.step):
        return {}
    phases = distinct_values(steps.phases[found.judged])
    others = phases[phases != steps.phases[found.step[0]]].tolist()
    return {
        phase: Window(spans[phase][0], spans[phase][1], kind=WindowKind.PHASE) for phase in others
    }


def phase_spans(rank: Rank, window: Window) -> tuple[tuple[int, int], ...]:
    """Return when each phase of the program began and ended in a window; empty without phases."""
    if rank.steps is None or rank.periods is None or len(rank.periods.phases) < 2:
        return ()
    low, high = window.start_ns, window.end_ns
    spans = rank.periods.spans_ns
    return tuple((min(max(start, low), high), min(end, high)) for start, end in spans)


def _known_cut(rank: Rank, source: Int64) -> Mask:
    """Steps that an exception or the capture's end cut; none if it cut all."""
    ranges = rank.step_ranges
    if ranges is None or ranges.is_cut is None or ranges.is_cut[source].all():
        return np.zeros(len(source), np.bool_)
    return ranges.is_cut[source]


def _names_else(rank: Rank, start_ns: Int64, end_ns: Int64) -> Callable[[Int64], Mask]:
    """Predicate: steps in which files were written, or validation ran."""

    def ran_else(chosen: Int64) -> Mask:
        spans = []
        ranges = rank.trace.ranges(_ELSE, rank.process).get(rank.process)
        if ranges is not None:
            spans.append((ranges.start_ns, ranges.end_ns))
        calls = rank.trace.host_activity(rank.process).system_calls
        writes = np.array([bool(_FILE_WRITE.match(name)) for name in calls.names], np.bool_)
        if writes.any():
            is_write = writes[calls.name]
            spans.append((calls.start_ns[is_write], calls.end_ns[is_write]))
        begin, end = start_ns[chosen], end_ns[chosen]
        spent = np.zeros(len(chosen), np.int64)
        for first, last in spans:
            covered = intervals.union(first, np.minimum(last, intervals.BEYOND_NS))
            spent = np.maximum(spent, intervals.covered_within(covered, begin, end))
        return spent >= _MIN_ELSE * (end - begin)

    return ran_else
