"""Traffic on links: NVLink, PCIe, InfiniBand."""

from __future__ import annotations

from traceprof.analyses.links import link_counters, link_findings, link_usage
from traceprof.analyses.links.link_counters import OF_COPIES, LinkCountersResult
from traceprof.analyses.links.link_usage import LinkUsageResult
from traceprof.analyses.results import RankResult
from traceprof.findings import Finding, NotApplicable
from traceprof.run.rank import Rank, Window

FINDINGS = link_findings.FINDINGS
PAGE = {**link_findings.PAGE, "min_big_mib": str(link_usage.MIN_BIG_BYTES >> 20)}


class LinkLimitsResult(RankResult, frozen=True):
    """The traffic on the links of one rank."""

    copies: LinkUsageResult  # traffic measured by memory copies
    counters: LinkCountersResult  # traffic measured by sampled counters


def run(rank: Rank, window: Window) -> LinkLimitsResult:
    """Add up the copies, and the samples of counters, of a window."""
    return LinkLimitsResult(
        rank=rank.rank,
        copies=link_usage.run(rank, window),
        counters=link_counters.run(rank, window),
    )


def findings(result: LinkLimitsResult) -> list[Finding | NotApplicable]:
    """Judge the rates against the peaks, where work waits for the link."""
    copies = link_usage.findings(result.copies)
    counters = link_counters.findings(result.counters)
    # Counters see all traffic over PCIe: what the GPU receives includes copies from the host.
    sampled = {
        (claim.id, claim.metrics["link"], OF_COPIES.get(str(claim.metrics["direction"])))
        for claim in counters
        if isinstance(claim, Finding)
    }
    judged = [
        claim
        for claim in copies
        if isinstance(claim, NotApplicable)
        or (claim.id, claim.metrics["link"], claim.metrics["direction"]) not in sampled
    ]
    return sorted([*judged, *counters], key=lambda claim: isinstance(claim, NotApplicable))
