"""The steps of a side: the length of each, averaged over ranks, and its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import UnsetType

from traceprof.analyses.steps import COLUMNS, ProgramPhase, StepTotals, in_whole_ns, mean_step
from traceprof.documents.analysis.model import Document, Step
from traceprof.intervals import Float64
from traceprof.run.mean_change import commonest, trend
from traceprof.run.step_ranges import StepsSource
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import median_of

Captures = Sequence[Document]
"""The analyses of the recordings of a side."""
MAX_RATIO = 2.0
"""Of the numbers of kernels: of periods that differ by more, one is a part of the other."""


def why_unlike(before: Captures, after: Captures) -> str | None:
    """Return why periods of two sides cannot be compared; None if they can, or there are none."""
    captures = [*before, *after]
    sources = {capture.headline.steps_source for capture in captures}
    if StepsSource.PERIOD not in sources:
        return None
    if len(sources) > 1:
        return "a step is a period of the program on one side only"
    periods = [capture.headline.periods for capture in captures]
    if len({len(phases) for phases in periods}) > 1:
        return "the programs have different numbers of phases"
    for of_phase in zip(*periods, strict=True):
        numbers = [period.num_kernels for period in of_phase]
        if max(numbers) > MAX_RATIO * min(numbers):
            return f"periods have {min(numbers)} and {max(numbers)} kernels"
    if len({tuple(phase.counts for phase in phases_of(capture)) for capture in captures}) > 1:
        return "another phase of the program is the longest"
    return None


def phases_of(capture: Document) -> Sequence[ProgramPhase]:
    """Return the phases of the program on the rank where a step is longest; empty without any."""
    phases = capture.headline.phases
    return () if isinstance(phases, UnsetType) else phases


class Series(Record, frozen=True):
    """The steps of one side."""

    # float64[n, 5] of each recording: steps by `COLUMNS`, means over the ranks
    captures: tuple[Float64, ...]
    # float64[n] of each recording, steady steps of the rank where their mean is longest
    lengths: tuple[Float64, ...]
    # by column and cause, of the mean step in ns: over the ranks' steady steps, over ranks, over
    # recordings. The parts sum to `window_ns`, the causes to `idle_ns`
    means: Mapping[str, int]
    num_left_out: int  # the other steps of that rank
    has_steps: bool  # whether every recording has steps
    slow: tuple[Counter[str], ...] = ()  # slow steady steps of each recording, by cause

    @property
    def num_steps(self) -> int:
        """The number of steps that are compared, over all recordings."""
        return sum(map(len, self.lengths)) if self.has_steps else 0

    @property
    def step_ns(self) -> float:
        """Return the mean step, or the mean of the means of several recordings."""
        return sum(float(lengths.mean()) for lengths in self.lengths) / len(self.lengths)

    @property
    def usual_idle_ns(self) -> float:
        """The median idle time of steps of the commonest kind, of one recording."""
        rows = self.captures[0]
        usual = commonest(rows[:, 0])
        return float(median_of(rows[usual, COLUMNS.index("idle_ns")]))

    @property
    def trend_ns(self) -> float:
        """How much longer or shorter the steps of a recording's second half are; 0 if uncertain."""
        if not self.has_steps:
            return 0.0
        changes = [(trend(lengths) or 0.0) * float(lengths.mean()) for lengths in self.lengths]
        return max(map(abs, changes))

    @property
    def median_ns(self) -> float | None:
        """Return the median step, or the mean of the medians of recordings; None without steps."""
        if not self.has_steps:
            return None
        return sum(float(median_of(lengths)) for lengths in self.lengths) / len(self.lengths)


def series(captures: Captures) -> Series:
    """Return the steps of a side, from its recordings."""
    has_steps = all(any(totals.num_steps for totals in c.step_totals) for c in captures)
    exact = [mean_step(capture.step_totals, has_steps=has_steps) for capture in captures]
    if has_steps:
        rows = tuple(map(_rows, captures))
    else:  # all time that findings judge is one step
        rows = tuple(np.array([[means[name] for name in COLUMNS]], np.float64) for means in exact)
    mean = {name: sum(times[name] for times in exact) / len(exact) for name in exact[0]}
    lengths, slow, left_out = [], [], 0
    for capture in captures:
        slowest = _slowest_rank(capture, has_steps=has_steps)
        steady, num_others = _steady(capture, slowest, has_steps=has_steps)
        lengths.append(steady)
        left_out += num_others
        of_rank = [one for one in capture.slow_steps if slowest and one.rank == slowest.rank]
        slow.append(Counter(step.cause for step in of_rank if step.counts))
    return Series(rows, tuple(lengths), in_whole_ns(mean), left_out, has_steps, tuple(slow))


def unrecorded(captures: Captures) -> Series | None:
    """Return the steps of a side that ran before its recordings; None if one has none.

    They are those of the rank on which they are longest.
    """
    lengths = []
    for capture in captures:
        timed = [one.unrecorded_ns for report in capture.reports for one in report.timed]
        if not any(timed):
            return None
        lengths.append(np.array(max(filter(None, timed), key=np.mean), np.float64))
    return Series(tuple(lengths), tuple(lengths), {}, 0, has_steps=True)


def training_steps(capture: Document, rank: int) -> int:
    """Return how many steps of a rank findings are about; 1 without steps."""
    spans = {span.rank: span for span in capture.training}
    span = spans.get(rank)
    num = sum(
        step.rank == rank
        and (span is None or (span.start_ns <= step.start_ns and step.end_ns <= span.end_ns))
        for step in capture.steps
    )
    return max(num, 1)


def _slowest_rank(capture: Document, *, has_steps: bool) -> StepTotals | None:
    totals = [rank for rank in capture.step_totals if rank.num_steps or not has_steps]
    mean_ns = {rank.rank: rank.window_ns / max(rank.num_steps, 1) for rank in totals}
    return max(totals, key=lambda rank: (mean_ns[rank.rank], -rank.rank), default=None)


def _steady(
    capture: Document, slowest: StepTotals | None, *, has_steps: bool
) -> tuple[Float64, int]:
    """Return the steady steps of the rank whose step takes longest, and how many others it has.

    Without steps all that is judged is one. The lengths are float64[n]; steps of other phases of
    the program are not counted.
    """
    if slowest is None:
        return np.zeros(1), 0
    if not has_steps:
        return np.array([slowest.window_ns], np.float64), 0
    steps = [step for step in capture.steps if step.rank == slowest.rank]
    steady = [steps[place] for place in slowest.steps]
    lengths = np.array([step.window_ns for step in steady], np.float64)
    return lengths, sum(step.phase == steady[0].phase for step in steps) - len(steady)


def _rows(capture: Document) -> Float64:
    """Return the steps that all ranks have, the means over the ranks, float64[n, 5]."""
    by_rank = by_key(capture.steps, lambda step: step.rank)
    keyed = [
        _by_number([by_rank[totals.rank][place] for place in totals.steps])
        for totals in capture.step_totals
        if totals.num_steps
    ]
    shared = set(keyed[0]).intersection(*keyed[1:])
    least = min(map(len, keyed))
    if 2 * len(shared) > least:
        chosen = [[steps[key] for key in steps if key in shared] for steps in keyed]
    else:  # numbers that do not agree
        chosen = [list(steps.values())[:least] for steps in keyed]
    arrays = [
        np.array([[getattr(step, name) for name in COLUMNS] for step in steps], np.float64)
        for steps in chosen
    ]
    return np.mean(arrays, axis=0)


def _by_number(steps: Iterable[Step]) -> dict[tuple[int, int], Step]:
    counts: Counter[int] = Counter()
    chosen = {}
    for step in steps:
        chosen[step.step, counts[step.step]] = step
        counts[step.step] += 1
    return chosen
