"""Runs that were measured, and whose reports are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.run.opening import Run


class OpenAnalysis(Protocol):
    """A run that was measured, and perhaps judged, with open reports."""

    @property
    def measured(self) -> MeasuredRun:
        """The measurements."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""
