"""The JSON document, `traceprof.analysis/1`, as types: its schema is made from them.

Fields may be added, never renamed. Units are in their names; times are nanoseconds of the report's
own clock, rates 1e9 bytes per second, fractions 0 to 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.findings import Basis
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.kernel_names.categories import Category
from traceprof.run.concurrency import KINDS
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
    command_line: Annotated[
        list[str], Meta(description="What was recorded; empty where the report does not tell.")
    ]
    recorded: Annotated[
        list[str], Meta(description="Which parts it holds, of those that can be left out.")
    ]


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
                "enum": ["labels", "torch", "nccl", "mpi", "environment", "file name", "order"]
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


class Training(Struct, forbid_unknown_fields=True):
    """What of a rank's window is training: findings are about it if nothing else is asked for."""

    rank: Count
    start_ns: int
    end_ns: int
    before_ns: Annotated[
        int, Meta(ge=0, description="How much of the rank's window comes before: set-up, warm-up.")
    ]
    after_ns: Count


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


class StepTotals(Struct, forbid_unknown_fields=True):
    """The steady steps of a rank together; without steps what findings are about.

    The four parts sum to window_ns, the causes of idle time (see `gpu-idle`) to idle_ns.
    """

    rank: Count
    num_steps: Annotated[int, Meta(ge=0, description="0 where no steps are known.")]
    steps: Annotated[
        list[Count],
        Meta(
            description="Their places among the rank's `steps`, from 0. Left out are warm-up, slow"
            " steps at the beginning, and the last one, which ends with its last operation."
        ),
    ]
    window_ns: Count
    compute_ns: Count
    exposed_communication_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    launch_bound_ns: Count
    turnaround_ns: Count
    sync_ns: Count
    data_loading_ns: Count
    mpi_ns: Count
    setup_ns: Count
    allocation_ns: Count
    waiting_ns: Count
    host_code_ns: Count
    unknown_ns: Count


class Beside(Struct, forbid_unknown_fields=True):
    """How long a kind of GPU operations ran on a rank, and how long beside each kind.

    Of the part of the window that findings judge. Operations of one kind beside each other are not
    told: its time beside itself is `total_ns`.
    """

    rank: Count
    kind: Annotated[
        str,
        Meta(
            description="`copy` is all copies and memory sets together, peer copies (which are"
            " communication) left out; `h2d`, `d2h`, `d2d` and `memset` are its parts.",
            extra_json_schema={"enum": list(KINDS)},
        ),
    ]
    total_ns: Count
    alone_ns: Annotated[
        int,
        Meta(
            ge=0,
            description="While nothing of another kind ran; of a part of `copy`, no other part.",
        ),
    ]
    compute_ns: Count
    communication_ns: Count
    copy_ns: Count
    h2d_ns: Count
    d2h_ns: Count
    d2d_ns: Count
    memset_ns: Count


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


class Kernel(Struct, forbid_unknown_fields=True):
    """The kernels of one name on a rank, communication among them."""

    rank: Count
    name: Annotated[str, Meta(description="Demangled, as far as the report has it.")]
    category: Annotated[
        str,
        Meta(
            description="What it does, by its name; `other` also where the name is not known.",
            extra_json_schema={"enum": [str(category) for category in Category]},
        ),
    ]
    precision: Annotated[
        str | None,
        Meta(
            description="The number format that it computes in; null where its name tells none, or"
            " several.",
            extra_json_schema={"enum": [*PRECISIONS, None]},
        ),
    ]
    tensor_cores: Annotated[
        bool | None,
        Meta(description="Whether it computes on tensor cores; null where its name does not tell."),
    ]
    count: Annotated[int, Meta(ge=0, description="Kernels that start in the window.")]
    total_ns: Annotated[int, Meta(ge=0, description="The sum of their durations.")]
    median_ns: Annotated[int, Meta(ge=0, description="Of their durations, rounded down.")]
    per_step_ns: Annotated[
        Count | None,
        Meta(
            description="The mean over training steps of what they take in one; null without steps."
        ),
    ]
    per_steady_step_ns: Annotated[
        Count | None,
        Meta(
            description="The mean over steady steps; without steps, of all that findings are about."
            " Null where none runs in them."
        ),
    ]
    steady_error_ns: Annotated[
        Count | None,
        Meta(description="The standard error of that mean, by blocks of neighbouring steps."),
    ]
    place: Annotated[
        Fraction | None,
        Meta(description="Where in the first steady step that has it the first one starts."),
    ]


class Evidence(Struct, forbid_unknown_fields=True):
    """Where in time a finding can be seen."""

    start_ns: int
    end_ns: int
    label: str


class Saving(Struct, forbid_unknown_fields=True):
    """What a step would gain if a finding were gone, on all ranks that have it."""

    step_ns: Annotated[Count | None, Meta(description="Most likely; null of a bound.")]
    low_ns: Annotated[Count | None, Meta(description="At least; null of a bound.")]
    high_ns: Annotated[int, Meta(ge=0, description="At most.")]
    basis: Annotated[
        str,
        Meta(
            description="`replay`: the steps were replayed without it, and the replay fits what was"
            " measured. `bound`: no more than this, by a replay that no program reaches or by what"
            " the finding costs.",
            extra_json_schema={"enum": [str(basis) for basis in Basis]},
        ),
    ]
    assume: Annotated[
        str | None,
        Meta(
            description="What was assumed in the replay, as `traceprof whatif --assume` takes it;"
            " null where the bound is what the finding costs, by step."
        ),
    ]


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
    saving: Annotated[Saving | None, Meta(description="Null where nothing can be said.")]


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


class Gate(Struct, forbid_unknown_fields=True):
    """A check of the replay; where one does not hold, nothing is replayed without a finding."""

    name: Annotated[str, _one_of("misfit", "unexplained", "host-floor")]
    value: Annotated[float | None, Meta(description="As a share of the step; null if unknown.")]
    limit: float
    holds: bool


class Replay(Struct, forbid_unknown_fields=True):
    """The replay of steps from which savings come."""

    num_steps: Annotated[
        Count, Meta(description="That were replayed; of a long run not all. 0: none was.")
    ]
    gates: list[Gate]
    refused: Annotated[str | None, Meta(description="Why nothing could be replayed, else null.")]
    how_to_collect: str | None


class Gain(Struct, forbid_unknown_fields=True):
    """What a step gains without a finding, beside what it gains without those before."""

    finding: FindingId
    assume: Annotated[str, Meta(description="What was assumed besides what stands before.")]
    gain_ns: Count
    step_ns: Annotated[int, Meta(ge=0, description="What a step takes then.")]


class Headline(Struct, forbid_unknown_fields=True):
    """The run in short."""

    step_ns: Annotated[
        Count | None,
        Meta(
            description="The median step of the rank that takes longest; without steps all that"
            " findings are about is one step. Null without a rank.",
        ),
    ]
    possible_step_ns: Annotated[
        Count | None,
        Meta(
            description="Without the findings of `gains`, all together: `step_ns` less their gains."
            " Null where nothing could be replayed."
        ),
    ]
    possible_low_ns: Annotated[Count | None, Meta(description="The least that it may be.")]
    possible_high_ns: Annotated[Count | None, Meta(description="The most.")]
    gains: Annotated[
        list[Gain],
        Meta(
            description="What counts, the largest first: nothing twice, and no bounds. Empty where"
            " no finding's absence would make a step shorter."
        ),
    ]
    replay: Annotated[Replay | None, Meta(description="Null where none was tried.")]
    findings: Annotated[
        list[str], Meta(description="The ids that cost most, each once, the costliest first.")
    ]


class Owner(Struct, forbid_unknown_fields=True):
    """Who owns 3 % or more of a rank's time in which it did not compute."""

    rank: Count
    part: Literal["exposed communication", "exposed copies", "idle"]
    part_ns: Count
    fraction: Fraction
    finding: Annotated[str | None, Meta(description="The finding's id, null where none owns it.")]
    sentence: Annotated[str | None, Meta(description="What it was, where no finding owns it.")]


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
    training: list[Training]
    steps: list[Step]
    step_totals: list[StepTotals]
    communication_totals: list[CommunicationTotals]
    beside: Annotated[
        list[Beside],
        Meta(description="What ran beside what; kinds that did not run are left out."),
    ]
    links: list[LinkUse]
    collectives: list[Collective]
    buckets: list[Bucket]
    kernels: list[Kernel]
    headline: Headline
    owners: list[Owner]
    findings: list[Finding]
    not_applicable: list[NotApplicable]
    notes: list[Note]
    lost_reports: list[LostReport]
