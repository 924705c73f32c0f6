"""Limits that a comparison must keep: `step:+2%`, `exposed-communication:+1pp`, `finding:ID`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.steps import COLUMNS
from traceprof.comparison.between import reach, usual
from traceprof.comparison.series import Captures, Series
from traceprof.documents.comparison import GateResult, Outcome, Spread
from traceprof.errors import UsageError, closest
from traceprof.findings import Severity
from traceprof.intervals import Float64
from traceprof.run.mean_change import Interval, MeanChange, mean_change, of_captures
from traceprof.structs import Record
from traceprof.units import parse_time, signed_duration

SAME = 0.01
"""A step is the same where the interval lies within this fraction of it."""
METRICS = {
    "step": "window_ns",
    "compute": "compute_ns",
    "exposed-communication": "exposed_communication_ns",
    "exposed-copy": "exposed_copy_ns",
    "idle": "idle_ns",
}
"""What a gate can limit: its column of a step."""
_LIMIT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*(%|pp|ns|us|µs|ms|s)\s*")
_MAX_RATIO = 1e6  # an interval that reaches further says nothing
FINDING = "finding"
_FORMS = "write METRIC:LIMIT, such as step:+2%, idle:+0.5ms or exposed-communication:+1pp"


class GateLimit(Record, frozen=True):
    """A limit as the user gave it."""

    text: str  # as it was written
    column: str  # of a step, which is measured; empty of a finding
    limit: float = 0.0  # how much it may grow; a negative one says how much it must fall
    unit: str = ""  # `%` of before, `pp` (hundredths of a step), `ns`; empty of a finding
    finding: str = ""  # the id of the finding that must not be there


def parse(text: str) -> GateLimit:
    """Read a gate as users write it; a `UsageError` names an unknown metric, finding or unit."""
    metric, colon, limit = (part.strip() for part in text.partition(":"))
    what = f"cannot read the gate {text!r}"
    if metric == FINDING:
        if limit not in FINDING_IDS:
            near = closest(limit, FINDING_IDS)
            remedy = f"did you mean {near}?" if near else f"choose one of {', '.join(FINDING_IDS)}"
            raise UsageError(what, f"there is no finding {limit!r}", remedy)
        return GateLimit(text, "", finding=limit)
    if metric not in METRICS:
        known = [*METRICS, FINDING]
        near = closest(metric, known)
        remedy = f"{f'did you mean {near}? ' if near else ''}choose one of {', '.join(known)}"
        raise UsageError(what, f"there is no metric {metric!r}", remedy)
    match = _LIMIT.fullmatch(limit) if colon else None
    if match is None:
        raise UsageError(what, "it has no limit with a unit (%, pp, ns, us, ms, s)", _FORMS)
    number, unit = match.groups()
    if unit == "pp" and metric == "step":
        raise UsageError(what, "a step has no share of itself", "write step:+2% or step:+1ms")
    if unit in {"%", "pp"}:
        return GateLimit(text, METRICS[metric], float(number), unit)
    return GateLimit(text, METRICS[metric], float(parse_time(f"{number}{unit}")), "ns")


def judged(
    gate: GateLimit,
    before: Series,
    after: Series,
    captures_after: Captures,
    reasons: Sequence[str] = (),
    spread: Sequence[Spread] = (),
    unknown: str | None = None,
) -> GateResult:
    """Return whether a gate is met: the upper end of its interval must keep the limit.

    `reasons`: why the sides are not comparable; every gate fails then. `spread`: variation
    between recordings of one program; empty if two are judged alone. `unknown`: why the parts of
    the step are unknown.
    """
    if gate.finding:
        result = _judged_finding(gate, captures_after)
    else:
        result = _judged(gate, before, after, spread)
    if unknown is not None:
        result.outcome, result.reason = "inconclusive", f"unknown: {unknown}"
    if reasons:
        result.outcome, result.reason = "not met", f"not comparable: {'; '.join(reasons)}"
    return result


def _judged(gate: GateLimit, before: Series, after: Series, spread: Sequence[Spread]) -> GateResult:
    change = change_of(gate.column, gate.unit, before, after)
    if change is None or change.judged is None:
        value = None if change is None else change.change
        why = "it was 0 before" if change is None else "there is no interval: see the notes"
        return GateResult(gate.text, "inconclusive", value, None, None, gate.limit, gate.unit, why)
    low, high = change.judged
    allowed = _written(gate.limit, gate.unit)
    mix = "" if change.at_same_mix is None else " at the same mix of steps"
    span = f"{_written(low, gate.unit)} to {_written(high, gate.unit)}{mix}"
    value = change.change if change.at_same_mix is None else change.at_same_mix.change
    outcome: Outcome
    between = beyond(change.judged, before, after, spread, gate.column, gate.unit)
    is_chance = between is not None and between.low <= 0 <= between.high
    size = SAME * before.means["window_ns"] if gate.unit == "ns" else 100 * SAME
    is_same = max(-low, high) <= size and gate.limit >= max(high, 0)
    if not low <= 0 <= high and is_chance and not is_same:
        outcome = "inconclusive"
        why = f"{span}: runs of one program differ so, record three a side"
    elif high <= gate.limit:
        outcome, why = "met", f"{span} keeps {allowed}"
    elif low > gate.limit:
        outcome, why = "not met", f"{span} is beyond {allowed}"
    else:
        outcome, why = "inconclusive", f"{span} may be beyond {allowed}: record more steps"
    return GateResult(gate.text, outcome, value, low, high, gate.limit, gate.unit, why)


def change_of(column: str, unit: str, before: Series, after: Series) -> MeanChange | None:
    """Return the change of a column of the mean step, in a gate's unit; None if a share of zero."""
    sides = [_values(column, unit, side) for side in (before, after)]
    of_recordings = [[float(values.mean()) for values in side] for side in sides]
    means = [sum(values) / len(values) for values in of_recordings]
    is_share = unit == "%"
    if is_share and means[0] <= 0:
        return None
    scale = 100 / means[0] if is_share else 1.0
    if not (before.has_steps and after.has_steps):
        return MeanChange(scale * (means[1] - means[0]), None, None)
    if len(before.captures) == len(after.captures) == 1:
        (old,), (new,) = sides
        lengths = old, new
        if column != "window_ns":
            lengths = before.captures[0][:, 0], after.captures[0][:, 0]
        return mean_change(scale * old, scale * new, lengths, is_share=is_share)
    interval = _over_recordings(of_recordings, in_shares=is_share)
    return MeanChange(scale * (means[1] - means[0]), interval, None)


def beyond(
    interval: Interval,
    before: Series,
    after: Series,
    spread: Sequence[Spread],
    column: str = "window_ns",
    unit: str = "%",
    *,
    of_usual: bool = False,
) -> Interval | None:
    """Widen an interval by the variation between recordings; None if that is measured.

    `interval`: of a column, over the steps of one recording on each side, in a gate's unit.
    `spread`: by part; empty if no variation is known. `of_usual`: whether the interval is the usual
    step's, which includes a trend within a recording already.
    """
    if not spread or len(before.captures) > 1 or len(after.captures) > 1 or not before.has_steps:
        return None
    whole_ns = before.means["window_ns" if unit == "pp" else column]
    scale = 1.0 if unit == "ns" else 100 / max(whole_ns, 1)
    # What changes within a recording may differ between two as much.
    has_trend = column == "window_ns" and not of_usual
    trend_ns = max(before.trend_ns, after.trend_ns) if has_trend else 0.0
    means = [usual(side) if of_usual else side.means for side in (before, after)]
    ends = reach(means[0], means[1], spread, column)
    middle, half = sum(interval) / 2, (interval.high - interval.low) / 2
    low, high = (math.hypot(half, scale * end, scale * trend_ns) for end in ends)
    # No part falls by more than all of it.
    return Interval(max(middle - low, -scale * before.means[column]), middle + high)


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


def _judged_finding(gate: GateLimit, captures: Captures) -> GateResult:
    """The finding must be absent; findings of severity `info` are allowed."""
    findings = [
        finding
        for capture in captures
        for finding in capture.findings
        if finding.id == gate.finding and finding.severity > Severity.INFO
    ]
    missing = [
        gap for capture in captures for gap in capture.not_applicable if gap.id == gate.finding
    ]
    if findings:
        worst = max(findings, key=lambda finding: finding.impact_ns)
        why = f"{worst.severity}, rank {worst.rank}: {worst.title}"
        return GateResult(gate.text, "not met", float(len(findings)), None, None, 0.0, "", why)
    if missing:
        why = f"it can be neither found nor ruled out: {missing[0].reason}"
        return GateResult(gate.text, "not met", None, None, None, 0.0, "", why)
    why = "it is not there, or reports no fault"
    return GateResult(gate.text, "met", 0.0, None, None, 0.0, "", why)


def _written(value: float, unit: str) -> str:
    if unit == "ns":
        return signed_duration(round(value))
    return f"{value:+.2f} {unit}"
