"""Attribution of the time in which a rank does not compute, to findings or to a reason.

Each of exposed communication, exposed copies and idle time is attributed where it makes a
considerable share of what is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from msgspec import Struct

from traceprof import findings as f
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.registry import FINDINGS
from traceprof.run.guard import optional

MIN_ATTRIBUTED = 0.03
"""The share of what is judged from which on a part is attributed."""

MEASURES: dict[f.TimePart, str] = {
    "exposed communication": "exposed_communication_ns",
    "exposed copies": "exposed_copy_ns",
    "idle": "idle_ns",
}
"""Fields of `Measures`, by the part of the time."""
_BELOW_A_FINDING = (
    "no finding was requested or made for it: every part is below the reporting threshold"
)
_WITHOUT_GPU = "findings about it need GPU operations, and none were recorded of this rank"


class Attribution(Struct, frozen=True, forbid_unknown_fields=True):
    """Attribution of 3 % or more of a rank's time in which it did not compute."""

    rank: f.Count
    part: f.TimePart
    part_ns: f.Count
    fraction: Annotated[f.Fraction, "Share of the time that findings judge."]
    finding: Annotated[str | None, "Id of the finding that accounts for it; null if none does."]
    sentence: Annotated[
        str | None, "If no finding accounts for it: what it was, and why there is nothing to do."
    ]


@optional("owners", otherwise=lambda *_: [])
def attributions(
    results: Sequence[BreakdownResult],
    findings: Sequence[f.Finding],
    missing: Sequence[f.NotApplicable],
    without_gpu: Collection[int] = (),
    asked: Collection[str] | None = None,
) -> list[Attribution]:
    """Attribute each considerable part of each rank's time, the longest of each rank first.

    `without_gpu`: ranks of which no GPU operation was recorded. `asked`: the findings that were
    judged, None for all; others own nothing.
    """
    claimed = {(finding.id, finding.rank) for finding in findings}
    reasons = {(gap.id, gap.rank): gap.reason for gap in missing}
    finding_of = {kind.part: id_ for id_, kind in FINDINGS.items() if kind.part is not None}
    attributed: list[Attribution] = []
    for result in results:
        of_rank, otherwise = [], _WITHOUT_GPU if result.rank in without_gpu else _BELOW_A_FINDING
        for part, measure in MEASURES.items():
            part_ns, fraction = getattr(result.judged, measure), result.judged.fraction(measure)
            id_ = finding_of[part]
            if fraction < MIN_ATTRIBUTED or (asked is not None and id_ not in asked):
                continue
            is_made = (id_, result.rank) in claimed
            why = reasons.get((id_, result.rank)) or reasons.get((id_, None))
            sentence = None if is_made else why or otherwise
            finding = id_ if is_made else None
            of_rank.append(Attribution(result.rank, part, part_ns, fraction, finding, sentence))
        attributed += sorted(of_rank, key=lambda attribution: -attribution.part_ns)
    return attributed
