"""The result of analysing a run: its measurements, and the verdict on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import field
from msgspec.structs import replace

from traceprof.analyses import breakdown, collectives
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.collectives import CollectivesResult, ProcessGroupsResult
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.results import Judge, Result
from traceprof.analyses.steps import PARTS, in_whole_ns, mean_step
from traceprof.analyses.verdict.attribution import Attribution
from traceprof.analyses.verdict.headline import Headline
from traceprof.findings import Finding, NotApplicable, costliest_like
from traceprof.ranks.comparison import RankComparison
from traceprof.run.completeness import Losses
from traceprof.run.opening import RunSummary
from traceprof.run.summary import FailedReport
from traceprof.structs import Record


class Verdict(Record, frozen=True):
    """The verdict on a run."""

    findings: tuple[Finding, ...] = ()  # the claims, in the order in which to act on them
    # findings that could be neither made nor ruled out
    not_applicable: tuple[NotApplicable, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()  # (report index, note on its data)
    # the run in one line, by all findings, also those that were not asked for
    headline: Headline | None = None
    # the findings or reasons that account for the time in which ranks did not compute, by all
    # findings, too
    attributions: tuple[Attribution, ...] = ()
    # what to assume so that findings are gone, by id, of those where something fits
    assumed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # of the phases of the program that are not the longest, by their numbers
    phases: Mapping[int, Verdict] = field(default_factory=dict)

    def listed(self, only: Collection[str], skip: Collection[str]) -> Verdict:
        """Return the verdict with the findings that were asked for.

        Headline and attributions stay those of all. `only`: ids, all where empty; `skip`: ids.
        """
        hidden = {*skip} | ({*FINDING_IDS} - {*only} if only else set())
        return replace(
            self,
            findings=tuple(finding for finding in self.findings if finding.id not in hidden),
            not_applicable=tuple(gap for gap in self.not_applicable if gap.id not in hidden),
        )

    def with_failures(self, failures: Iterable[NotApplicable]) -> Verdict:
        """Return the verdict that says, too, what is missing since optional parts failed."""
        known = {(gap.id, gap.reason) for gap in self.not_applicable}
        further = [gap for gap in failures if (gap.id, gap.reason) not in known]
        return replace(self, not_applicable=(*self.not_applicable, *dict.fromkeys(further)))


class RunResult(Record, frozen=True):
    """The result of analysing a run, whether its reports are still open or not."""

    measured: MeasuredRun  # the reports, their ranks, and the measurements
    verdict: Verdict = Verdict()  # the findings; empty while the reports are being read

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The claims, in the order in which to act on them."""
        return self.verdict.findings

    @property
    def not_applicable(self) -> tuple[NotApplicable, ...]:
        """Findings that could be neither made nor ruled out."""
        return self.verdict.not_applicable

    @property
    def headline(self) -> Headline | None:
        """The run in one line; None if nothing was measured."""
        return self.verdict.headline

    def in_phase(self, finding: Finding) -> tuple[RunResult, Finding] | None:
        """Return the phase in which a finding lies mostly, as a run, and the finding in it.

        None if its saving is of the steps of that phase.
        """
        number = None if finding.elsewhere is None else finding.elsewhere.phase
        if number is None:
            return None
        phase = RunResult(self.measured.phases[number], self.verdict.phases[number])
        inside = costliest_like(finding, phase.findings)
        return None if inside is None else (phase, inside)

    @property
    def scalars(self) -> dict[str, int]:
        """Six numbers of the run in ns, for whoever follows many runs; {} without a rank."""
        if self.headline is None:
            return {}
        totals = self.measured.step_totals
        if not totals:
            return {}
        mean = in_whole_ns(mean_step(totals, has_steps=any(rank.num_steps for rank in totals)))
        possible_ns = self.headline.savings.possible_step_ns
        return {
            "step_ns": self.headline.step_ns,
            **({} if possible_ns is None else {"possible_step_ns": possible_ns}),
            **{name: mean[name] for name in PARTS},
        }

    @property
    def notes(self) -> tuple[tuple[int, str], ...]:
        """Notes on the data: (report index, note)."""
        return self.verdict.notes

    @property
    def failed(self) -> tuple[FailedReport, ...]:
        """Reports that could not be analysed; the run has none of them."""
        return self.measured.failed

    @property
    def run(self) -> RunSummary:
        """The reports and their ranks."""
        return self.measured.run

    @property
    def ranks(self) -> RankComparison:
        """The comparison of the ranks: clocks, waits, transfers."""
        return self.measured.ranks

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank, as `MeasuredRun.of` does."""
        return self.measured.of(module)

    @property
    def completeness(self) -> tuple[tuple[int, Losses], ...]:
        """What the recordings of ranks with a GPU lack, by rank."""
        return tuple(self.measured.losses.items())

    @property
    def breakdown(self) -> tuple[BreakdownResult, ...]:
        """Breakdowns of time, by rank."""
        return self.of(breakdown)

    @property
    def collectives(self) -> tuple[CollectivesResult | ProcessGroupsResult, ...]:
        """Communication by operation, by rank: first of those with a GPU."""
        return (*self.of(collectives), *self.measured.shown_process_groups)
