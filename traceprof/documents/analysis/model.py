"""The JSON document, `traceprof.analysis/1`, as types: its schema is made from them.

Fields may be added, never renamed. Units are in their names; times are nanoseconds of the report's
own clock, rates 1e9 bytes per second, fractions 0 to 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from inspect import get_annotations
from operator import attrgetter
from types import EllipsisType
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from msgspec import UNSET, Struct, UnsetType, defstruct, field
from msgspec.structs import fields

from traceprof.analyses import steps
from traceprof.analyses.breakdown import Measures
from traceprof.analyses.collectives import OperationUse
from traceprof.analyses.compute_parts import ComputePart, StepFlops
from traceprof.analyses.gradient_buckets import BucketUse
from traceprof.analyses.kernels.kernel_table import KernelUse
from traceprof.analyses.kernels.launched_kernels import Launcher, ModuleUse
from traceprof.analyses.links import link_usage as links
from traceprof.analyses.rank_work import PeerSet, RankWork
from traceprof.analyses.steps import LeftOutSteps, ProgramPhase, StepKind, StepTotals, WhyLeftOut
from traceprof.analyses.verdict.attribution import Attribution
from traceprof.analyses.verdict.savings import Savings
from traceprof.analyses.verdict.three_lines import ThreeLines
from traceprof.findings import Count, Finding, Fraction, NotApplicable, Number, Text, one_of
from traceprof.host.units import StepUnit
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.kernel_names.categories import Category
from traceprof.ranks import lateness
from traceprof.ranks.matching import Unmatched
from traceprof.run import recording_cost, windows
from traceprof.run.completeness import Losses
from traceprof.run.concurrency import KindBeside
from traceprof.run.periods import Period
from traceprof.run.session_clocks import MachineClock
from traceprof.run.step_ranges import StepsSource
from traceprof.trace.model.trace import FORMATS

Record = TypeVar("Record", bound=Struct)


def record(
    *columns: str | EllipsisType, without: Sequence[str] = (), beside: type[Struct] = Struct
) -> Callable[[type[Record]], type[Record]]:
    """Return a decorator that makes a record of a subclass of a row, with its fields in order.

    `...` stands for those of the row that are named neither here nor in `without`. Columns may
    also be fields of the type `beside`.

    Raises TypeError: a field that the record declares has no place among the columns.
    """

    def made(declared: type[Record]) -> type[Record]:
        types = {
            name: _evaluated(annotation, base.__module__)
            for base in (*reversed(beside.__mro__), *reversed(declared.__mro__))
            for name, annotation in get_annotations(base).items()
        }
        if unlisted := declared.__annotations__.keys() - set(columns):
            raise TypeError(f"{declared.__name__} does not list {', '.join(sorted(unlisted))}")
        rest = [
            name
            for name in declared.__struct_fields__
            if name not in {*columns, *without, *declared.__annotations__}
        ]
        names = [
            name
            for column in columns
            for name in (rest if isinstance(column, EllipsisType) else [column])
        ]
        return cast(
            "type[Record]",
            defstruct(
                declared.__name__,
                [_field(name, types[name]) for name in names],
                namespace={"__doc__": declared.__doc__},
                module=declared.__module__,
                frozen=True,
                forbid_unknown_fields=True,
            ),
        )

    return made


def _field(name: str, kind: object) -> tuple[str, Any] | tuple[str, Any, Any]:
    inside = get_args(kind)
    may_lack = bool(inside) and UnsetType in get_args(inside[0])
    return (name, kind, UNSET) if may_lack else (name, kind)


@cache
def _evaluated(annotation: object, module: str) -> object:
    """Return the type that an annotation names: in a third of the time of `get_type_hints`."""
    if isinstance(annotation, str):
        return eval(annotation, vars(sys.modules[module]))  # noqa: S307  (our own)
    return annotation


def maker(kind: type[Record], *own: str) -> Callable[..., Record]:
    """Return a function that makes a record of a row and what the row lacks: `made(row, 3)`.

    `own`: the fields whose values are given; a row has an attribute for each of the others.
    """
    names = tuple(name for name in kind.__struct_fields__ if name not in own)
    values = attrgetter(*names)

    def made(row: object, *given: object) -> Record:
        return kind(**dict(zip((*own, *names), (*given, *values(row)), strict=True)))

    return made


def meanings(record: type[Struct]) -> dict[str, str]:
    """Return the texts that explain fields, `Annotated[type, …, meaning]`, by field."""
    last = {
        field.name: getattr(field.type, "__metadata__", (None,))[-1] for field in fields(record)
    }
    return {name: text for name, text in last.items() if isinstance(text, str)}


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


@record(
    "step_ns",
    "median_step_ns",
    "step_kinds",
    "left_out",
    "steps_source",
    ...,
    "findings",
    "periods",
    "judged_fraction",
    "unit",
    "layers",
    "tokens_per_s",
    "sequences",
    "verdict",
    "phases",
)
class Headline(Savings, frozen=True, kw_only=True):
    """Summary of the run."""

    step_ns: Annotated[
        Count | None,
        "Mean of the steady steps, on the rank where it is longest; without steps, the whole"
        " time that findings judge counts as one step. Null without a rank.",
    ]
    median_step_ns: Annotated[Count | None, "Median of the same steps; null without steps."]
    step_kinds: Annotated[
        list[StepKind],
        "Kinds of these steps: two if some take much longer than the others, the shorter kind"
        " first. Empty without steps.",
    ]
    left_out: Annotated[
        list[LeftOutSteps], "Steps of the training on that rank that do not count toward the mean."
    ]
    steps_source: Annotated[
        StepsSource,
        one_of(*(source.value for source in StepsSource)),
        "`ranges`: marked by ranges, or found by optimizer steps. `period`: no range marks"
        " steps, and a step is one period of the kernels: see `unit`."
        " `none`: no step is known.",
    ]
    findings: Annotated[
        list[str], "Ids of the findings to act on first, at most three, in the order of `findings`."
    ]
    periods: Annotated[
        list[Period],
        "If `steps_source` is `period`: one period for each phase of the program, in order of"
        " time. Otherwise empty.",
    ] = field(default_factory=list)
    judged_fraction: Annotated[
        Fraction | None,
        "Share of the recorded GPU time, on all ranks, that lies in what findings judge; 1 if steps"
        " or a time range were chosen. Null without a GPU.",
    ] = None
    unit: Annotated[
        StepUnit,
        one_of(*(unit.value for unit in StepUnit)),
        "What a step is: a `step` of training; an `iteration` of a program that marks none; a"
        " `layer` of a model, if each period holds one range whose name counts them; a `decode` or"
        " `prefill` pass of a server. Layers are of one pass: no step gains what they would.",
    ] = StepUnit.STEP
    layers: Annotated[
        tuple[int, int] | None, "Numbers of the first and the last layer; null for other units."
    ] = None
    tokens_per_s: Annotated[
        Number | None, "Tokens of a server's passes per second; null if its marks do not show them."
    ] = None
    sequences: Annotated[
        Count | None, "Sequences in a server's pass, the mean; null where no server runs."
    ] = None
    verdict: Annotated[
        ThreeLines | None,
        "What is wrong, what to do, what it brings, and how far to trust it. Null if nothing was"
        " judged, or if `--only` left out measurements that it needs; `--skip` does not change it.",
    ] = None
    phases: Annotated[
        list[ProgramPhase] | UnsetType,
        "If steps are periods of a program with phases, these on the rank where a step is longest,"
        " in order of time; else left out. `step_ns`, savings and costs per step are of the longest"
        " one.",
    ] = UNSET


@record("rank", ...)
class Breakdown(Measures, frozen=True, kw_only=True):
    """compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns + lost_ns = window_ns."""

    rank: Count


@record("rank", "start_ns", "end_ns", "before_ns", "after_ns")
class Training(windows.Training, frozen=True, kw_only=True):
    """Training part of a rank's window: findings are about it if nothing else is asked for."""

    rank: Count


@record(
    "rank", "step", "start_ns", "end_ns", ..., "left_out", "phase", without=("window_start_ns",)
)
class Step(Measures, frozen=True, kw_only=True):
    """The same for a training step: the four parts and lost_ns sum to window_ns."""

    rank: Count
    step: Count
    start_ns: int
    end_ns: int
    left_out: Annotated[
        WhyLeftOut | Literal["not judged"] | None,
        "Why the step does not count toward the mean step; null if it does. `cut`, `opening`"
        " and `rare` as in `headline.left_out`, of whatever phase; `phase`: nothing but that it is"
        " of a phase of the program that is not the longest; `not judged`: outside the time that"
        " findings judge, such as warm-up.",
    ]
    phase: Annotated[
        Count,
        "If steps are periods: index of the program's phase, from 0 in order of time. Otherwise 0.",
    ] = 0


@record("rank", ...)
class SlowStep(steps.SlowStep, frozen=True, kw_only=True):
    """A step that took over 1.5 times the median, and why."""

    rank: Count


@record("rank", ...)
class Completeness(Losses, frozen=True, kw_only=True):
    """Launches of a rank's GPU operations, and how many of these the recording lacks."""

    rank: Annotated[Count | None, "Rank; null for processes without any recorded operation."]


@record("rank", ...)
class Beside(KindBeside, frozen=True, kw_only=True):
    """Time of one kind of GPU operations on a rank, and how much of it overlapped with each kind.

    Only the part of the window that findings judge counts. Overlap within one kind is not shown:
    its time beside itself is `total_ns`.
    """

    rank: Count


@record(
    *("rank", "category", "precision", "tensor_cores", "total_ns", "num_kernels"),
    *("flops", "flops_per_s", "peak_flops_per_s"),
)
class Compute(ComputePart, frozen=True, kw_only=True):
    """Compute of a rank, by what its kernels do: `total_ns` adds up to `compute_ns` of `breakdown`.

    Where kernels overlap, the one that began first counts. Ranks without a GPU have none.
    """

    rank: Count
    flops_per_s: Annotated[Number | None, "`flops` divided by the time."]


OF_KERNEL = ("rank", "name", "category", "precision", "tensor_cores")
OF_KERNEL_LAST = (
    "per_steady_step_ns",
    "steady_error_ns",
    "place",
    "operator",
    "module",
    "flops",
    "source",
    "flops_per_s",
    "peak_flops_per_s",
    "moved_bytes",
    "gb_per_s",
    "peak_gb_per_s",
    "range",
)
"""What the document adds to a kernel's row: before and after its other fields."""


@record(*OF_KERNEL, ..., *OF_KERNEL_LAST, without=("kind", "in_steady_step"), beside=Launcher)
class Kernel(KernelUse, frozen=True, kw_only=True):
    """The kernels of one name on a rank, including communication kernels."""

    rank: Count
    category: Annotated[
        str,
        one_of(*(str(category) for category in Category)),
        "What the kernel does, by its name; `other` also if the name is not recognised.",
    ]
    precision: Annotated[
        str | None,
        one_of(*PRECISIONS, None),
        "The number format in which it computes; null if its name shows none, or several.",
    ]
    tensor_cores: Annotated[bool | None, "Whether it computes on tensor cores; null if unknown."]
    per_steady_step_ns: Annotated[
        Count | None,
        "Time in a steady step, mean over steps; without steps, in the whole time that findings"
        " judge. Null if none runs there.",
    ]
    steady_error_ns: Annotated[
        Count | None, "Standard error of that mean, from blocks of neighbouring steps."
    ]
    place: Annotated[
        Fraction | None,
        "Where the first one starts in the first steady step that has one, as a fraction of the"
        " step.",
    ]
    flops_per_s: Annotated[Number | None, "`flops` divided by the time of the kernels."]
    peak_flops_per_s: Annotated[
        Number | None, "Peak rate of the GPU in this format, on these units; null if unknown."
    ]
    gb_per_s: Annotated[
        Number | None,
        "`moved_bytes` divided by the time of the kernels; may exceed the peak, because of caches.",
    ]
    peak_gb_per_s: Annotated[
        Number | None, "Peak rate of the GPU's memory; null if it or `gb_per_s` is unknown."
    ]


@record("rank", ..., "per_steady_step_ns", "steady_error_ns", without=("in_steady_step",))
class Module(ModuleUse, frozen=True, kw_only=True):
    """Kernels that a module of the model launched, in its forward and backward passes.

    Modules come from ranges in the report: Python functions (torch.profiler with stacks or
    modules), or NVTX ranges that begin with the word module and have its path.
    """

    rank: Count
    per_steady_step_ns: Annotated[Count | None, "As in `kernels`, including the modules inside it."]
    steady_error_ns: Count | None


@record("rank", "unrecorded_ns", "recorded_ns")
class TimedSteps(recording_cost.TimedSteps, frozen=True, kw_only=True):
    """Lengths of steps of a rank before the recorder started, and of recorded ones."""


class Report(Struct, forbid_unknown_fields=True):
    """A report that was analysed."""

    index: Count
    path: str
    format: Annotated[str, one_of(*FORMATS)]
    product_version: str | None
    schema_version: str | None
    command_line: Annotated[list[str], "Command that was recorded; empty if unknown."]
    recorded: Annotated[list[str], "The optional parts that were recorded."]
    environment: Annotated[
        dict[str, str],
        "Versions of software, environment variables of PyTorch, CUDA, NCCL and OpenMP, and the"
        " profiler's settings, where known.",
    ] = {}
    timed: Annotated[
        list[TimedSteps], "What recording cost, from `HOST-rank3.baseline.json` beside the report."
    ] = []


class Rank(Struct, forbid_unknown_fields=True):
    """A process on a device, or one without GPU work."""

    rank: Annotated[
        Count,
        "The global rank where the export has it (labels of `instrument` first), otherwise a"
        " running number in (report, pid, device) order.",
    ]
    report: Count
    pid: Annotated[Count, "Process id."]
    device: Annotated[
        int | None, "The CUDA ordinal as the process sees it; null for a process without GPU work."
    ]
    gpu: str | None
    num_workers: Annotated[
        Count | None,
        "Number of named processes of its kind that computed and had no GPU work: a data loader's"
        " workers; null without records of thread switches.",
    ] = None


class RunRank(Struct, forbid_unknown_fields=True):
    """Place of a rank: host and GPU."""

    rank: Count
    host: str
    gpu_id: Annotated[str | None, "The physical GPU: its UUID, or else its address on the PCI bus."]


@record("report", "run", ...)
class Clock(MachineClock, frozen=True, kw_only=True):
    """Clock of a report's machine, compared with the reference clock."""

    report: Count
    run: Annotated[Count, "Index of the run; 0 is the run of the first report."]


class Matched(Struct, forbid_unknown_fields=True):
    """Operations of a communicator that were matched across ranks."""

    communicator: str | None
    source: Annotated[str, one_of("labels", "communicator", "order", "mpi")]
    ranks: list[Count]
    num_ranks: Annotated[
        Count, "Number of ranks of the communicator, which may be more than were captured."
    ]
    num_operations: Count


@record("rank", "host", "num_operations", "share_last", "late_ns", "uncertainty_ns")
class Lateness(lateness.Lateness, frozen=True, kw_only=True):
    """Lateness of a rank in the operations that it shares with others."""

    rank: Count
    host: str
    share_last: Annotated[
        Fraction, "Share of operations in which it was certainly late, and the last."
    ]


class Wait(Struct, forbid_unknown_fields=True):
    """Time that a rank waited for another one."""

    rank: Count
    for_rank: Count
    wait_ns: Count


class Run(Struct, forbid_unknown_fields=True):
    """Relations between the reports of a run."""

    rank_source: Annotated[
        str,
        one_of("labels", "torch", "nccl", "mpi", "environment", "file name", "order"),
        "Source of the rank numbers.",
    ]
    num_runs: Annotated[
        Count, "Number of runs: 1, unless reports of several runs were given together."
    ]
    ranks: list[RunRank]
    clocks: list[Clock]
    matched: list[Matched]
    unmatched: list[Unmatched]
    lateness: list[Lateness]
    waits: Annotated[list[Wait], "Waits of one rank for another; pairs without waits are left out."]
    peers: Annotated[
        list[PeerSet], "Ranks that should do the same work; empty where that was not compared."
    ]
    work: Annotated[
        list[RankWork],
        "What each rank with a GPU computes, against its peers; empty where that was not compared.",
    ]


class Note(Struct, forbid_unknown_fields=True):
    """Note on the data of a report."""

    report: Count
    note: Text


class LostReport(Struct, forbid_unknown_fields=True):
    """A report that could not be analysed while others could: nothing else here includes it."""

    path: str
    reason: str


SCHEMA: Literal["traceprof.analysis/1"] = "traceprof.analysis/1"


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
    completeness: Annotated[
        list[Completeness],
        "What each recording lacks. From 1 % of lost launches on, gaps between operations are not"
        " judged, from 20 % on nothing is.",
    ]
    breakdown: list[Breakdown]
    training: list[Training]
    steps: list[Step]
    step_totals: list[StepTotals]
    slow_steps: Annotated[
        list[SlowStep],
        "Every step over 1.5 times the median, whether it counts or not, and what ran in it and"
        " nowhere else.",
    ]
    communication_totals: list[CommunicationTotals]
    beside: Annotated[
        list[Beside],
        "Which kinds of operations ran at the same time; kinds that did not run are left out.",
    ]
    links: list[LinkUse]
    collectives: list[Collective]
    buckets: list[Bucket]
    compute: list[Compute]
    step_flops: list[StepFlops]
    kernels: list[Kernel]
    modules: list[Module]
    headline: Headline
    owners: list[Attribution]
    findings: list[Finding]
    not_applicable: list[NotApplicable]
    notes: list[Note]
    lost_reports: list[LostReport]
