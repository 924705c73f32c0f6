"""Which assumption a finding's absence is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.host.idle_causes import IdleCause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.findings import Finding

ASSUMED: Mapping[str, str] = {
    "exposed-communication": "perfect-overlap",
    "exposed-copy": "copies-hidden",
    "host-sync": "no-sync",
    "launch-queue-stall": "no-launch-stall",
    "nccl-serialization": "no-serialization",
    "overlap-slowdown": "no-overlap-slowdown",
    "straggler": "no-straggler",
}
"""By the finding's id. What others cost is a bound; idle time is told by its causes."""
OF_CAUSES: Mapping[IdleCause, str] = {
    IdleCause.SYNC: "no-sync",
    IdleCause.DATA_LOADING: "no-data-loading",
}
_MIN_CAUSE = 0.15  # of the idle time, as in the finding's title
_MIN_CURED = 0.5  # of the idle time that is not the GPU's own


def assumed_of(group: Sequence[Finding]) -> tuple[str, ...]:
    """Return what to assume so that a finding is gone; nothing where no assumption fits.

    Args:
        group: the same finding on each rank that has it.
    """
    id_ = group[0].id
    if id_ == "gpu-idle":
        return _without_idle(group)
    return (ASSUMED[id_],) if id_ in ASSUMED else ()


def _without_idle(group: Sequence[Finding]) -> tuple[str, ...]:
    """Return what would take most of the idle time away; a limit only if launching makes most."""
    spent = {cause: sum(_ns(finding, cause) for finding in group) for cause in IdleCause}
    whole = sum(spent.values())
    curable = whole - spent[IdleCause.TURNAROUND]
    cured = [cause for cause in OF_CAUSES if spent[cause] >= _MIN_CAUSE * whole > 0]
    if sum(spent[cause] for cause in cured) >= _MIN_CURED * curable > 0:
        return tuple(OF_CAUSES[cause] for cause in cured)
    if spent[IdleCause.LAUNCH_BOUND] >= _MIN_CURED * curable > 0:
        return ("launch=0",)
    return ()


def _ns(finding: Finding, cause: IdleCause) -> int:
    value = finding.metrics.get(f"{cause.value}_ns")
    return value if isinstance(value, int) else 0
