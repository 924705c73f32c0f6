"""Limits that a comparison must keep: `step:+2%`, `exposed-communication:+1pp`, `finding:ID`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceprof.analyses.registry import FINDING_IDS
from traceprof.comparison.between import BothSides
from traceprof.comparison.series import Captures
from traceprof.documents.comparison import GateResult, Outcome
from traceprof.errors import UsageError, closest
from traceprof.findings import Severity
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
    sides: BothSides,
    captures_after: Captures,
    reasons: Sequence[str] = (),
    unknown: str | None = None,
) -> GateResult:
    """Return whether a gate is met: the upper end of its interval must keep the limit.

    `reasons`: why the sides are not comparable; every gate fails then. `unknown`: why the parts of
    the step are unknown.
    """
    result = _judged_finding(gate, captures_after) if gate.finding else _judged(gate, sides)
    if unknown is not None:
        result.outcome, result.reason = "inconclusive", f"unknown: {unknown}"
    if reasons:
        result.outcome, result.reason = "not met", f"not comparable: {'; '.join(reasons)}"
    return result


def _judged(gate: GateLimit, sides: BothSides) -> GateResult:
    change = sides.change(gate.column, gate.unit)
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
    between = sides.beyond(change.judged, gate.column, gate.unit)
    is_chance = between is not None and between.low <= 0 <= between.high
    size = SAME * sides.before.means["window_ns"] if gate.unit == "ns" else 100 * SAME
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
