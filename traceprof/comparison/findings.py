"""Findings of two sides: gone, new, better, worse or unknown, with predicted and actual gains."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceprof.analyses.registry import FINDINGS
from traceprof.comparison.series import training_steps
from traceprof.documents.comparison import FindingChange
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.documents.analysis.model import Document
    from traceprof.documents.comparison import PartChange, Status
    from traceprof.findings import Finding

MIN_CHANGE = 0.01  # of a step: less is noise between two runs
_JUDGED = ("better", "worse")
_PARTS = {"exposed copies": "exposed copy"}  # of a rank's time, where a comparison names it so


class _Claim(Record, frozen=True):
    """A finding of one side, on the rank where it costs most."""

    finding: Finding  # of the recording in which it costs most
    ns: float  # what it costs per step, the mean over recordings
    ranks: frozenset[int | None] = frozenset()  # all that have it


def findings(
    before: Sequence[Document],
    after: Sequence[Document],
    step_ns: float,
    parts: Sequence[PartChange],
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
        missing = before if old is None else after if new is None else ()
        named = old or new
        ranks = named.ranks if named else frozenset()
        is_known = not any(may_hide(capture, id_, ranks) for capture in missing)
        change = _change(id_, old, new, step_ns, is_known=is_known)
        part = FINDINGS[id_].part if id_ in FINDINGS else None
        low, high = unsure.get(_PARTS.get(part or "", part), (0, 0))
        # The part is a mean over ranks: one rank's may have changed by more.
        if change.status in _JUDGED and low <= -(change.came_ns or 0) <= high:
            change.status = "same"
        changes.append(change)
    return changes


def may_hide(capture: Document, id_: str, ranks: frozenset[int | None] | None = None) -> bool:
    """Return whether a recording without a finding may hide it.

    `ranks`: where the finding would be; None for any.
    """
    return bool(capture.lost_reports) or any(
        gap.id == id_ and (ranks is None or gap.rank is None or gap.rank in ranks or None in ranks)
        for gap in capture.not_applicable
    )


def costs(captures: Sequence[Document]) -> dict[str, float]:
    """Return the cost per step of each finding of a side in ns, by id."""
    return {id_: claim.ns for id_, claim in _claims(captures).items()}


def _claims(captures: Sequence[Document]) -> dict[str, _Claim]:
    worst: dict[str, _Claim] = {}
    total: dict[str, float] = {}
    ranks: defaultdict[str, set[int | None]] = defaultdict(set)
    for capture in captures:
        steps = {rank.rank: training_steps(capture, rank.rank) for rank in capture.ranks}
        of_capture: dict[str, _Claim] = {}
        for finding in capture.findings:
            ranks[finding.id].add(finding.rank)
            claim = _Claim(finding, _per_step(finding, steps.get(finding.rank, 1)))
            known = of_capture.get(finding.id)
            if known is None or known.ns < claim.ns:
                of_capture[finding.id] = claim
        for id_, claim in of_capture.items():
            total[id_] = total.get(id_, 0.0) + claim.ns
            if id_ not in worst or worst[id_].ns < claim.ns:
                worst[id_] = claim
    return {
        id_: _Claim(claim.finding, total[id_] / len(captures), frozenset(ranks[id_]))
        for id_, claim in worst.items()
    }


def _per_step(finding: Finding, num_steps: int) -> float:
    """Return the cost of a finding in the mean step, from its own numbers if it has them."""
    of_steady = finding.metrics.get("per_step_ns")
    return of_steady if isinstance(of_steady, int) else finding.impact_ns / num_steps


def _change(
    id_: str, before: _Claim | None, after: _Claim | None, step_ns: float, *, is_known: bool
) -> FindingChange:
    before_ns, after_ns = (None if claim is None else round(claim.ns) for claim in (before, after))
    came = (before_ns or 0) - (after_ns or 0) if is_known else None
    named = after or before
    return FindingChange(
        id=id_,
        status=_status(before, after, step_ns) if is_known else "unknown",
        before_ns=before_ns,
        after_ns=after_ns,
        severity_before=None if before is None else before.finding.severity,
        severity_after=None if after is None else after.finding.severity,
        predicted=None if before is None else before.finding.saving,
        came_ns=None if before is None else came,
        title="" if named is None else named.finding.title,
    )


def _status(before: _Claim | None, after: _Claim | None, step_ns: float) -> Status:
    if after is None:
        return "gone"
    if before is None:
        return "new"
    change = after.ns - before.ns
    if abs(change) < MIN_CHANGE * step_ns:
        return "same"
    return "worse" if change > 0 else "better"
