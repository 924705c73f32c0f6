"""The shape of an analysis, and its registration.

An analysis is a module, or a package whose `__init__` has this shape. `FINDINGS` are the kinds of
findings that it can make, `REQUIRES` the parts that a trace must hold so that it can run; `run`
measures, `findings` judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from msgspec.structs import replace

from traceprof.analyses.measurements.hidden import not_ruled_out, that_hold
from traceprof.analyses.shape.results import Judge, RankResult, Results
from traceprof.run.guard import optional
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.findings import Finding, FindingKind, NotApplicable
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.parts import Part

Result = TypeVar("Result", bound=RankResult)
OfRun = TypeVar("OfRun")


class RankModule(Judge[Result], Protocol[Result]):
    """A module that measures one rank."""

    FINDINGS: dict[str, FindingKind]  # the kinds of findings it can make, by id
    # the values that its pages in `explanations/` name with a dollar sign: limits, advice
    PAGE: dict[str, str]
    # the parts a trace must hold; where one is missing, the report says which
    REQUIRES: tuple[Part, ...]
    # the shared measurements and the other findings whose results it reads, or may be part of
    READS: tuple[str, ...]

    def run(self, rank: Rank, window: Window) -> Result:
        """Return numbers only, of the window."""


class RunModule(Protocol[OfRun]):
    """A module that measures all ranks together; it has no `REQUIRES`."""

    FINDINGS: dict[str, FindingKind]  # the kinds of findings it can make, by id
    # the values that its pages in `explanations/` name with a dollar sign: limits, advice
    PAGE: dict[str, str]
    READS: tuple[str, ...]  # the shared measurements and the other findings that it reads

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

    @overload
    @staticmethod
    def of(
        module: RankModule[Result],
        *,
        is_for_cpu: bool = False,
        is_listed: bool = False,
        refined: Callable[[Result, RankComparison], Result] | None = None,
    ) -> Registration: ...

    @overload
    @staticmethod
    def of(module: RunModule[OfRun]) -> Registration: ...

    @staticmethod
    def of(
        module: Any,
        *,
        is_for_cpu: bool = False,
        is_listed: bool = False,
        refined: Callable[[Any, RankComparison], Any] | None = None,
    ) -> Registration:
        """Register a module, which measures each rank, or all ranks together.

        `is_for_cpu`: also ranks without a GPU; `is_listed`: its numbers are also shown for all
        that a rank did; `refined` returns a better result once ranks have been compared.
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

        def judge_run(measured: MeasuredRun) -> list[Finding | NotApplicable]:
            # What one rank lost, the others are compared with.
            lost = tuple(cause for several in measured.hidden.values() for cause in several)
            hidden = dict.fromkeys((rank.rank for rank in measured.run.ranks), lost)
            judged = that_hold(module.FINDINGS, module.findings(module.run(measured)), hidden)
            num_ranks = len(measured.run.ranks)
            if judged or num_ranks < 2:
                return judged
            return not_ruled_out(module.FINDINGS, (), measured.hidden, num_ranks)

        def refine(results: Results, ranks: RankComparison) -> Results:
            if refined is None:
                return results
            return results.replaced(
                module, [refined(result, ranks) for result in results.of(module)]
            )

        if not hasattr(module, "REQUIRES"):
            return Registration(
                module.__name__,
                module.FINDINGS,
                module.PAGE,
                optional(*ids, otherwise=lambda _: [])(judge_run),
                reads=module.READS,
            )
        measures = Registration(
            module.__name__,
            module.FINDINGS,
            module.PAGE,
            judge,
            module.run,
            module.REQUIRES,
            is_for_cpu,
            is_listed,
            refine,
            module.findings,
            module.READS,
        )
        if not ids:  # the breakdown, which nothing stands in for
            return measures
        return replace(
            measures,
            judge=optional(*ids, otherwise=lambda _: [])(judge),
            measure=optional(*ids, otherwise=lambda *_: None)(module.run),
            refine=optional(*ids, otherwise=lambda results, _: results)(refine),
        )
