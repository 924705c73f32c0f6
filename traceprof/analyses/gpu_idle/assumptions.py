"""The assumptions that remove idle time, by the causes that make most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from traceprof.host.idle_causes import IdleCause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class WithCauses(Protocol):
    """The idle time of a rank's mean steady step by cause, ns."""

    @property
    def in_step(self) -> Mapping[IdleCause, int]:
        """How long the GPU was idle for each cause."""


BY_CAUSE: Mapping[IdleCause, str] = {
    IdleCause.SYNC: "no-sync",
    IdleCause.DATA_LOADING: "no-data-loading",
    IdleCause.STALLED: "no-host-stall",
}
FASTEST_LAUNCHES = "launch=0"
"""A limit that no change reaches."""
MIN_SHARE = 0.15
"""Of the idle time: a smaller cause is not mentioned, and nothing is assumed of it."""
_MIN_CURED = 0.5  # of the idle time that is not the GPU's own


def removing(_: object, results: Sequence[WithCauses]) -> tuple[str, ...]:
    """Return the assumptions that remove most idle time of a step; a limit only if launching does.

    Args:
        results: of the ranks that have the finding.
    """
    spent = {cause: sum(result.in_step[cause] for result in results) for cause in IdleCause}
    whole = sum(spent.values())
    curable = whole - spent[IdleCause.TURNAROUND]
    cured = [cause for cause in BY_CAUSE if spent[cause] >= MIN_SHARE * whole > 0]
    if sum(spent[cause] for cause in cured) >= _MIN_CURED * curable > 0:
        return tuple(BY_CAUSE[cause] for cause in cured)
    # Fewer kernels also have fewer gaps of the GPU's own, which launches without cost leave.
    is_named = spent[IdleCause.TURNAROUND] >= MIN_SHARE * whole
    if spent[IdleCause.LAUNCH_BOUND] >= _MIN_CURED * curable > 0 and not is_named:
        return (FASTEST_LAUNCHES,)
    return ()
