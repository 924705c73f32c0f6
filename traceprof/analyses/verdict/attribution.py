"""Who owns the time in which a rank does not compute: a finding, or a sentence that says why not.

Owned is each of exposed communication, exposed copies and idle time that makes a share of what is
judged that is worth a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.findings import Finding, NotApplicable, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult

MIN_OWNED = 0.03
"""Of what is judged: from there on somebody owns it."""
MIN_BY_FINDING = 0.10
"""From there on it is a finding."""

_PARTS = (
    ("exposed_communication_ns", "exposed communication", "exposed-communication"),
    ("exposed_copy_ns", "exposed copies", "exposed-copy"),
    ("idle_ns", "idle", "gpu-idle"),
)
_BELOW_A_FINDING = (
    "no finding was asked for or made of it: its parts stay below what a change can be told by"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a part of a rank's time.

    Attributes:
        rank: the rank's number.
        part: `exposed communication`, `exposed copies` or `idle`.
        part_ns: how long it is.
        fraction: of what is judged, 0 to 1.
        finding: the id of the finding that owns it, None where a sentence does.
        sentence: what it was, and why there is nothing to do, where no finding owns it.
    """

    rank: int
    part: str
    part_ns: int
    fraction: float
    finding: str | None
    sentence: str | None


def owners(
    results: Sequence[BreakdownResult],
    findings: Sequence[Finding],
    missing: Sequence[NotApplicable],
) -> list[Owner]:
    """Return who owns each part that is worth a word, the costliest of each rank first.

    Args:
        results: where the time of the ranks went.
        findings: of the run.
        missing: what could not be judged, and why.
    """
    claimed = {(finding.id, finding.rank) for finding in findings}
    reasons = {(gap.id, gap.rank): gap.reason for gap in missing}
    owned: list[Owner] = []
    for result in results:
        of_rank = []
        for measure, part, id_ in _PARTS:
            part_ns = int(getattr(result.judged, measure))
            fraction = share(part_ns, result.judged.window_ns)
            if fraction < MIN_OWNED:
                continue
            is_made = (id_, result.rank) in claimed
            why = reasons.get((id_, result.rank)) or reasons.get((id_, None))
            sentence = None if is_made else why or _BELOW_A_FINDING
            finding = id_ if is_made else None
            of_rank.append(Owner(result.rank, part, part_ns, fraction, finding, sentence))
        owned += sorted(of_rank, key=lambda owner: -owner.part_ns)
    return owned
