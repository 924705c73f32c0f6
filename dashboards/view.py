"""What one page draws: the results of the ranks that its address chooses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dashboards.time_axis import Clock
from traceprof.errors import UsageError, one_line
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from dashboards.address import Address
    from traceprof.analyses.results import Judge, Result
    from traceprof.analysis import Analysis
    from traceprof.findings import Finding, NotApplicable
    from traceprof.run.opening import Rank


@dataclass(frozen=True)
class View:
    """An analysis, looked at by an address.

    Attributes:
        analysis: what was found out.
        address: what is to be seen of it.
    """

    analysis: Analysis
    address: Address

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks chosen, by number: reports come in any order.

        Raises:
            UsageError: the address names a rank or a report that the run has not.
        """
        run, address = self.analysis.run, self.address
        _check("rank", address.rank, [rank.rank for rank in run.ranks])
        _check("report", address.report, range(len(run.traces)))
        chosen = (
            rank
            for rank in run.ranks
            if (not address.rank or rank.rank in address.rank)
            and (not address.report or rank.report in address.report)
        )
        return tuple(sorted(chosen, key=lambda rank: rank.rank))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The numbers of the ranks chosen."""
        return frozenset(rank.rank for rank in self.ranks)

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what a module of `ANALYSES` measured on the ranks chosen, by their numbers."""
        chosen = (result for result in self.analysis.of(module) if result.rank in self.numbers)
        return tuple(sorted(chosen, key=lambda result: result.rank))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the ranks chosen, in the analysis' order."""
        return tuple(finding for finding in self.analysis.findings if finding.rank in self.numbers)

    def missing(self, *ids: str) -> tuple[NotApplicable, ...]:
        """Return what of these findings, or of all, could not be judged on the ranks chosen."""
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
        """What the axes of time count from."""
        return Clock.of(self.analysis)

    def window(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return what the address chooses of a span of time; all of it where it chooses nothing."""
        start = start_ns if self.address.start_ns is None else self.address.start_ns
        end = end_ns if self.address.end_ns is None else self.address.end_ns
        return start, max(end, start + 1)

    def report_name(self, index: int) -> str:
        """Return the file name of a report, fit to be shown."""
        return one_line(self.analysis.run.traces[index].path.name)


MAX_NAME = 80  # characters of a GPU's, a machine's or a group's name that are shown


def device_text(device: int | None, gpu: str | None) -> str:
    """Return a rank's device and its name: `GPU 0 · NVIDIA A100-SXM4-80GB`.

    A name of thousands of characters would make the browser lay out nothing else.
    """
    if device is None:
        return "CPU"
    return f"GPU {device} · {one_line(gpu, MAX_NAME)}" if gpu else f"GPU {device}"


def _check(what: str, asked: Collection[int], there: Collection[int]) -> None:
    unknown = sorted({*asked} - {*there})
    if unknown:
        has = ranks_text(there).replace("rank", what) if there else f"no {what}"
        raise UsageError(
            f"cannot show {what} {unknown[0]}", f"the run has {has}", "choose among them"
        )
