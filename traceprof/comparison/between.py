"""How much recordings of one unchanged program differ, by part of the step.

One recording a side does not show it. It is taken from runs that were stored before, else from a
table of what reruns and windows of unchanged programs were measured to differ by. A part's length
varies by factors: its logarithm has the standard deviation of the table. What depends on disks,
networks and other processes may be 0 in one run, so a tenth of the step is added to it first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from traceprof.analyses.steps import CAUSES, COLUMNS, PARTS
from traceprof.comparison.series import Captures, Series, series
from traceprof.documents.comparison import Spread
from traceprof.intervals import Float64
from traceprof.run.mean_change import (
    LEVEL,
    Interval,
    MeanChange,
    mean_change,
    of_captures,
    t_quantile,
)
from traceprof.structs import Record

# Standard deviations of logarithms, of windows of 19 recordings and of reruns: three quarters of
# them differ by no more (docs/compare.md has them all).
STEADY = {
    "compute_ns": 0.005,
    "exposed_communication_ns": 0.06,
    "exposed_copy_ns": 0.12,
    "launch_bound_ns": 0.04,
    "turnaround_ns": 0.03,
    "sync_ns": 0.2,
}
VARYING = 0.7
"""The same of all other causes of idle time: loading, MPI, stalls, unknown ones."""
MIN_RUNS = 3
"""Stored runs from which the spread is taken instead."""
_FLOOR = 0.1  # of the step
_MIN_SHARE = 0.01  # of the step: less of a varying part is no matter
_LEAST_NS = 1000  # what is less does not vary
_NORMAL = 1.96
_MAX_RATIO = 1e6  # an interval that reaches further says nothing
NAMES = tuple(name for name in (*PARTS, *CAUSES) if name != "idle_ns")


class BothSides(Record, frozen=True):
    """The steps of both sides."""

    before: Series
    after: Series
    spread: Sequence[Spread] = ()  # by part; empty where two recordings are judged alone

    @property
    def has_steps(self) -> bool:
        """Whether every recording of both sides has steps."""
        return self.before.has_steps and self.after.has_steps

    @property
    def is_single(self) -> bool:
        """Whether each side is one recording."""
        return len(self.before.captures) == len(self.after.captures) == 1

    def change(self, column: str = "window_ns", unit: str = "%") -> MeanChange | None:
        """Return the change of a column of the mean step in a gate's unit; None if a share of 0."""
        before, after = self.before, self.after
        sides = [_values(column, unit, side) for side in (before, after)]
        of_recordings = [[float(values.mean()) for values in side] for side in sides]
        means = [sum(values) / len(values) for values in of_recordings]
        is_share = unit == "%"
        if is_share and means[0] <= 0:
            return None
        scale = 100 / means[0] if is_share else 1.0
        if not self.has_steps:
            return MeanChange(scale * (means[1] - means[0]), None, None)
        if self.is_single:
            (old,), (new,) = sides
            lengths = old, new
            if column != "window_ns":
                lengths = before.captures[0][:, 0], after.captures[0][:, 0]
            return mean_change(scale * old, scale * new, lengths, is_share=is_share)
        interval = _over_recordings(of_recordings, in_shares=is_share)
        return MeanChange(scale * (means[1] - means[0]), interval, None)

    def beyond(
        self,
        interval: Interval,
        column: str = "window_ns",
        unit: str = "%",
        *,
        of_usual: bool = False,
    ) -> Interval | None:
        """Widen an interval by the variation between recordings; None if that is measured.

        `interval`: of a column, over the steps of one recording on each side, in a gate's unit.
        `of_usual`: whether it is the usual step's, which includes a trend within a recording.
        """
        before, after = self.before, self.after
        if not self.spread or not self.is_single or not before.has_steps:
            return None
        whole_ns = before.means["window_ns" if unit == "pp" else column]
        scale = 1.0 if unit == "ns" else 100 / max(whole_ns, 1)
        # What changes within a recording may differ between two as much.
        has_trend = column == "window_ns" and not of_usual
        trend_ns = max(before.trend_ns, after.trend_ns) if has_trend else 0.0
        means = [_usual(side) if of_usual else side.means for side in (before, after)]
        ends = reach(means[0], means[1], self.spread, column)
        middle, half = sum(interval) / 2, (interval.high - interval.low) / 2
        low, high = (math.hypot(half, scale * end, scale * trend_ns) for end in ends)
        # No part falls by more than all of it.
        return Interval(max(middle - low, -scale * before.means[column]), middle + high)

    @property
    def widest(self) -> str:
        """The part whose usual spread reaches furthest against the measured change."""
        before, after = self.before.means, self.after.means
        is_less = after["window_ns"] < before["window_ns"]
        ends = [
            _of_part(before, after, name, one.deviation)[is_less]
            for name, one in zip(NAMES, self.spread, strict=True)
        ]
        return _part(NAMES[int(np.argmax(ends))])  # there is always a part


def spreads(runs: Captures = ()) -> list[Spread]:
    """Return the variation of each part between recordings of one program.

    `runs`: analyses of the unchanged program; the built-in table is used for fewer than three.
    """
    if len(runs) < MIN_RUNS:
        return [Spread(_part(name), STEADY.get(name, VARYING), "table") for name in NAMES]
    means = [series([run]).means for run in runs]
    # Few runs tell their spread badly: the quantile is Student's.
    wider = t_quantile((1 + LEVEL) / 2, len(runs) - 1) / _NORMAL
    found = []
    for name in NAMES:
        values = np.log(
            [max(mean[name] + _floor(name, mean["window_ns"]), _LEAST_NS) for mean in means]
        )
        found.append(Spread(_part(name), wider * float(values.std(ddof=1)), "runs"))
    return found


def reach(
    before: Mapping[str, int],
    after: Mapping[str, int],
    spread: Sequence[Spread],
    column: str = "window_ns",
) -> Interval:
    """Return how far a change may be below and above the measured one, both in ns.

    Both ends of each part are moved, so that its logarithm changes by 1.96 standard deviations of
    a difference; the parts vary independently. Where most of the change lies in steady parts, those
    that vary neither make nor hide it: at most what they changed by is not the program's.

    `before`, `after`: the mean step by part and cause, in ns. `column`: a part, or the whole step.
    """
    chosen = [
        (name, one)
        for name, one in zip(NAMES, spread, strict=True)
        if column in {"window_ns", name} or (column == "idle_ns" and name in CAUSES)
    ]
    ends = {name: _of_part(before, after, name, one.deviation) for name, one in chosen}
    steady, varying = (
        [name for name in ends if (name in STEADY) is is_steady] for is_steady in (True, False)
    )
    steady_ns, varying_ns = (
        abs(sum(after[name] - before[name] for name in names)) for names in (steady, varying)
    )
    low, high = (math.hypot(*(ends[name][side] for name in ends)) for side in (0, 1))
    if steady_ns > varying_ns and all(one.source == "table" for one in spread):
        low, high = (
            min(end, math.hypot(*(ends[name][side] for name in steady)) + varying_ns)
            for side, end in enumerate((low, high))
        )
    return Interval(-low, high)


def _usual(side: Series) -> dict[str, int]:
    """Return the mean step of a recording with the idle time of its usual steps.

    What recurs in each step is in these, too: causes that vary have only the rest of their time.
    """
    steady = [name for name in CAUSES if name in STEADY]
    rest_ns = max(side.usual_idle_ns - sum(side.means[name] for name in steady), 0.0)
    varying = {name: side.means[name] for name in CAUSES if name not in STEADY}
    share = min(rest_ns / max(sum(varying.values()), 1), 1.0)
    return {**side.means, **{name: round(share * ns) for name, ns in varying.items()}}


def _over_recordings(sides: Sequence[Sequence[float]], *, in_shares: bool) -> Interval | None:
    """Return the interval over recordings, given by their means; shares in hundredths."""
    if not in_shares:
        return of_captures(*sides)
    if min(map(min, sides)) <= 0:
        return None
    # Machines differ by shares: of logarithms, differences are shares.
    interval = of_captures(*([math.log(value) for value in side] for side in sides))
    if interval is None or interval.high > math.log(_MAX_RATIO):
        return None
    return Interval(*(100 * math.expm1(end) for end in interval))


def _values(column: str, unit: str, side: Series) -> Sequence[Float64]:
    """Return the values of the steps of each recording, float64[n] each.

    Shares of a step are those of the mean step; a step's part in their noise is that of a ratio.
    """
    if column == "window_ns":
        return side.lengths
    parts = [rows[:, COLUMNS.index(column)] for rows in side.captures]
    if unit != "pp":
        return parts
    values = []
    for part, rows in zip(parts, side.captures, strict=True):
        mean = float(rows[:, 0].mean())
        share = float(part.mean()) / mean if mean else 0.0
        values.append(100 * (share + (part - share * rows[:, 0]) / (mean or 1.0)))
    return values


def _of_part(
    before: Mapping[str, int], after: Mapping[str, int], name: str, deviation: float
) -> tuple[float, float]:
    """Return how far the change of a part may lie below and above the measured one, in ns."""
    step_ns = (before["window_ns"] + after["window_ns"]) / 2
    if name not in STEADY and max(before[name], after[name]) < _MIN_SHARE * step_ns:
        return 0.0, 0.0
    floor = _floor(name, step_ns)
    old, new = before[name] + floor, after[name] + floor
    factor = math.exp(_NORMAL * deviation * math.sqrt(2) / 2)
    change = new - old
    return change - (new / factor - old * factor), new * factor - old / factor - change


def _floor(name: str, step_ns: float) -> float:
    return 0.0 if name in STEADY else _FLOOR * step_ns


def _part(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")
