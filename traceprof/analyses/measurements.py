"""Measurements of ranks, reports and the run, and the shape of an analysis.

A report is measured where it is opened, perhaps by another process or machine. What comes back is
small, and can be pickled: `MeasuredReport`.

An analysis is a module, or a package whose `__init__` has the shape of `RankModule` or
`RunModule`: `FINDINGS` are the kinds of findings that it can make; `run` measures, `findings`
judges. `Registration` says what it requires and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import field
from msgspec.structs import replace

from traceprof.analyses import collectives, compute_parts, gradient_buckets, steps
from traceprof.analyses.collectives import ProcessGroupsResult
from traceprof.analyses.compute_parts import ComputeParts
from traceprof.analyses.gradient_buckets import DdpBucketsResult
from traceprof.analyses.hidden import Hidden, not_ruled_out, that_hold
from traceprof.analyses.kernels import kernel_table, launched_kernels, placed_kernels
from traceprof.analyses.kernels.kernel_table import KernelTable
from traceprof.analyses.kernels.launched_kernels import LaunchedKernels
from traceprof.analyses.kernels.placed_kernels import PlacedKernels
from traceprof.analyses.results import Judge, RankResult, Result, Results
from traceprof.analyses.steps import SlowSteps, StepTotals
from traceprof.findings import Finding, FindingKind, NotApplicable
from traceprof.host.rank_stalls import RankStalls, rank_stalls
from traceprof.ranks import arrivals
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.passes import RankPasses, rank_passes
from traceprof.run.cache import Cache
from traceprof.run.completeness import Losses
from traceprof.run.guard import optional
from traceprof.run.opening import RunSummary
from traceprof.run.rank import Rank, Window
from traceprof.run.summary import FailedReport, RankInfo, ReportSummary
from traceprof.structs import Record
from traceprof.trace.columns import Packed
from traceprof.trace.model.parts import Part


class Wanted(Record, frozen=True):
    """What is to be measured and judged; analyses by name."""

    asked: frozenset[str]  # the analyses whose findings are asked for
    read: frozenset[str]  # these, and those whose results they read
    # these, and those whose findings may include the time of a finding that is asked for
    measured: frozenset[str]
    measurements: frozenset[str]  # the shared measurements, by name


class RankMeasurements(Record, frozen=True):
    """The measurements of a rank: of what is judged, unless a comment says otherwise."""

    results: Mapping[str, RankResult]  # of each analysis that is for the rank, by its name
    missing: Mapping[str, tuple[NotApplicable, ...]]  # why analyses could not run, by their name
    hidden: tuple[Hidden, ...]  # what its report hides of it
    # of the analyses that are listed, what they measured of all that is shown
    shown: Mapping[str, RankResult]
    taken: dict[str, Any]  # each of `MEASUREMENTS`, by its name
    losses: Losses | None = None  # what its recording lacks


class MeasuredRank(Record, frozen=True):
    """A rank with its measurements."""

    facts: RankInfo  # the rank, by its number within the report
    # the first and last number of its training steps, None without any
    step_numbers: tuple[int, int] | None
    measurements: RankMeasurements | None  # None for a rank without the window asked for
    # of the phases of its program that are not the longest, by their numbers
    phases: Mapping[int, RankMeasurements] = field(default_factory=dict)
    # what could not be analysed because an optional part failed
    failures: tuple[NotApplicable, ...] = ()


class MeasuredReport(Record, frozen=True):
    """A report with its measurements."""

    facts: ReportSummary
    ranks: tuple[MeasuredRank, ...]  # in order of (pid, device)
    # when its capture began and ended; None if no time range was asked for
    captured_ns: tuple[int, int] | None = None
    # what could not be analysed because an optional part failed, whatever the rank
    failures: tuple[NotApplicable, ...] = ()


class MeasuredRun(Record, frozen=True):
    """The measurements of a run before anything is judged; by rank, in order of the ranks."""

    run: RunSummary  # the reports and their ranks
    results: Results  # of each analysis
    # clocks, waits and transfers; without ranks if arrivals were not measured
    ranks: RankComparison
    wanted: Wanted | None = None  # what was to be measured; None for everything
    # why analyses could not run on ranks, by the analysis' name
    missing: Mapping[str, tuple[NotApplicable, ...]] = field(default_factory=dict)
    # what could not be analysed because an optional part failed
    failures: tuple[NotApplicable, ...] = ()
    arrivals: tuple[Packed[Arrivals], ...] = ()  # when ranks came to each communication operation
    buckets: tuple[DdpBucketsResult, ...] = ()  # the gradient buckets of DistributedDataParallel
    kernels: tuple[KernelTable, ...] = ()  # the times of kernels by name, of ranks with a GPU
    compute: tuple[ComputeParts, ...] = ()  # the kinds of compute of ranks with a GPU
    # what the recordings of ranks with a GPU lack
    losses: Mapping[int, Losses] = field(default_factory=dict)
    # what reports hide of ranks, by the rank
    hidden: Mapping[int, tuple[Hidden, ...]] = field(default_factory=dict)
    # the code that launched the kernels of ranks with a GPU
    launched: tuple[LaunchedKernels, ...] = ()
    process_groups: tuple[ProcessGroupsResult, ...] = ()  # the communication of ranks without a GPU
    # of the analyses that are listed, what they measured of all that is shown
    shown: Results = field(default_factory=Results)
    # the process groups of all that is shown
    shown_process_groups: tuple[ProcessGroupsResult, ...] = ()
    step_totals: tuple[StepTotals, ...] = ()  # the time of steady steps by part and cause
    slow_steps: tuple[SlowSteps, ...] = ()  # the steps that took far longer than usual
    stalls: tuple[RankStalls, ...] = ()  # of the hosts of ranks with a GPU
    # the kernels of ranks with a GPU by their place in steps
    placed: tuple[PlacedKernels, ...] = ()
    passes: tuple[RankPasses, ...] = ()  # the compute of ranks between their messages
    # the phases of the program, each as a run of the ranks where it is not the longest one
    phases: Mapping[int, MeasuredRun] = field(default_factory=dict)
    # reports that could not be analysed; the run has none of them
    failed: tuple[FailedReport, ...] = ()
    cache: Cache = field(default_factory=Cache)  # data that is derived from all of these

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: see each result's `rank`.

        For analyses whose numbers are listed that is all that is shown, for others what findings
        are about.
        """
        return self.shown.of(module) or self.results.of(module)


class Measurement(Record, frozen=True):
    """A measurement that makes no findings by itself."""

    meaning: str  # what is measured, as `traceprof explain` says it
    # measures a rank: its judged window, its shown window, and what was measured before
    measure: Callable[[Rank, Window, Window, Mapping[str, Any]], Any]
    reads: tuple[str, ...] = ()  # the measurements that it needs
    # whether it is for ranks with a GPU, or for those without one; None for both
    has_gpu: bool | None = None


_MEASUREMENTS = {
    # What needs the most memory comes first: later ones keep shared results.
    "kernels": Measurement(
        "the times of kernels by name",
        lambda rank, judged, shown, _: kernel_table.run(rank, shown, judged),
        has_gpu=True,
    ),
    "launched": Measurement(
        "the operators, modules and Python lines that launched kernels",
        lambda rank, judged, shown, _: launched_kernels.run(rank, shown, judged),
        has_gpu=True,
    ),
    "compute": Measurement(
        "the kinds of compute, and their share of the GPU's peak",
        lambda rank, judged, shown, taken: (
            None
            if taken["launched"] is None
            else compute_parts.run(rank, shown, taken["launched"], judged)
        ),
        reads=("launched",),
        has_gpu=True,
    ),
    "arrivals": Measurement(
        "when each rank came to each communication operation",
        lambda rank, judged, *_: Packed.of(arrivals.run(rank, judged)),
    ),
    "buckets": Measurement(
        "the gradient buckets of DistributedDataParallel",
        lambda rank, _, shown, __: gradient_buckets.run(rank, shown),
    ),
    "process_groups": Measurement(
        "the communication of ranks without a GPU",
        lambda rank, judged, *_: collectives.process_groups(rank, judged),
        has_gpu=False,
    ),
    "shown_process_groups": Measurement(
        "the communication of ranks without a GPU, in all that is shown",
        lambda rank, _, shown, __: collectives.process_groups(rank, shown),
        has_gpu=False,
    ),
    "step_totals": Measurement(
        "the time of the steady steps by part and cause",
        lambda rank, judged, *_: steps.step_totals(rank, judged),
    ),
    "slow_steps": Measurement(
        "the steps that took far longer than usual, and what ran in them",
        lambda rank, judged, *_: steps.slow_steps(rank, judged),
        has_gpu=True,
    ),
    "stalls": Measurement(
        "host calls and operators that took far longer than usual",
        lambda rank, judged, *_: rank_stalls(rank, judged),
        has_gpu=True,
    ),
    "placed": Measurement(
        "the time of each kernel by its place in a step",
        lambda rank, judged, *_: placed_kernels.run(rank, judged),
        has_gpu=True,
    ),
    "passes": Measurement(
        "the compute of each rank between its messages",
        lambda rank, judged, *_: rank_passes(rank, judged),
    ),
}
MEASUREMENTS = {
    name: replace(one, measure=optional(name, otherwise=lambda *_: None)(one.measure))
    for name, one in _MEASUREMENTS.items()
}
"""The measurements by name, in the order in which they are taken."""


OfRun = TypeVar("OfRun")


class RankModule(Judge[Result], Protocol[Result]):
    """A module that measures one rank."""

    FINDINGS: dict[str, FindingKind]  # the kinds of findings it can make, by id
    # the values that its pages in `explanations/` name with a dollar sign: limits, advice
    PAGE: dict[str, str]

    def run(self, rank: Rank, window: Window) -> Result:
        """Return numbers only, of the window."""


class RunModule(Protocol[OfRun]):
    """A module that measures all ranks together."""

    FINDINGS: dict[str, FindingKind]  # as of a `RankModule`
    PAGE: dict[str, str]

    @property
    def __name__(self) -> str: ...

    def run(self, measured: MeasuredRun) -> OfRun:
        """Return numbers only."""

    def findings(self, result: OfRun) -> list[Finding | NotApplicable]:
        """Judge the numbers."""


class Registration(Record, frozen=True):
    """A registered analysis."""

    name: str  # the module's
    findings: dict[str, FindingKind]  # the kinds of findings it can make, by id
    page: dict[str, str]  # the values that its pages name
    judge: Callable[[MeasuredRun], list[Finding | NotApplicable]]  # judges a measured run
    # measures a window of a rank, None if it failed; None for an analysis of all ranks together
    measure: Callable[[Rank, Window], RankResult | None] | None = None
    requires: tuple[Part, ...] = ()  # the parts a trace must hold
    is_for_cpu: bool = False  # whether it also measures ranks without a GPU
    # whether its numbers are also shown for all that a rank did, whatever is judged
    is_listed: bool = False
    # returns all results, with those of this analysis refined
    refine: Callable[[Results, RankComparison], Results] = lambda results, _: results
    # judges the numbers of a rank; None for an analysis of all ranks together
    claims: Callable[[Any], list[Finding | NotApplicable]] | None = None
    reads: tuple[str, ...] = ()  # the shared measurements and the other findings that it reads

    @staticmethod
    def of(
        module: RankModule[Result],
        *,
        requires: tuple[Part, ...] = (Part.GPU_OPERATIONS,),
        reads: tuple[str, ...] = (),
        is_for_cpu: bool = False,
        is_listed: bool = False,
        refined: Callable[[Result, RankComparison], Result] | None = None,
    ) -> Registration:
        """Register a module that measures each rank; see the fields.

        `is_for_cpu`: it requires nothing, for a rank has operations of a GPU, or ranges of its own.
        `refined`: returns a better result once ranks have been compared.
        """
        ids = tuple(module.FINDINGS)

        def judge(measured: MeasuredRun) -> list[Finding | NotApplicable]:
            judged = [
                claim for result in measured.results.of(module) for claim in module.findings(result)
            ]
            ranks = [result.rank for result in measured.results.of(module)]
            hidden = {rank: measured.hidden.get(rank, ()) for rank in ranks}
            judged = that_hold(module.FINDINGS, judged, hidden)
            claims = [*judged, *measured.missing.get(module.__name__, ())]
            num_ranks = len(measured.run.ranks) + len(measured.failed)
            return [*claims, *not_ruled_out(module.FINDINGS, claims, hidden, num_ranks)]

        def refine(results: Results, ranks: RankComparison) -> Results:
            if refined is None:
                return results
            return results.replaced(
                module, [refined(result, ranks) for result in results.of(module)]
            )

        measures = Registration(
            module.__name__,
            module.FINDINGS,
            module.PAGE,
            judge,
            module.run,
            () if is_for_cpu else requires,
            is_for_cpu,
            is_listed,
            refine,
            module.findings,
            reads,
        )
        if not ids:  # the breakdown, which nothing stands in for
            return measures
        return replace(
            measures,
            judge=optional(*ids, otherwise=lambda _: [])(judge),
            measure=optional(*ids, otherwise=lambda *_: None)(module.run),
            refine=optional(*ids, otherwise=lambda results, _: results)(refine),
        )

    @staticmethod
    def of_run(module: RunModule[OfRun], *, reads: tuple[str, ...]) -> Registration:
        """Register a module that measures all ranks together."""

        def judge(measured: MeasuredRun) -> list[Finding | NotApplicable]:
            # What one rank lost, the others are compared with.
            lost = tuple(cause for several in measured.hidden.values() for cause in several)
            hidden = dict.fromkeys((rank.rank for rank in measured.run.ranks), lost)
            judged = that_hold(module.FINDINGS, module.findings(module.run(measured)), hidden)
            num_ranks = len(measured.run.ranks)
            if judged or num_ranks < 2:
                return judged
            return not_ruled_out(module.FINDINGS, (), measured.hidden, num_ranks)

        return Registration(
            module.__name__,
            module.FINDINGS,
            module.PAGE,
            optional(*module.FINDINGS, otherwise=lambda _: [])(judge),
            reads=reads,
        )
