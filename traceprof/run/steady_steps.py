"""The steady steps of a rank, whose mean is the cost of a step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.patterns import lazy
from traceprof.run.steps.steady_rules import StepUse, step_uses
from traceprof.run.training import training_of
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank, Window

    Int8 = npt.NDArray[np.int8]

_ELSE = lazy(r"check[ _-]?point|\bsav(?:e|ing)|validat|\beval", re.IGNORECASE)
_FILE_WRITE = lazy(r"p?write(?:v|64)?\Z|fwrite|f(?:data)?sync\Z|sync_file_range\Z")
_MIN_ELSE = 0.5  # of a step


class SteadySteps(Record, frozen=True):
    """The steady steps of a rank; without steps, the whole window counts as one.

    Attributes:
        step: int64[n], indices into the rank's steps; empty without steps.
        start_ns: int64[m], ascending; m is n, or 1 without steps.
        end_ns: int64[m].
        judged: int64[k], indices of all steps that the window holds, of which these are some.
        uses: int8[k] of `StepUse`, why each of them counts or does not.
    """

    step: Int64
    start_ns: Int64
    end_ns: Int64
    judged: Int64
    uses: Int8


def steady_steps(rank: Rank, window: Window) -> SteadySteps:
    """Return the steps of a rank in a window that are steady.

    Args:
        rank: the rank.
        window: the part of it that is judged.
    """
    return rank.cache.get(_steady_steps, rank, window.start_ns, window.end_ns)


def covered_per_step(rank: Rank, window: Window, covered: Intervals) -> int | None:
    """Return how much of some intervals the mean steady step holds, ns; None without steps."""
    has_steps = len(steady_steps(rank, window).step) > 0
    return covered_in_mean(rank, window, covered) if has_steps else None


def covered_in_mean(rank: Rank, window: Window, covered: Intervals) -> int:
    """Return how much of some intervals the mean steady step holds, ns; the window without any."""
    steps = steady_steps(rank, window)
    of_step = intervals.covered_within(covered, steps.start_ns, steps.end_ns)
    return round(intervals.total(of_step) / len(of_step))


def share_per_step(rank: Rank, window: Window, covered: Intervals) -> float | None:
    """Return which share of some intervals in a window the mean steady step holds.

    None without steps, or without anything in the window.
    """
    in_step = covered_per_step(rank, window, covered)
    whole_ns = intervals.clip(covered, window.start_ns, window.end_ns).measure_ns
    return in_step / whole_ns if in_step is not None and whole_ns else None


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
    num_kernels, phases = _num_kernels(rank, start, end), steps.phases
    is_cut = _known_cut(rank, steps.source[inside])
    uses = np.zeros(len(inside), np.int8)
    for phase in distinct_values(phases[inside]).tolist():
        chosen = phases[inside] == phase
        last = np.flatnonzero(phases == phase)[-1]
        uses[chosen] = step_uses(
            (end - start)[chosen],
            num_kernels[chosen],
            ends_early=int(inside[chosen][-1]) == last and not _is_part(rank),
            is_cut=is_cut[chosen],
            ran_else=_names_else(rank, start[chosen], end[chosen]),
        )
    kept = uses == StepUse.STEADY
    return SteadySteps(inside[kept], start[kept], end[kept], inside, uses)


def _is_part(rank: Rank) -> bool:
    """Return whether the steps are periods, and others follow the last of them."""
    return rank.step_ranges is None and rank.periods is not None and rank.periods.is_part


def _known_cut(rank: Rank, source: Int64) -> Mask:
    """Return which steps an exception or the capture's end cut; if all of them, none."""
    ranges = rank.step_ranges
    if ranges is None or ranges.is_cut is None or ranges.is_cut[source].all():
        return np.zeros(len(source), np.bool_)
    return ranges.is_cut[source]


def _num_kernels(rank: Rank, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return how many kernels, and graphs traced as a whole, start in each step."""
    num = np.zeros(len(start_ns), np.int64)
    for group in (rank.operations.kernels, rank.operations.graphs):
        num += np.searchsorted(group.start_ns, end_ns) - np.searchsorted(group.start_ns, start_ns)
    return num


def _names_else(rank: Rank, start_ns: Int64, end_ns: Int64) -> Callable[[Int64], Mask]:
    """Return a function that says in which steps files were written, or validation ran."""

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
        is_else: Mask = spent >= _MIN_ELSE * (end - begin)
        return is_else

    return ran_else
