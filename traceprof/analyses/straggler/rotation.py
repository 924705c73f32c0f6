"""Waits of ranks for each other where no rank is late again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.findings import Severity, severity_of_cost, share
from traceprof.ranks.lateness import waited_for
from traceprof.units import duration, percent, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.findings import Finding

_MIN_RANKS = 3  # of two ranks, one or the other is last
_CAUSES = ("host-stall", "uneven-kernels")


def rotation(measured: MeasuredRun, findings: Iterable[Finding]) -> str | None:
    """Say that ranks take turns at being late, with what it costs; None if that is not so.

    Args:
        measured: the run.
        findings: of the run.
    """
    ranks, claims = measured.ranks, [*findings]
    if len(ranks.ranks) < _MIN_RANKS or any(finding.id == "straggler" for finding in claims):
        return None
    arrivals = [packed.unpacked for packed in measured.arrivals]
    cost = waited_for(ranks.waits, arrivals)
    whole_ns = int(cost.sum())
    waited_ns = min(whole_ns, ranks.window_ns)  # groups may wait at the same time
    severity = severity_of_cost(share(waited_ns, ranks.window_ns))
    if severity is None or severity is Severity.INFO:
        return None
    worst = int(cost.argmax())
    known = [
        f"{id_} ({ranks_text(sorted({finding.rank for finding in claims if finding.id == id_}))})"
        for id_ in _CAUSES
        if any(finding.id == id_ for finding in claims)
    ]
    return (
        f"no constant straggler: the rank that comes last changes. The others waited"
        f" {duration(waited_ns)} in all, {percent(share(waited_ns, ranks.window_ns))} of the"
        f" training, at most {percent(share(int(cost[worst]), whole_ns))} of it for one rank"
        f" ({ranks.ranks[worst]})" + (f"; see {' and '.join(known)}" if known else "")
    )
