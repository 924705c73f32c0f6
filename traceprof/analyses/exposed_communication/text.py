"""Title and evidence of the finding about exposed communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.exposed_communication.reasons import Reason
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.units import duration, percent, three_digits

if TYPE_CHECKING:
    from traceprof.analyses.exposed_communication.reasons import ExposedOperations, LinkRate
    from traceprof.communication.messages import Names
    from traceprof.intervals import Int64

MIN_SHARE = 0.1
"""Of the exposed time; a reason with less is neither named in the claim nor gets advice."""
_SAID = {
    Reason.WAITING: "waiting for {}",
    Reason.LATE_LAUNCH: "launched late by the host",
    Reason.QUEUED: "queued behind other communication",
    Reason.SAME_STREAM: "on the stream of the compute that follows",
    Reason.NEEDED_AT_ONCE: "needed at once by the next kernel",
    Reason.LATE_INPUT: "for input that came late",
    Reason.TRANSFER: "longer than the compute that could hide it",
    Reason.UNKNOWN: "for no known reason",
}
_NUM_NAMED = 3


def main_reasons(operations: ExposedOperations) -> list[tuple[Reason, int]]:
    """Return the reasons that matter with how much of the exposed time they make, largest first."""
    totals = operations.by_reason().sum(axis=1).tolist()
    least = max(MIN_SHARE * sum(totals), 1)
    reasons = [(reason, totals[reason]) for reason in Reason if totals[reason] >= least]
    return sorted(reasons, key=lambda pair: -pair[1])


def late_ranks(operations: ExposedOperations) -> list[int]:
    """Return the numbers of the ranks that were waited for, the one that cost most first."""
    waiting = operations.waiting
    ranks, which = np.unique(waiting.last, return_inverse=True)
    cost = np.zeros(len(ranks), np.int64)
    np.add.at(cost, which.reshape(-1), waiting.ns)
    order = np.argsort(-cost, kind="stable")
    return [rank for rank in ranks[order].tolist() if rank >= 0]


def costliest(names: Names, ns: Int64) -> str | None:
    """Return the name with the most time; None if there is none.

    Args:
        names: n names.
        ns: int64[n].
    """
    cost = np.zeros(len(names.names) + 1, np.int64)
    np.add.at(cost, names.number, ns)  # what has no name counts as the last
    most = int(cost[:-1].argmax()) if len(cost) > 1 else 0
    return names.names[most] if len(cost) > 1 and cost[most] > 0 else None


def title(
    claim: str, operations: ExposedOperations, rate: LinkRate | None, *, has_compute: bool
) -> str:
    """Return the claim, with the reasons that matter, and the rate where the transfer is one.

    Args:
        claim: how much is exposed.
        operations: of what, and why.
        rate: of the operations with most of it.
        has_compute: whether anything could hide it.
    """
    parts = []
    for reason, ns in main_reasons(operations)[:_NUM_NAMED]:
        if reason is Reason.LATE_INPUT and not has_compute:
            continue  # earlier or later input would change nothing
        parts.append(f"{duration(ns)} {_SAID[reason].format(_who(late_ranks(operations)))}")
    text = f"{claim}: {', '.join(parts)}" if parts else claim
    return (
        text
        if rate is None or not is_rate_of_interest(operations, rate)
        else f"{text}; {said(rate)}"
    )


def is_rate_of_interest(operations: ExposedOperations, rate: LinkRate) -> bool:
    """Return whether the rate explains: transfers are too long, or far slower than their link."""
    return rate.is_slow or Reason.TRANSFER in dict(main_reasons(operations))


def said(rate: LinkRate) -> str:
    """Return a rate in words, with its share of the peak where that tells of the link."""
    text = f"{rate.operation} moves {three_digits(rate.busbw_gb_per_s)} GB/s"
    share = rate.utilization
    return (
        text
        if share is None
        else f"{text}, {percent(share)} of its link's {rate.peak_gb_per_s:g} GB/s"
    )


def _who(ranks: list[int]) -> str:
    if not ranks:
        return "other ranks"
    others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}{others}"


def evidence(operations: ExposedOperations) -> tuple[Evidence, ...]:
    """Return the most exposed operations, and the main reason of each."""
    exposed, by_reason = operations.exposure, operations.by_reason()
    spans = []
    for at in intervals.largest(exposed.exposed_ns, MAX_EVIDENCE).tolist():
        first, stop = exposed.first_piece[at : at + 2].tolist()
        reason = Reason(int(by_reason[:, at].argmax()))
        kind = operations.kind.of(at)
        name = operations.name.of(at) if kind == UNKNOWN_OPERATION else kind
        part, whole = int(by_reason[reason, at]), int(exposed.exposed_ns[at])
        spans.append(
            Evidence(
                int(exposed.piece_start_ns[first]),
                int(exposed.piece_end_ns[stop - 1]),
                f"{name}: {duration(part)} of {duration(whole)} {_why(operations, at, reason)}",
            )
        )
    return tuple(spans)


def _why(operations: ExposedOperations, at: int, reason: Reason) -> str:
    """Return the reason of one operation, with its rank or kernel."""
    source, following = operations.input.of(at), operations.next_compute.of(at)
    if reason is Reason.WAITING:
        return f"waiting for rank {int(operations.waiting.last[at])}"
    if reason is Reason.LATE_LAUNCH:
        return "launched late by the host" + (f", before {following}" if following else "")
    if reason is Reason.SAME_STREAM:
        return f"on the stream of {following}, which follows"
    if reason is Reason.NEEDED_AT_ONCE:
        return f"needed at once by {following or 'the next kernel'}"
    if reason is Reason.LATE_INPUT:
        return f"for input that came late{f', from {source}' if source else ''}"
    return _SAID[reason]
