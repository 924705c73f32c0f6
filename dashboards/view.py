"""The data of one page: the results of the ranks that its address chooses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from dashboards.address import TIMELINE
from dashboards.time_axis import Clock
from dashboards.time_range import compute_within, kernels_within, measured_within, time_range
from traceprof.errors import UsageError, one_line
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from dashboards.address import Address, Scope
    from dashboards.time_axis import RankClock
    from traceprof.analyses.compute.compute_parts import ComputeParts
    from traceprof.analyses.kernels.kernel_table import KernelTable
    from traceprof.analyses.shape.results import Judge, RankResult, Result
    from traceprof.analysis import Analysis
    from traceprof.findings import Finding, NotApplicable
    from traceprof.run.opening import Rank

Measured = TypeVar("Measured", bound="RankResult")


@dataclass(frozen=True)
class View:
    """An analysis, with the choice of an address.

    Attributes:
        analysis: of the run.
        address: the ranks, reports and time to show.
    """

    analysis: Analysis
    address: Address

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The chosen ranks, ordered by number.

        Raises:
            UsageError: the address names a rank or a report that the run does not have.
        """
        run, scope = self.analysis.run, self.address.chosen
        _check("rank", {*scope.rank, *self.address.rank}, [rank.rank for rank in run.ranks])
        _check("report", {*scope.report, *self.address.report}, range(len(run.traces)))
        chosen = (
            rank
            for rank in run.ranks
            if (not scope.rank or rank.rank in scope.rank)
            and (not scope.report or rank.report in scope.report)
        )
        return tuple(sorted(chosen, key=lambda rank: rank.rank))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The numbers of the ranks chosen."""
        return frozenset(rank.rank for rank in self.ranks)

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return the results of a module of `ANALYSES` for the chosen ranks, ordered by number.

        If a time range is chosen, only that range is measured.
        """
        return self._chosen(
            lambda rank, scope, clock: measured_within(rank, module, scope, clock),
            self.analysis.of(module),
        )

    @property
    def kernels(self) -> tuple[KernelTable, ...]:
        """The tables of kernels of the ranks chosen, in the time chosen."""
        return self._chosen(kernels_within, self.analysis.result.kernels)

    @property
    def compute(self) -> tuple[ComputeParts, ...]:
        """What the compute of the ranks chosen consists of, in the time chosen."""
        return self._chosen(compute_within, self.analysis.result.compute)

    def _chosen(
        self, within: Callable[[Rank, Scope, RankClock], Measured | None], whole: Iterable[Measured]
    ) -> tuple[Measured, ...]:
        scope = self.address.chosen
        if scope.has_range:
            results = (within(rank, scope, self.clock.rank(rank.rank)) for rank in self.ranks)
            return tuple(result for result in results if result is not None)
        chosen = (result for result in whole if result.rank in self.numbers)
        return tuple(sorted(chosen, key=lambda result: result.rank))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the ranks chosen, in the analysis' order."""
        return tuple(finding for finding in self.analysis.findings if finding.rank in self.numbers)

    @property
    def unit(self) -> str:
        """The unit of a saving: a step or, if no steps are known, the whole judged time."""
        headline = self.analysis.result.headline
        if headline is None or headline.lengths is not None:
            return "a step"
        return f"the {headline.breakdown.judged_kind}"

    def missing(self, *ids: str) -> tuple[NotApplicable, ...]:
        """Return which of these findings, or of all, could not be judged on the chosen ranks."""
        return tuple(
            gap
            for gap in self.analysis.not_applicable
            if (not ids or gap.id in ids) and (gap.rank is None or gap.rank in self.numbers)
        )

    def rank(self, number: int) -> Rank:
        """Return a rank of the run by its number."""
        return next(rank for rank in self.analysis.run.ranks if rank.rank == number)

    @cached_property
    def clock(self) -> Clock:
        """The clock of the axes of time."""
        return Clock.of(self.analysis)

    def window(self, number: int, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the part of a span that the address chooses, on the clock of the rank's report."""
        start, end = time_range(self.address.chosen, self.clock.rank(number))
        start = start_ns if start is None else start
        return start, max(end_ns if end is None else end, start + 1)

    def rank_address(self, number: int) -> Address:
        """Return the timeline's address for a rank in the chosen time."""
        chosen = self.address.chosen
        return self.address.to_place(
            TIMELINE, rank=(number,), start_ns=chosen.start_ns, end_ns=chosen.end_ns
        )

    @cached_property
    def machines(self) -> dict[int, str]:
        """The names of the machines, by the ranks' numbers."""
        compared = self.analysis.ranks
        names = dict(zip(compared.ranks, compared.machines, strict=True))
        return {rank.rank: names.get(rank.rank, "not known") for rank in self.ranks}

    def report_name(self, index: int) -> str:
        """Return the file name of a report for display."""
        return one_line(self.analysis.run.traces[index].path.name)


MAX_NAME = 80  # characters of a GPU's, a machine's or a group's name that are shown


def device_text(device: int | None, gpu: str | None) -> str:
    """Return a rank's device and its name: `GPU 0 · NVIDIA A100-SXM4-80GB`.

    Long names are cut: thousands of characters would block the browser's layout.
    """
    if device is None:
        return "CPU"
    return f"GPU {device} · {one_line(gpu, MAX_NAME)}" if gpu else f"GPU {device}"


def _check(what: str, numbers: Collection[int], there: Collection[int]) -> None:
    unknown = sorted({*numbers} - {*there})
    if unknown:
        has = ranks_text(there).replace("rank", what) if there else f"no {what}"
        raise UsageError(
            f"cannot show {what} {unknown[0]}", f"the run has {has}", "choose among them"
        )
