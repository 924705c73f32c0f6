"""The data of one page: the results of the ranks that its address chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar, cast

from dashboards.address import TIMELINE, Address
from dashboards.clock import Clock, RankClock
from traceprof.analyses import compute_parts
from traceprof.analyses.compute_parts import ComputeParts
from traceprof.analyses.kernels import kernel_table, launched_kernels
from traceprof.analyses.kernels.kernel_table import KernelTable
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.results import Judge, RankResult, Result
from traceprof.analysis import Analysis
from traceprof.errors import UsageError, one_line
from traceprof.findings import Finding, NotApplicable
from traceprof.reports.tracks import Moment, Scene, rank_scenes
from traceprof.run.opening import Rank
from traceprof.run.rank import Window
from traceprof.run.windows import time_window
from traceprof.units import ranks_text

Measure = Callable[[Rank, Window], RankResult | None]

Measured = TypeVar("Measured", bound="RankResult")
_BY_NAME = {analysis.name: analysis for analysis in ANALYSES}
# What a rank is measured from takes memory: it is released before the next one is measured.
_lock = threading.Lock()


def time_range(scope: Address, clock: RankClock) -> tuple[int | None, int | None]:
    """Return the chosen time range on the clock of a rank's report; None for an open end."""
    start, end = scope.start_ns, scope.end_ns
    return (None if start is None else clock.own(start), None if end is None else clock.own(end))


def _compute_parts(rank: Rank, window: Window) -> ComputeParts:
    return compute_parts.run(rank, window, launched_kernels.run(rank, window))


@lru_cache(maxsize=4096)
def _measured(measure: Measure, rank: Rank, window: Window) -> RankResult | None:
    """Return the result for a rank in a time; None if the rank did nothing then."""
    whole = rank.window
    if window.end_ns <= whole.start_ns or window.start_ns > whole.end_ns or not window.length_ns:
        return None
    result = measure(rank, window)
    rank.release()
    return result


@dataclass(frozen=True)
class View:
    """An analysis, with the choice of an address."""

    analysis: Analysis  # of the run
    address: Address  # the ranks, reports and time to show

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The chosen ranks, ordered by number; an error if the run does not have them."""
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
        analysis = _BY_NAME[module.__name__]
        applies = [
            rank
            for rank in self.ranks
            if (rank.device is not None or analysis.is_for_cpu)
            and all(map(rank.trace.holds, analysis.requires))
        ]
        return self._chosen(self.analysis.of(module), applies, analysis.measure)

    @property
    def kernels(self) -> tuple[KernelTable, ...]:
        """The tables of kernels of the ranks chosen, in the time chosen."""
        return self._chosen(self.analysis.measured.kernels, self._gpus, kernel_table.run)

    @property
    def compute(self) -> tuple[ComputeParts, ...]:
        """What the compute of the ranks chosen consists of, in the time chosen."""
        return self._chosen(self.analysis.measured.compute, self._gpus, _compute_parts)

    @property
    def _gpus(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.device is not None]

    def _chosen(
        self, whole: Iterable[Measured], ranks: Iterable[Rank], measure: Measure | None
    ) -> tuple[Measured, ...]:
        """Return the chosen results; where a range is chosen, measure it on these ranks."""
        scope = self.address.chosen
        if not scope.has_range:
            chosen = (result for result in whole if result.rank in self.numbers)
            return tuple(sorted(chosen, key=lambda result: result.rank))
        if measure is None:
            return ()
        results = []
        for rank in ranks:
            window = time_window(rank, time_range(scope, self.clock.rank(rank.rank)))
            with _lock:
                results.append(_measured(measure, rank, window))
        return cast("tuple[Measured, ...]", tuple(one for one in results if one is not None))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the ranks chosen, in the analysis' order."""
        return tuple(finding for finding in self.analysis.findings if finding.rank in self.numbers)

    @property
    def unit(self) -> str:
        """The unit of a saving: a step or, if no steps are known, the whole judged time."""
        headline = self.analysis.result.headline
        if headline is None or headline.lengths is not None:
            return "a step" if headline is None else headline.breakdown.unit.unit.one
        return f"the {headline.breakdown.judged_kind}"

    def scene(self, finding: Finding) -> Scene:
        """Return what ran around the first evidence of a finding, which must have some."""
        rank, first = self.rank(finding.rank), finding.evidence[0]
        with _lock:
            (scene,) = rank_scenes(rank, [Moment(rank.rank, first.start_ns, first.end_ns)])
            rank.release()
        return scene

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
