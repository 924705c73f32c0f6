"""What was found out about reports that are still open."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.run.opening import Run


class OpenAnalysis(Protocol):
    """A run that was analysed, and whose reports are open."""

    @property
    def result(self) -> RunResult:
        """What was found out."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""


class AnalyzedReports(NamedTuple):
    """A run that was measured and judged, without what a replay adds.

    Attributes:
        result: the numbers, and what they mean.
        run: the reports and their ranks, with all that they did.
    """

    result: RunResult
    run: Run
