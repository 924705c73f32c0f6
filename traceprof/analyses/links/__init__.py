"""Traffic on links: NVLink, PCIe, InfiniBand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.links import link_counters, link_findings, link_usage
from traceprof.analyses.results import RankResult
from traceprof.findings import Finding, NotApplicable
from traceprof.run.rank import Rank, Window

if TYPE_CHECKING:
    from traceprof.analyses.links.link_counters import LinkCountersResult
    from traceprof.analyses.links.link_usage import LinkUsageResult


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
    judged = [*link_usage.findings(result.copies), *link_counters.findings(result.counters)]
    claims = link_findings.distinct([claim for claim in judged if isinstance(claim, Finding)])
    return [*claims, *(gap for gap in judged if isinstance(gap, NotApplicable))]
