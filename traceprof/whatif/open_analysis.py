"""What a replay needs to be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from traceprof.analyses.run_result import RunResult
    from traceprof.run.opening import Run


class OpenAnalysis(Protocol):
    """A run that was analysed, and whose reports are open."""

    @property
    def result(self) -> RunResult:
        """What was found out."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""
