"""`traceprof.testing`: what a project asserts in its own tests."""

from pathlib import Path

import msgspec
import pytest

from tests.support.claims import DDP, LATE, OPTIONS
from traceprof.analysis import analyze_reports
from traceprof.comparison.sides import loaded
from traceprof.documents.analysis.records import document
from traceprof.errors import UsageError
from traceprof.store import save
from traceprof.testing import RecordedRun


def of(path: Path) -> RecordedRun:
    return RecordedRun(loaded([path], OPTIONS), OPTIONS)


def test_exposed_communication_is_that_of_the_worst_rank() -> None:
    run = of(DDP)
    totals = document(analyze_reports([DDP], OPTIONS)).step_totals
    shares = [one.exposed_communication_ns / one.window_ns for one in totals]
    assert run.exposed_communication == max(shares)
    assert run.exposed_communication_below(max(shares) + 1e-6) is run
    with pytest.raises(AssertionError, match=r"% of a step is exposed communication in .*ddp"):
        run.exposed_communication_below(max(shares))


def test_findings_above_a_severity_fail() -> None:
    run = of(LATE)
    with pytest.raises(AssertionError, match=r"(?s)findings above low.*late-allreduce"):
        run.no_finding_above("low")
    ids = {finding.id for finding in run.findings}
    assert run.no_finding_above("low", ignore=ids) is run
    assert run.no_finding_above("high") is run
    with pytest.raises(UsageError, match="it is not a severity"):
        run.no_finding_above("terrible")


def test_a_step_is_compared_with_a_stored_one(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    allowed = ["recording"]
    result = analyze_reports([DDP], OPTIONS)
    save(store, result, "few steps")
    with pytest.raises(AssertionError, match=r"step:\+0\.1% is inconclusive"):
        of(DDP).step_not_slower_than(f"{store}#few steps", by=0.001, allow_different=allowed)
    many, slower = document(result), document(result)
    for made, factor in ((many, 1.0), (slower, 1.1)):
        for totals in made.step_totals:
            own = [step for step in made.steps if step.rank == totals.rank]
            more = [msgspec.structs.replace(step, step=step.step + 100) for step in own] * 3
            made.steps += more
        made.step_totals = [
            msgspec.structs.replace(totals, steps=tuple(range(1, 20)))
            for totals in made.step_totals
        ]
        made.steps.sort(key=lambda step: step.rank)
        for place, step in enumerate(made.steps):
            window_ns = round(factor * (3_500_000 + place % 5 * 1000))
            msgspec.structs.force_setattr(step, "window_ns", window_ns)
    run = RecordedRun(loaded([many]))
    assert run.step_not_slower_than(many, allow_different=allowed) is run
    with pytest.raises(AssertionError, match="not comparable: the same recording"):
        run.step_not_slower_than(many)
    assert run.step_not_slower_than(slower, by=0.0, allow_different=allowed) is run
    with pytest.raises(AssertionError, match=r"step:\+2% is not met"):
        RecordedRun(loaded([slower])).step_not_slower_than(many, allow_different=allowed)
    RecordedRun(loaded([slower])).step_not_slower_than(many, by=0.12, allow_different=allowed)
