"""The JSON document, `traceprof.analysis/1`, as types: its schema is made from them.

Fields may be added, never renamed. Units are in their names; times are nanoseconds of the report's
own clock, rates 1e9 bytes per second, fractions 0 to 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.trace.open import FORMATS

SCHEMA: Literal["traceprof.analysis/1"] = "traceprof.analysis/1"


def _one_of(*values: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(values)})


Count = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]
Link = Annotated[str, _one_of("nvlink", "pcie", "network")]
Direction = Annotated[str, _one_of("h2d", "d2h", "d2d", "p2p", "tx", "rx")]
Source = Annotated[str, _one_of("copies", "gpu-metrics", "nic-metrics")]
Scope = Annotated[str, _one_of("intra-node", "inter-node")]
Severity = Annotated[str, _one_of("info", "low", "medium", "high")]
FindingId = str  # the schema names them all


class Report(Struct, forbid_unknown_fields=True):
    """A report that was analysed."""

    index: Count
    path: str
    format: Annotated[str, _one_of(*FORMATS)]
    product_version: str | None
    schema_version: str | None


class Rank(Struct, forbid_unknown_fields=True):
    """A process on a device, or one without GPU work."""

    rank: Annotated[
        int,
        Meta(
            ge=0,
            description="The global rank where the export has it (labels of `instrument` first),"
            " else a running number in (report, pid, device) order.",
        ),
    ]
    report: Count
    pid: Annotated[int, Meta(ge=0, description="The operating system's process id.")]
    device: Annotated[
        int | None,
        Meta(
            description="The CUDA ordinal as the process sees it; null for a process without GPU"
            " work."
        ),
    ]
    gpu: str | None


class RunRank(Struct, forbid_unknown_fields=True):
    """Where a rank ran."""

    rank: Count
    host: str
    gpu_id: Annotated[
        str | None, Meta(description="The physical GPU: its uuid, else its place on the PCI bus.")
    ]


class Clock(Struct, forbid_unknown_fields=True):
    """How the clock of a report's machine compares with the reference's."""

    report: Count
    run: Annotated[int, Meta(ge=0, description="0 for the run of the first report.")]
    host: str
    source: Annotated[
        str,
        Meta(
            description="How the clock was compared with the reference's: not at all, because it is"
            " the reference; by operations that all members leave together; or by the session's"
            " start in UTC alone.",
            extra_json_schema={"enum": ["reference", "operations", "session start", "none"]},
        ),
    ]
    offset_ns: Annotated[
        int, Meta(description="To be added, at `at_ns`, to times since the first session's start.")
    ]
    drift: Annotated[float, Meta(description="To be added per ns since `at_ns`.")]
    at_ns: int
    uncertainty_ns: Annotated[
        Count | None,
        Meta(description="Of differences to the reference's clock; null where nothing is known."),
    ]
    num_operations: Count


class Matched(Struct, forbid_unknown_fields=True):
    """Operations of a communicator that were matched across ranks."""

    communicator: str | None
    source: Annotated[str, _one_of("labels", "communicator", "order")]
    ranks: list[Count]
    num_ranks: Annotated[
        int,
        Meta(ge=0, description="Of the communicator, which may be more than were captured."),
    ]
    num_operations: Count


class Unmatched(Struct, forbid_unknown_fields=True):
    """Operations that were not matched, and why."""

    name: str | None
    ranks: list[Count]
    reason: Text


class Lateness(Struct, forbid_unknown_fields=True):
    """How late a rank came to the operations that it shares with others."""

    rank: Count
    host: str
    num_operations: Count
    share_last: Annotated[
        float,
        Meta(ge=0, le=1, description="Operations to which it was certainly late, and the last."),
    ]
    late_ns: Annotated[
        int,
        Meta(
            ge=0,
            description="Of these, how much later than the median of the others it came, at the"
            " median.",
        ),
    ]
    uncertainty_ns: Count | None


class Wait(Struct, forbid_unknown_fields=True):
    """How long a rank waited for another one."""

    rank: Count
    for_rank: Count
    wait_ns: Count


class Run(Struct, forbid_unknown_fields=True):
    """How the reports belong together."""

    rank_source: Annotated[
        str,
        Meta(
            description="Where the ranks' numbers come from.",
            extra_json_schema={
                "enum": ["labels", "nccl", "mpi", "environment", "file name", "order"]
            },
        ),
    ]
    num_runs: Annotated[
        int, Meta(ge=0, description="1, unless reports of several runs were given together.")
    ]
    ranks: list[RunRank]
    clocks: list[Clock]
    matched: list[Matched]
    unmatched: list[Unmatched]
    lateness: list[Lateness]
    waits: Annotated[
        list[Wait], Meta(description="Who waited for whom; pairs that did not are left out.")
    ]


class Breakdown(Struct, forbid_unknown_fields=True):
    """compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns = window_ns."""

    rank: Count
    window_start_ns: int
    window_ns: Count
    compute_ns: Count
    communication_ns: Count
    overlapped_communication_ns: Count
    exposed_communication_ns: Count
    copy_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    num_kernels: Annotated[int, Meta(ge=0, description="Kernels that do not communicate.")]
    num_communication: Annotated[
        int, Meta(ge=0, description="Communication kernels and peer copies.")
    ]
    num_copies: Annotated[int, Meta(ge=0, description="Every other memory copy, and memory sets.")]


class Step(Struct, forbid_unknown_fields=True):
    """The same of a training step: the four parts sum to window_ns."""

    rank: Count
    step: Count
    start_ns: int
    end_ns: int
    window_ns: Count
    compute_ns: Count
    communication_ns: Count
    overlapped_communication_ns: Count
    exposed_communication_ns: Count
    copy_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    num_kernels: Count
    num_communication: Count
    num_copies: Count


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
        Meta(description="Of these, the sum of the times until the last rank came."),
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
    utilization: Annotated[Number | None, Meta(description="busbw / peak.")]


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


class Evidence(Struct, forbid_unknown_fields=True):
    """Where in time a finding can be seen."""

    start_ns: int
    end_ns: int
    label: str


class Finding(Struct, forbid_unknown_fields=True):
    """A claim about one rank."""

    id: FindingId
    severity: Severity
    rank: Count
    title: Text
    impact_ns: Count
    impact_fraction: Fraction
    metrics: dict[str, int | float | str | bool | None]
    evidence: list[Evidence]
    advice: list[Text]


class NotApplicable(Struct, forbid_unknown_fields=True):
    """A finding that could be neither made nor ruled out."""

    id: FindingId
    reason: Text
    how_to_collect: Text
    rank: Annotated[Count | None, Meta(description="Null: the whole run.")]


class Note(Struct, forbid_unknown_fields=True):
    """What to know about the data of a report."""

    report: Count
    note: Text


class LostReport(Struct, forbid_unknown_fields=True):
    """A report that could not be analysed, while others could: nothing else here is about it."""

    path: str
    reason: str


class Document(Struct):
    """Output of `traceprof analyze --format json`.

    Times are nanoseconds of the report's own clock; rates are 1e9 bytes per second; fractions are 0
    to 1. New keys may appear; those required here stay.
    """

    schema: Literal["traceprof.analysis/1"]
    traceprof_version: str
    reports: list[Report]
    ranks: list[Rank]
    run: Run
    breakdown: list[Breakdown]
    steps: list[Step]
    links: list[LinkUse]
    collectives: list[Collective]
    buckets: list[Bucket]
    findings: list[Finding]
    not_applicable: list[NotApplicable]
    notes: list[Note]
    lost_reports: list[LostReport]
