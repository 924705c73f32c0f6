"""Limits that a comparison must keep: `step:+2%`, `exposed-communication:+1pp`, `finding:ID`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses.registry import FINDING_IDS
from traceprof.comparison.statistics import MIN_STEPS, Interval, of_captures, of_draws, of_few_steps
from traceprof.documents.comparison import GateResult
from traceprof.errors import UsageError, closest
from traceprof.findings import Severity
from traceprof.units import duration, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.comparison.series import Series
    from traceprof.comparison.statistics import Float64
    from traceprof.documents.analysis.model import Document
    from traceprof.documents.comparison import Outcome

# By the place of what they measure in a summary of steps.
METRICS = {"step": 0, "compute": 2, "exposed-communication": 3, "exposed-copy": 4, "idle": 5}
_MEAN = 1  # the mean step's place there
_LIMIT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*(%|pp|ns|us|µs|ms|s)\s*")
_MAX_RATIO = 1e6  # an interval that reaches further says nothing
_FINDING = "finding"
_FORMS = "write METRIC:LIMIT, such as step:+2%, idle:+0.5ms or exposed-communication:+1pp"


@dataclass(frozen=True)
class GateLimit:
    """A limit, as it was asked for.

    Attributes:
        text: as it was written.
        metric: what is measured, or `finding`.
        limit: how much it may grow; a negative one says how much it must fall.
        unit: `%` of before, `pp` (hundredths of a step), `ns`; empty of a finding.
        finding: the id of the finding that must not be there.
    """

    text: str
    metric: str
    limit: float = 0.0
    unit: str = ""
    finding: str = ""


def parse(text: str) -> GateLimit:
    """Read a gate as users write it.

    Raises:
        UsageError: there is no such metric, finding or unit.
    """
    metric, colon, limit = (part.strip() for part in text.partition(":"))
    what = f"cannot read the gate {text!r}"
    if metric == _FINDING:
        if limit not in FINDING_IDS:
            near = closest(limit, FINDING_IDS)
            remedy = f"did you mean {near}?" if near else f"choose one of {', '.join(FINDING_IDS)}"
            raise UsageError(what, f"there is no finding {limit!r}", remedy)
        return GateLimit(text, metric, finding=limit)
    if metric not in METRICS:
        known = [*METRICS, _FINDING]
        near = closest(metric, known)
        remedy = f"did you mean {near}?" if near else f"choose one of {', '.join(known)}"
        raise UsageError(what, f"there is no metric {metric!r}", remedy)
    match = _LIMIT.fullmatch(limit) if colon else None
    if match is None:
        raise UsageError(what, "it has no limit with a unit (%, pp, ns, us, ms, s)", _FORMS)
    number, unit = match.groups()
    if unit == "pp" and metric == "step":
        raise UsageError(what, "a step has no share of itself", "write step:+2% or step:+1ms")
    if unit in {"%", "pp"}:
        return GateLimit(text, metric, float(number), unit)
    return GateLimit(text, metric, float(parse_time(f"{number}{unit}")), "ns")


def judged(
    gate: GateLimit, before: Series, after: Series, captures_after: Sequence[Document]
) -> GateResult:
    """Say whether a gate is met: its interval's upper end must keep the limit.

    Args:
        gate: the limit.
        before: the steps of one side.
        after: those of the other.
        captures_after: the recordings of the other side.
    """
    if gate.finding:
        return _judged_finding(gate, captures_after)
    value = _value(gate, before.summary, after.summary)
    interval = change_interval(gate, before, after)
    if interval is None or value is None:
        why = "there is no interval: see the notes" if interval is None else "it was 0 before"
        return GateResult(gate.text, "inconclusive", value, None, None, gate.limit, gate.unit, why)
    low, high = interval
    allowed = _written(gate.limit, gate.unit)
    span = f"{_written(low, gate.unit)} to {_written(high, gate.unit)}"
    outcome: Outcome
    if high <= gate.limit:
        outcome, why = "met", f"{span} keeps {allowed}"
    elif low > gate.limit:
        outcome, why = "not met", f"{span} is beyond {allowed}"
    else:
        outcome, why = "inconclusive", f"{span} may be beyond {allowed}: record more steps"
    return GateResult(gate.text, outcome, value, low, high, gate.limit, gate.unit, why)


def change_interval(gate: GateLimit, before: Series, after: Series) -> Interval | None:
    """Return the interval of a change in the unit of a gate; None if it is unknown."""
    draws = before.drawn(0), after.drawn(1)
    if draws[0] is not None and draws[1] is not None:
        values = _values(gate, draws[0], draws[1])
        return of_draws(values) if math.isfinite(float(values.sum())) else None
    is_single = len(before.captures) == len(after.captures) == 1
    num_steps = min(before.num_steps, after.num_steps)
    if num_steps < MIN_STEPS and (is_single or not num_steps):
        return None
    if is_single:
        return _interval(gate, of_few_steps, before.of_steps, after.of_steps)
    return _interval(gate, of_captures, before.summaries, after.summaries)


def _interval(
    gate: GateLimit,
    over: Callable[[Sequence[float], Sequence[float]], Interval | None],
    before: Sequence[Float64],
    after: Sequence[Float64],
) -> Interval | None:
    """Return the interval over recordings, or steps, given by their summaries."""
    sides = [[_of_one(gate, summary) for summary in side] for side in (before, after)]
    if gate.unit != "%":
        return over(*sides)
    if min(map(min, sides)) <= 0:
        return None
    # Machines differ by shares: of logarithms, differences are shares.
    interval = over(*([math.log(value) for value in side] for side in sides))
    if interval is None or interval.high > math.log(_MAX_RATIO):
        return None
    return Interval(*(100 * math.expm1(end) for end in interval))


def _of_one(gate: GateLimit, summary: Float64) -> float:
    """Return what a gate is about, of one recording."""
    value = float(summary[METRICS[gate.metric]])
    return 100 * value / float(summary[_MEAN]) if gate.unit == "pp" else value


def _value(gate: GateLimit, before: Float64, after: Float64) -> float | None:
    value = float(_values(gate, before[None], after[None])[0])
    return value if math.isfinite(value) else None


def _values(gate: GateLimit, before: Float64, after: Float64) -> Float64:
    """Return changes in the unit of a gate, float64[n], of n summaries each, float64[n, 6]."""
    place = METRICS[gate.metric]
    with np.errstate(divide="ignore", invalid="ignore"):
        values: Float64
        if gate.unit == "pp":
            values = 100 * (after[:, place] / after[:, _MEAN] - before[:, place] / before[:, _MEAN])
        elif gate.unit == "%":
            values = 100 * (after[:, place] / before[:, place] - 1)
        else:
            values = after[:, place] - before[:, place]
    return values


def _judged_finding(gate: GateLimit, captures: Sequence[Document]) -> GateResult:
    """A finding must not be there; information that is no fault may."""
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
        return GateResult(gate.text, "inconclusive", None, None, None, 0.0, "", why)
    why = "it is not there, or reports no fault"
    return GateResult(gate.text, "met", 0.0, None, None, 0.0, "", why)


def _written(value: float, unit: str) -> str:
    if unit == "ns":
        return f"{'-' if value < 0 else '+'}{duration(round(abs(value)))}"
    return f"{value:+.2f} {unit}"
