"""Communication and links in the document of an analysis."""

from __future__ import annotations

from typing import Annotated

from traceprof.analyses.collectives import OperationUse
from traceprof.analyses.gradients.buckets import BucketUse
from traceprof.analyses.links import link_usage as links
from traceprof.documents.analysis.rows import record
from traceprof.findings import Count, Number


@record(
    "rank",
    "link",
    "direction",
    "peer",
    "peer_rank",
    "bytes",
    "busy_ns",
    "gb_per_s",
    "peak_gb_per_s",
    "is_peak_assumed",
    "utilization",
    "source",
    "name",
)
class LinkUse(links.LinkUse, frozen=True, kw_only=True):
    """Traffic of a link in one direction."""

    rank: Count
    peer_rank: Annotated[
        int | None,
        "The rank on the other GPU, for p2p; null if that GPU is unknown, or if it is used by"
        " no rank or by several ranks of the run.",
    ]
    gb_per_s: Annotated[Number | None, "bytes / busy_ns; null if no time passed."]
    utilization: Annotated[Number | None, "gb_per_s / peak_gb_per_s."]


@record("rank", ..., "utilization")
class Collective(OperationUse, frozen=True, kw_only=True):
    """The operations of one kind on one communicator of a rank."""

    rank: Count
    utilization: Annotated[Number | None, "busbw / peak."]


@record(
    "rank",
    "operation",
    "communicator",
    "num_steps",
    "count",
    "bytes",
    "total_ns",
    "num_matched",
    "wait_ns",
    "transfer_ns",
)
class CommunicationTotals(OperationUse, frozen=True, kw_only=True):
    """The operations of one kind on one communicator of a rank, in the time that findings judge."""

    rank: Count
    num_steps: Annotated[Count, "Number of training steps; 0 if none are known."]


@record("rank", ...)
class Bucket(BucketUse, frozen=True, kw_only=True):
    """A gradient bucket of DistributedDataParallel, by index and size.

    DistributedDataParallel makes its buckets anew after the first step.
    """

    rank: Count
