"""The shape of an analysis, and what the registry keeps of one.

An analysis is a module. `IDS` are the findings that it can make, `REQUIRES` what a trace must hold
so that it can run at all, `METRICS` the numbers of its findings; `run` measures, `findings` judges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from traceprof.analyses.shape.results import Judge, RankResult, Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.findings import Finding, Metrics, NotApplicable
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.parts import Part

Result = TypeVar("Result", bound=RankResult)
OfRun = TypeVar("OfRun")


class RankModule(Judge[Result], Protocol[Result]):
    """A module that measures one rank.

    Attributes:
        IDS: the findings it can make.
        METRICS: their numbers, by finding.
        PAGE: what its pages in `explanations/` name with a dollar sign: limits, advice.
        REQUIRES: what a trace must hold; where it does not, the runner says what is missing.
    """

    IDS: tuple[str, ...]
    METRICS: dict[str, type[Metrics]]
    PAGE: dict[str, str]
    REQUIRES: tuple[Part, ...]

    def run(self, rank: Rank, window: Window) -> Result:
        """Return numbers only, of the window."""


class RefinedModule(RankModule[Result], Protocol[Result]):
    """A module whose numbers get better when ranks have been compared with each other."""

    def refined(self, result: Result, ranks: RankComparison) -> Result:
        """Return the better numbers."""


class RunModule(Protocol[OfRun]):
    """A module that looks at all ranks together.

    Attributes:
        IDS: the findings it can make.
        METRICS: their numbers, by finding.
        PAGE: what its pages in `explanations/` name with a dollar sign: limits, advice.
    """

    IDS: tuple[str, ...]
    METRICS: dict[str, type[Metrics]]
    PAGE: dict[str, str]

    def run(self, measured: MeasuredRun) -> OfRun:
        """Return numbers only."""

    def findings(self, result: OfRun) -> list[Finding | NotApplicable]:
        """Judge the numbers."""


@dataclass(frozen=True)
class RankAnalysis:
    """An analysis of ranks, as the registry keeps it.

    Attributes:
        name: the module's.
        ids: the findings it can make.
        metrics: their numbers, by finding.
        page: the values that its pages name.
        requires: what a trace must hold.
        is_for_cpu: whether it is also for ranks without a GPU.
        is_listed: whether its numbers are also shown of all that a rank did, whatever is judged.
        run: measures a window of a rank.
        judge: judges what it measured on all ranks.
        refine: returns all results, its own refined.
    """

    name: str
    ids: tuple[str, ...]
    metrics: dict[str, type[Metrics]]
    page: dict[str, str]
    requires: tuple[Part, ...]
    is_for_cpu: bool
    is_listed: bool
    run: Callable[[Rank, Window], RankResult]
    judge: Callable[[Results], list[Finding | NotApplicable]]
    refine: Callable[[Results, RankComparison], Results]


@dataclass(frozen=True)
class RunAnalysis:
    """An analysis of whole runs, as the registry keeps it.

    Attributes:
        ids: the findings it can make.
        metrics: their numbers, by finding.
        page: the values that its pages name.
        judge: measures and judges a run.
    """

    ids: tuple[str, ...]
    metrics: dict[str, type[Metrics]]
    page: dict[str, str]
    judge: Callable[[MeasuredRun], list[Finding | NotApplicable]]


def gpu_ranks(module: RankModule[Result]) -> RankAnalysis:
    """Register a module for ranks with a GPU."""
    return _registered(module, is_for_cpu=False)


def all_ranks(module: RankModule[Result]) -> RankAnalysis:
    """Register a module for ranks with and without a GPU."""
    return _registered(module, is_for_cpu=True)


def listed_gpu_ranks(module: RankModule[Result]) -> RankAnalysis:
    """Register a module for ranks with a GPU, whose numbers are shown of all that a rank did."""
    return _registered(module, is_for_cpu=False, is_listed=True)


def refined_gpu_ranks(module: RefinedModule[Result]) -> RankAnalysis:
    """Register one of these, whose numbers the comparison of ranks refines."""

    def refine(results: Results, ranks: RankComparison) -> Results:
        return results.replaced(
            module, [module.refined(result, ranks) for result in results.of(module)]
        )

    return _registered(module, is_for_cpu=False, is_listed=True, refine=refine)


def refined_ranks(module: RefinedModule[Result]) -> RankAnalysis:
    """Register a module for all ranks, whose numbers the comparison of ranks refines."""
    return replace(refined_gpu_ranks(module), is_for_cpu=True)


def whole_run(module: RunModule[OfRun]) -> RunAnalysis:
    """Register a module for runs."""

    def judge(measured: MeasuredRun) -> list[Finding | NotApplicable]:
        return module.findings(module.run(measured))

    return RunAnalysis(ids=module.IDS, metrics=module.METRICS, page=module.PAGE, judge=judge)


def _registered(
    module: RankModule[Result],
    *,
    is_for_cpu: bool,
    is_listed: bool = False,
    refine: Callable[[Results, RankComparison], Results] | None = None,
) -> RankAnalysis:
    def judge(results: Results) -> list[Finding | NotApplicable]:
        return [judged for result in results.of(module) for judged in module.findings(result)]

    return RankAnalysis(
        name=module.__name__,
        ids=module.IDS,
        metrics=module.METRICS,
        page=module.PAGE,
        requires=module.REQUIRES,
        is_for_cpu=is_for_cpu,
        is_listed=is_listed,
        run=module.run,
        judge=judge,
        refine=refine or _unchanged,
    )


def _unchanged(results: Results, ranks: RankComparison) -> Results:
    del ranks
    return results
