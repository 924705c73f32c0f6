"""Assertions about recordings, for the tests of a project: a fixture of pytest.

In `conftest.py`: `pytest_plugins = ["traceprof.testing"]`. Then a test takes `recorded_run`:

    def test_training_is_not_slower(recorded_run):
        run = recorded_run("reports/")
        run.exposed_communication_below(0.05)
        run.no_finding_above("low")
        run.step_not_slower_than("runs.db#baseline", by=0.02)
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from traceprof.comparison.ask import compared, without_predictions
from traceprof.comparison.gates import parse
from traceprof.comparison.sides import LoadedSide, Source, check_allowed, loaded
from traceprof.errors import UsageError
from traceprof.execution.options import Options
from traceprof.findings import Finding, Severity


class RecordedRun:
    """A recording, or several of the same program; failed checks raise an AssertionError.

    Args:
        side: the recording.
        options: options for reports that it is compared with.
    """

    def __init__(self, side: LoadedSide, options: Options | None = None) -> None:
        self._side, self._options = side, options

    @property
    def exposed_communication(self) -> float:
        """Communication that no compute hides, as a share of the step, on the worst rank."""
        return max(
            (
                totals.exposed_communication_ns / totals.window_ns
                for capture in self._side.captures
                for totals in capture.step_totals
                if totals.window_ns
            ),
            default=0.0,
        )

    @property
    def findings(self) -> list[Finding]:
        """All findings, for each recording in the order in which to act on them."""
        return [finding for capture in self._side.captures for finding in capture.findings]

    def exposed_communication_below(self, share: float) -> RecordedRun:
        """Assert that exposed communication is less than this share of a step on every rank.

        Args:
            share: 0 to 1.

        Raises:
            AssertionError: it is not.
        """
        measured = self.exposed_communication
        if not measured < share:
            raise AssertionError(
                f"{100 * measured:.2f} % of a step is exposed communication in {self._side.name},"
                f" not below {100 * share:.2f} %"
            )
        return self

    def no_finding_above(self, limit: str, *, ignore: Collection[str] = ()) -> RecordedRun:
        """Assert that no finding is more severe than a limit.

        Args:
            limit: `info`, `low` or `medium`.
            ignore: ids of findings that may be more severe.

        Raises:
            AssertionError: one is.
            UsageError: there is no such severity.
        """
        if limit.lower() not in [*Severity]:
            known = ", ".join(map(str, Severity))
            raise UsageError(
                f"cannot check {limit!r}", "it is not a severity", f"use one of {known}"
            )
        above = [
            finding
            for finding in self.findings
            if finding.severity > Severity(limit.lower()) and finding.id not in ignore
        ]
        if above:
            claims = "\n".join(
                f"{claim.severity} {claim.id}, rank {claim.rank}: {claim.title}" for claim in above
            )
            raise AssertionError(f"findings above {limit} in {self._side.name}:\n{claims}")
        return self

    def step_not_slower_than(
        self, stored: Source, *, by: float = 0.02, allow_different: Collection[str] = ()
    ) -> RecordedRun:
        """Assert that a step is not slower than another recording's; an unclear result fails.

        Args:
            stored: `runs.db#NAME`, a saved JSON analysis, or a report.
            by: how much slower it may be, as a fraction; the interval's upper end is judged.
            allow_different: what may differ, such as `gpu`; otherwise sides that are not
                comparable fail.

        Raises:
            AssertionError: it is slower, or the result is unclear.
            TraceprofError: the other recording cannot be read.
        """
        check_allowed(allow_different)
        gate = parse(f"step:+{100 * by:f}%")
        comparison = compared(loaded([stored], self._options), self._side, [gate], allow_different)
        if not comparison.is_met:
            claim = f"step:+{100 * by:g}% is {comparison.gates[0].outcome}"
            raise AssertionError(f"{claim}: {comparison.gates[0].reason} ({self._side.name})")
        return self


@pytest.fixture
def recorded_run() -> Callable[..., RecordedRun]:
    """Return a function that reads or analyses a recording: `recorded_run(*sources, options=None)`.

    Sources are what `traceprof compare` takes: reports, folders, saved analyses, `runs.db#NAME`.
    """

    def read(*sources: Source, options: Options | None = None) -> RecordedRun:
        how = without_predictions(options or Options())
        return RecordedRun(loaded(sources, how), how)

    return read
