"""Findings and headline of two sides: gone, new, better, worse; gains as predicted and measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from traceprof.analyses.gpu_idle import CAUSES
from traceprof.analyses.registry import FINDINGS
from traceprof.comparison.between import BothSides
from traceprof.comparison.gates import SAME
from traceprof.comparison.series import Captures, training_steps
from traceprof.documents.analysis.model import Document
from traceprof.documents.comparison import (
    Comparison,
    FindingChange,
    PartChange,
    Status,
    Step,
    Verdict,
)
from traceprof.findings import Finding
from traceprof.host.idle_causes import IdleCause
from traceprof.run.mean_change import LEVEL, MIN_STEPS, Interval, steps_to_find
from traceprof.structs import Record
from traceprof.units import signed_duration

MIN_CHANGE = 0.01  # of a step: less is noise between two runs
_JUDGED = ("better", "worse")
_PARTS = {"exposed copies": "exposed copy"}  # of a rank's time, where a comparison names it so


class _Claim(Record, frozen=True):
    """A finding of one side, on the rank where it costs most."""

    finding: Finding  # of the recording in which it costs most
    ns: float  # what it costs per step, the mean over recordings
    ranks: frozenset[int | None] = frozenset()  # all that have it


_cost_ns = attrgetter("ns")


def findings(
    before: Captures, after: Captures, step_ns: float, parts: Sequence[PartChange]
) -> list[FindingChange]:
    """Return the change of each finding, in the order of the findings before, then new ones.

    `step_ns`: the mean step before. `parts`: changes of the mean step. A finding about one of
    these is neither better nor worse if the part's interval contains both zero and the
    finding's change.
    """
    unsure: dict[str | None, tuple[int, int]] = {
        row.part: (row.low_ns, row.high_ns)
        for row in parts
        if row.low_ns is not None and row.high_ns is not None and row.low_ns <= 0 <= row.high_ns
    }
    sides = [_claims(side) for side in (before, after)]
    changes = []
    for id_ in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = sides[0].get(id_), sides[1].get(id_)
        named = new or sides[0][id_]
        missing = before if old is None else after if new is None else ()
        is_known = not any(may_hide(capture, id_, named.ranks) for capture in missing)
        status = _status(old, new, step_ns) if is_known else "unknown"
        old_ns, new_ns = (None if claim is None else round(claim.ns) for claim in (old, new))
        came_ns = (old_ns or 0) - (new_ns or 0)
        part = FINDINGS[id_].part if id_ in FINDINGS else None
        low, high = unsure.get(_PARTS.get(part or "", part), (0, 0))
        # The part is a mean over ranks: one rank's may have changed by more.
        if status in _JUDGED and low <= -came_ns <= high:
            status = "same"
        changes.append(
            FindingChange(
                id=id_,
                status=status,
                before_ns=old_ns,
                after_ns=new_ns,
                severity_before=None if old is None else old.finding.severity,
                severity_after=None if new is None else new.finding.severity,
                predicted=None if old is None else old.finding.saving,
                came_ns=None if old is None or not is_known else came_ns,
                title=named.finding.title,
            )
        )
    return changes


def may_hide(capture: Document, id_: str, ranks: frozenset[int | None] | None = None) -> bool:
    """Return whether a recording without a finding may hide it on some `ranks`; None for any."""
    return bool(capture.lost_reports) or any(
        gap.id == id_ and (ranks is None or gap.rank is None or gap.rank in ranks or None in ranks)
        for gap in capture.not_applicable
    )


def costs(captures: Captures) -> dict[str, float]:
    """Return the cost per step of each finding of a side in ns, by id."""
    return {id_: claim.ns for id_, claim in _claims(captures).items()}


def _claims(captures: Captures) -> dict[str, _Claim]:
    by_id: defaultdict[str, list[_Claim]] = defaultdict(list)
    ranks: defaultdict[str, set[int | None]] = defaultdict(set)
    for capture in captures:
        steps = {rank.rank: training_steps(capture, rank.rank) for rank in capture.ranks}
        worst: dict[str, _Claim] = {}
        for finding in capture.findings:
            ranks[finding.id].add(finding.rank)
            # Of one that lies mostly in another phase, in the mean of the steps of all phases.
            ns = finding.metrics.get("per_step_ns") if finding.elsewhere is None else None
            if not isinstance(ns, int):
                ns = finding.impact_ns / steps.get(finding.rank, 1)
            claim = _Claim(finding, ns)
            worst[finding.id] = max(worst.get(finding.id, claim), claim, key=_cost_ns)
        for id_, claim in worst.items():
            by_id[id_].append(claim)
    return {
        id_: _Claim(
            max(claims, key=_cost_ns).finding,
            sum(map(_cost_ns, claims)) / len(captures),
            frozenset(ranks[id_]),
        )
        for id_, claims in by_id.items()
    }


def _status(before: _Claim | None, after: _Claim | None, step_ns: float) -> Status:
    if after is None:
        return "gone"
    if before is None:
        return "new"
    change = after.ns - before.ns
    if abs(change) < MIN_CHANGE * step_ns:
        return "same"
    return "worse" if change > 0 else "better"


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


def to_decide(step: Step, sides: BothSides) -> str | None:
    """Return what to record where the verdict is open; None where it is not."""
    if step.verdict == "differs":
        return _THREE
    if step.verdict != "inconclusive":
        return None
    if step.basis == "training":
        return "Name the range around a step (--step-pattern)"
    if step.basis == "captures":
        numbers = [len(side.captures) for side in (sides.before, sides.after)]
        return f"Record more a side than {numbers[0]} and {numbers[1]}"
    return _steps_to_record(step, sides)


def _steps_to_record(step: Step, sides: BothSides) -> str:
    lengths = sides.before.lengths[0], sides.after.lengths[0]
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
    alike = sides.beyond(Interval(100 * size, 100 * size))
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
    return signed_duration(change_ns) if change_ns else "0 ns"


def exact(length_ns: int) -> str:
    """Write a step's length with a digit more than usual: changes of a per cent need it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if length_ns >= size:
            value = length_ns / size
            return f"{value:.{max(3 - len(str(int(value))), 0) + 1}f} {unit}"
    return f"{length_ns} ns"
