"""Attribution of the time in which a rank does not compute to findings.

Each of exposed communication, exposed copies and idle time that makes a relevant share of what is
judged has a finding, or a sentence that says why there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from traceprof.findings import Count, Finding, Fraction, NotApplicable, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult

MIN_OWNED = 0.03
"""Of what is judged: from there on it is attributed."""
MIN_BY_FINDING = 0.10
"""From there on it is a finding."""

Part = Literal["exposed communication", "exposed copies", "idle"]
_PARTS: tuple[tuple[str, Part, str], ...] = (
    ("exposed_communication_ns", "exposed communication", "exposed-communication"),
    ("exposed_copy_ns", "exposed copies", "exposed-copy"),
    ("idle_ns", "idle", "gpu-idle"),
)
_BELOW_A_FINDING = (
    "no finding was asked for or made of it: its parts stay below what a change can be told by"
)


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """Attribution of 3 % or more of a rank's time in which it did not compute."""

    rank: Count
    part: Part
    part_ns: Count
    fraction: Annotated[Fraction, Meta(description="Of what is judged.")]
    finding: Annotated[str | None, Meta(description="The finding's id, null where none owns it.")]
    sentence: Annotated[
        str | None,
        Meta(description="What it was and why there is nothing to do, where no finding owns it."),
    ]


def owners(
    results: Sequence[BreakdownResult],
    findings: Sequence[Finding],
    missing: Sequence[NotApplicable],
) -> list[Owner]:
    """Return the attribution of each part that is relevant, the costliest of each rank first.

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
