"""What a step would gain at most by what findings cost: what they cost in steady steps."""

import pytest

from tests.support.opened import closed_analysis
from tests.support.traces import SAMPLE_FOLDER
from traceprof.run.steps.steady_rules import StepUse


@pytest.mark.parametrize(
    ("sample", "id_", "num_steps"),
    [
        ("turnaround", "unfused-kernels", 6),
        ("full-precision-matmul", "full-precision-matmul", 6),
        ("pageable-copy", "pageable-copy", 8),
        ("late-allreduce", "late-allreduce", 5),  # judged in steady steps only
    ],
)
def test_a_step_that_is_cut_adds_nothing_to_what_others_cost(
    sample: str, id_: str, num_steps: int
) -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / f"{sample}.sqlite", savings=False)
    findings = [finding for finding in analysis.findings if finding.id == id_]
    assert findings
    for finding in findings:
        steps = [step for one in analysis.result.breakdown for step in one.steps]
        assert any(step.use for step in steps)  # one is cut, and alike otherwise
        assert finding.saving is not None
        assert finding.saving.high_ns == pytest.approx(finding.impact_ns / num_steps, rel=0.01)


def test_who_waits_for_other_stages_gains_no_more_than_the_wait() -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / "pipeline-sends.sqlite", savings=False)
    bubbles = {one.rank: one for one in analysis.findings if one.id == "pipeline-bubble"}
    assert len(bubbles) == 4
    for result in analysis.result.breakdown:
        steady = [step.measures for step in result.steps if step.use is StepUse.STEADY]
        waited = sum(step.window_ns - step.compute_ns for step in steady) / len(steady)
        saving = bubbles[result.rank].saving
        assert saving is not None
        assert saving.high_ns == pytest.approx(waited, abs=1)
