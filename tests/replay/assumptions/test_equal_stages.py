"""Equal stages and kernels: replay and model of passes beside simulated and published runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import traceprof
from sample_traces.simulator.scenarios import ranks
from sample_traces.simulator.scenarios.pipelines import Plan, pipeline
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changes import recorded, step_ns
from tests.support.selection import known, long_after, rows_long_after
from tests.support.traces import SAMPLE_FOLDER, closed_analysis
from traceprof.analyses.pipeline_bubble import ID
from traceprof.analysis import Options, analyze_reports
from traceprof.findings import Basis
from traceprof.replay import pass_model
from traceprof.replay.pass_model import equal_step
from traceprof.replay.results import Answer
from traceprof.reports.text import render
from traceprof.units import duration, percent

_PLAN = Plan("1f1b", 4, 4, (1.0, 1.4, 1.0, 1.0), 4)
_MORE = replace(_PLAN, num_micro_batches=8)  # of whose bubbles equal stages remove more


def answer(path: Path, assume: str = "equal-stages") -> Answer:
    return traceprof.whatif(path, assume=[assume]).whatif.answers[0]


def said_and_true(plan: Plan, seed: int, path: Path) -> tuple[Answer, float]:
    """Return what is said of a pipeline, and the gain of simulated equal stages."""
    equal = replace(plan, work=(sum(plan.work) / plan.num_stages,) * plan.num_stages)
    setup, other = (pipeline(np.random.default_rng(seed), one) for one in (plan, equal))
    result = setup.run()
    gained = step_ns(result) - step_ns(other.run(), result)
    return answer(recorded(setup, path, result)), gained


_MANY = (1.0, 1.0, 1.3, 1.0, 0.7, 1.0, 1.2, 1.0)


@pytest.mark.parametrize(
    ("plan", "seeds"),
    rows_long_after(
        1,
        [
            (Plan("interleaved", 2, 4, (1.0, 1.5), 4), 1),
            (_PLAN, 1),
            (Plan("1f1b", 3, 3, (0.8, 1.4, 1.0), 4, is_prefetching=True), 1),
            (Plan("1f1b", 4, 4, (1.0, 1.6, 1.0, 1.0), 4, is_copying=True), 1),
            *(
                (plan, 10)
                for plan in (replace(_MORE, num_steps=6), Plan("1f1b", 2, 4, (1.0, 1.6), 8))
            ),
            *((Plan(order, 8, 16, _MANY, 4), 1) for order in ("gpipe", "1f1b", "interleaved")),
        ],
    ),
)
def test_the_limit_is_not_beaten_and_close(plan: Plan, seeds: int, tmp_path: Path) -> None:
    for seed in range(seeds):
        said, gained = said_and_true(plan, seed, tmp_path / f"{seed}.sqlite")
        assert said.is_bound
        assert said.change_ns is not None, said.refused
        assert 0 < gained <= -said.change_ns <= 1.03 * gained  # a limit is 1 % more


@pytest.mark.long
def test_equal_stages_have_nothing_to_gain(tmp_path: Path) -> None:
    plan = replace(_PLAN, work=(1.0,) * 4)
    said, gained = said_and_true(plan, 0, tmp_path / "run.sqlite")
    assert gained == 0
    assert 0 <= -known(said.change_ns) < 0.001 * known(said.step_ns)


@pytest.mark.parametrize(
    ("plan", "share"),
    rows_long_after(
        1,
        [(replace(_MORE, num_steps=3), True), (replace(_PLAN, work=(1.0, 1.02, 1.0, 1.0)), False)],
    ),
)
def test_a_finding_and_whatif_say_the_same(plan: Plan, share: bool, tmp_path: Path) -> None:
    """Where equal stages would remove a tenth of the bubbles or more, of what share is said."""
    path = recorded(pipeline(np.random.default_rng(0), plan), tmp_path / "run.sqlite")
    result = analyze_reports([path])
    bubbles = [finding for finding in result.findings if finding.id == ID]
    (saving,) = {finding.saving for finding in bubbles} if share else {bubbles[0].saving}
    assert saving is not None
    assert saving.basis is Basis.BOUND
    if not share:
        assert (saving.assume, saving.share) == (None, None)
        assert saving.why == "no replay can remove it: the limit is all time that it involves"
        return
    said = answer(path)
    assert (saving.assume, saving.high_ns) == ("equal-stages", -known(said.change_ns))
    parts = [finding.metrics for finding in bubbles]
    whole, part = (
        sum(int(one[name] or 0) for one in parts) for name in ("bubble_ns", "imbalance_ns")
    )
    assert saving.share == pytest.approx(part / whole)
    shown = " ".join(render(result, is_verbose=True).split())
    at_most = f"a step takes at most {duration(saving.high_ns or 0)} less (equal-stages)"
    assert f"without {percent(part / whole)} of it {at_most}" in shown


def test_without_ranges_forwards_are_not_known(tmp_path: Path) -> None:
    setup = pipeline(np.random.default_rng(0), replace(_MORE, num_steps=3, is_labelled=False))
    path = recorded(setup, tmp_path / "run.sqlite")
    said = answer(path)
    assert (
        "on some stage it is unknown which kernels belong to a forward and which to a backward"
    ) in (said.refused or "")
    assert "python -m instrument" in (said.how_to_collect or "")
    (saving, *_) = (one.saving for one in analyze_reports([path]).findings if one.id == ID)
    assert saving is not None
    assert (saving.assume, saving.share) == (None, None)
    assert (
        "on some stage it is unknown which kernels belong to a forward and which to a backward"
    ) in (saving.why or "")


def test_no_replay_is_combined_with_a_model_of_passes(tmp_path: Path) -> None:
    path = recorded(pipeline(np.random.default_rng(0), _PLAN), tmp_path / "run.sqlite")
    said = answer(path, "equal-stages + no-sync")
    assert said.refused == "only the model of passes answers it"


@pytest.mark.parametrize("num_ranks", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", long_after(1, ["clock", "experts"]))
def test_equal_kernels_are_not_beaten_and_close(kind: str, num_ranks: int, tmp_path: Path) -> None:
    def built(size: float) -> Setup:
        rng = np.random.default_rng(7)  # the same noise with and without
        if kind == "clock":
            return ranks.slower_clock(rng, num_ranks, times=1 + size)
        return ranks.uneven_experts(rng, num_ranks, most=4 * size)

    before, after = (
        recorded(built(size), tmp_path / f"{kind}-{size}.sqlite") for size in (0.15, 0.0)
    )
    asked = traceprof.whatif(before, assume=["equal-kernels"])
    (answer,) = asked.whatif.answers
    assert answer.is_bound
    assert answer.refused is None
    without = traceprof.whatif(after, assume=["communication=0"]).whatif.baseline
    gained = known(asked.whatif.baseline).step_ns - known(without).step_ns
    assert gained > 0
    # The kernels' noise is in both runs, and the mean of the ranks' kernels knows it roughly.
    assert 0.995 * gained <= -known(answer.change_ns) <= 1.15 * gained


@pytest.mark.long
def test_equal_ranks_have_nothing_to_even_out(tmp_path: Path) -> None:
    setup = ranks.equal_ranks(np.random.default_rng(1))
    path = recorded(setup, tmp_path / "equal.sqlite")
    (answer,) = traceprof.whatif(path, assume=["equal-kernels"]).whatif.answers
    assert answer.refused == "no rank's kernels take significantly longer than those of the others"


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
