"""What was communicated, and what links carried, in the JSON document."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from traceprof.findings import Count, Number, Positive, Text, one_of

Link = Annotated[str, one_of("nvlink", "pcie", "network")]
Direction = Annotated[str, one_of("h2d", "d2h", "d2d", "p2p", "tx", "rx")]
Source = Annotated[str, one_of("copies", "gpu-metrics", "nic-metrics")]
Scope = Annotated[str, one_of("intra-node", "inter-node")]


class LinkUse(Struct, forbid_unknown_fields=True):
    """What a link carried in one direction."""

    rank: Count
    link: Annotated[
        Link | None,
        Meta(description="Null where the path is not known, and for copies within the device."),
    ]
    direction: Direction
    peer: Annotated[int | None, Meta(description="The other device's ordinal, for p2p.")]
    bytes: Count
    busy_ns: Annotated[
        int, Meta(ge=0, description="The union of the operations on this link and direction.")
    ]
    gb_per_s: Annotated[
        Number | None, Meta(description="bytes / busy_ns; null where no time passed.")
    ]
    peak_gb_per_s: Positive | None
    is_peak_assumed: Annotated[
        bool, Meta(description="Whether the peak comes from the GPU's name alone.")
    ]
    utilization: Number | None
    source: Source
    name: Annotated[str | None, Meta(description="The NIC's, for network.")]


class Collective(Struct, forbid_unknown_fields=True):
    """The operations of one kind on one communicator of a rank."""

    rank: Count
    operation: Text
    communicator: str | None
    peer: Annotated[
        Count | None,
        Meta(
            description="The other rank (in the world) of sends and receives, where it is one and"
            " known."
        ),
    ]
    count: Count
    bytes: Count | None
    total_ns: Annotated[
        int,
        Meta(
            ge=0,
            description="The sum of the kernels' durations, or without a GPU of the operations',"
            " waiting for other ranks included.",
        ),
    ]
    median_ns: Count
    algbw_gb_per_s: Number | None
    busbw_gb_per_s: Number | None
    peak_gb_per_s: Annotated[
        Positive | None,
        Meta(
            description="Of NVLink, else PCIe, in one direction, by the GPU's name; null where the"
            " ranks may be on several machines; where they are, what the user says of the network."
        ),
    ]
    is_lower_bound: Annotated[
        bool,
        Meta(
            description="Whether the rates are of durations, which include waiting for other ranks;"
            " else they are of the time in which all ranks were inside."
        ),
    ]
    num_matched: Annotated[
        int, Meta(ge=0, description="Kernels whose counterparts on the other ranks are known.")
    ]
    wait_ns: Annotated[
        Count | None,
        Meta(
            description="Of these, the sum of the times until the last rank came; null where the"
            " clocks are too coarse to tell most of them."
        ),
    ]
    transfer_ns: Annotated[
        Count | None,
        Meta(description="Of these, the sum of the times in which all ranks were inside."),
    ]
    latency_ns: Annotated[
        Count | None,
        Meta(
            description="By the model time = latency + size / rate; null where it cannot be derived"
            " from the sizes."
        ),
    ]
    latency_uncertainty_ns: Annotated[
        Count | None, Meta(description="Of the latency: twice its standard error.")
    ]
    rate_gb_per_s: Annotated[
        Number | None,
        Meta(description="Of the same model; the size counts as algorithm bandwidth counts it."),
    ]
    scope: Scope | None
    description: Annotated[
        str | None,
        Meta(description="What the user calls the process group (`group_desc`), where known."),
    ]
    utilization: Annotated[Number | None, Meta(description="busbw / peak.")]


class CommunicationTotals(Struct, forbid_unknown_fields=True):
    """The operations of one kind on one communicator of a rank, of what findings are about."""

    rank: Count
    operation: Text
    communicator: str | None
    num_steps: Annotated[int, Meta(ge=0, description="Training steps; 0 where none are known.")]
    count: Count
    bytes: Count | None
    total_ns: Annotated[int, Meta(ge=0, description="The sum of durations, waiting included.")]
    num_matched: Count
    wait_ns: Annotated[
        Count | None, Meta(description="Of the matched ones, the time until the last rank came.")
    ]
    transfer_ns: Annotated[
        Count | None, Meta(description="Of the matched ones, the time with all ranks inside.")
    ]


class Bucket(Struct, forbid_unknown_fields=True):
    """A gradient bucket of DistributedDataParallel, by index and size.

    DistributedDataParallel makes its buckets anew after the first step.
    """

    rank: Count
    index: Count | None
    bytes: Count | None
    count: Count
    median_ready_to_done_ns: Annotated[
        Count | None,
        Meta(
            description="From the bucket's last gradient to its reduction; null where the capture"
            " ended before."
        ),
    ]
