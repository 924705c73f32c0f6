"""The model of passes: it agrees with the replay where that answers, and with published numbers."""

from pathlib import Path

import pytest

import traceprof
from tests.support.traces import SAMPLE_FOLDER, closed_analysis
from traceprof.analyses import breakdown
from traceprof.analysis import Options, analyze_reports
from traceprof.replay import pass_model
from traceprof.replay.pass_model import equal_step


@pytest.mark.parametrize("name", ["uneven-clock", "exposed-waiting"])
def test_it_agrees_with_the_replay(name: str) -> None:
    path = SAMPLE_FOLDER / f"{name}.sqlite"
    asked = traceprof.whatif(path, assume=["equal-kernels"])
    (replayed,) = asked.whatif.answers
    assert "model of passes" not in replayed.note
    known = equal_step(closed_analysis(path).measured, "equal-kernels")
    assert known is not None
    assert abs(known.off) < 0.01
    assert known.equal_ns - known.step_ns == pytest.approx(replayed.change_ns, rel=0.05)
    assert equal_step(closed_analysis(path).measured, "equal-stages") is None


def test_it_answers_where_the_replay_refuses() -> None:
    path = SAMPLE_FOLDER / "uneven-experts.sqlite"
    (reply,) = traceprof.whatif(path, assume=["equal-kernels"]).whatif.answers
    assert "model of passes" in reply.note
    analysis = closed_analysis(path, savings=True)
    results = analysis.of(breakdown)
    computed_ns = sum(of_rank.judged.compute_ns for of_rank in results) / len(results)
    mean_ns = computed_ns / len(results[0].steps)
    assert mean_ns < (reply.step_ns or 0) < 1.05 * mean_ns  # and what collectives themselves take
    (finding,) = (one for one in analysis.findings if one.id == "uneven-kernels")
    assert finding.saving is not None
    assert finding.saving.assume == "equal-kernels"
    assert finding.saving.high_ns == -(reply.change_ns or 0)
    assert "model of passes" in (finding.saving.why or "")


def test_it_says_nothing_where_its_own_run_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_model, "MAX_OFF", 0.0)
    analysis = analyze_reports([SAMPLE_FOLDER / "uneven-clock.sqlite"], Options(savings=False))
    assert equal_step(analysis.measured, "equal-kernels") is None


@pytest.mark.parametrize(
    ("job", "what", "published", "within"),
    [
        ("bytedance_st", "equal-stages", 1.179, 0.03),
        pytest.param("bytedance_se", "equal-kernels", 1.537, 0.05, marks=pytest.mark.long),
    ],
)
def test_published_answers(
    traces: Path, job: str, what: str, published: float, within: float
) -> None:
    known = equal_step(closed_analysis(traces / "kineto" / job).measured, what)
    assert known is not None
    assert known.step_ns / known.equal_ns == pytest.approx(published, rel=within)
