"""Pipelines with more micro-batches or in another order, and what cannot be said of them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import traceprof
from sample_traces.simulator.scenarios.pipelines import Plan, pipeline
from tests.support.changes import recorded, step_ns
from tests.support.selection import long_after, rows_long_after
from tests.support.traces import SAMPLE_FOLDER
from traceprof.errors import UsageError
from traceprof.replay.assumptions.assumption import Assumption
from traceprof.replay.results import WhatIf
from traceprof.run.pipeline_orders import ORDERS

_PLAN = Plan("1f1b", 4, 4, (1.0, 1.3, 1.0, 1.0), 4)
_MANY = (1.0, 1.0, 1.3, 1.0, 0.7, 1.0, 1.2, 1.0)
_MORE = {"micro-batches=2x": 2.0, "micro-batches=1.5x": 1.5}
_ALL = ["micro-batches=2x", *(f"schedule={name}" for name in ORDERS)]


def asked(plan: Plan, assume: list[str], path: Path, seed: int = 0) -> WhatIf:
    setup = pipeline(np.random.default_rng(seed), plan)
    return traceprof.whatif(recorded(setup, path), assume=assume).whatif


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Plan, int], WhatIf]:
    """Return a function that asks for more micro-batches and other orders, each plan once."""

    @cache
    def of_plan(plan: Plan, seed: int) -> WhatIf:
        return asked(plan, [*_MORE, *orders(plan)], tmp_path_factory.mktemp("run") / "run", seed)

    return of_plan


def orders(plan: Plan) -> dict[str, str]:
    """Return the assumptions of other orders, and these."""
    return {f"schedule={name}": name for name in ORDERS if name != plan.order}


@cache
def mean_step_ns(plan: Plan, seed: int) -> float:
    return step_ns(pipeline(np.random.default_rng(seed), plan).run())


@pytest.mark.parametrize(
    ("plan", "seeds"),
    [
        (_PLAN, 1),
        *(
            pytest.param(plan, 10, marks=pytest.mark.long)
            for plan in (replace(_PLAN, num_micro_batches=8), Plan("gpipe", 2, 4, (1.0, 1.2), 6))
        ),
        pytest.param(Plan("1f1b", 8, 16, _MANY, 4), 1, marks=pytest.mark.long),
    ],
)
def test_nine_of_ten_intervals_hold_another_order(
    plan: Plan, seeds: int, said: Callable[[Plan, int], WhatIf]
) -> None:
    held = dict.fromkeys(orders(plan).values(), 0)
    for seed in range(seeds):
        of_seed = said(plan, seed)
        answers = {one.assume: one for one in of_seed.answers}
        before = mean_step_ns(plan, seed)
        for assume, name in orders(plan).items():
            one = answers[assume]
            change = mean_step_ns(replace(plan, order=name), seed) - before
            assert one.change_ns == pytest.approx(change, rel=0.05)
            assert not one.is_bound
            assert of_seed.baseline is not None
            low, high = (
                (limit or 0) - of_seed.baseline.step_ns for limit in (one.low_ns, one.high_ns)
            )
            assert high - low < 0.03 * before
            held[name] += low <= change <= high
    assert min(held.values()) >= 0.9 * seeds


@pytest.mark.parametrize("assume", long_after(1, _MORE))
@pytest.mark.parametrize(
    "plan",
    [
        _PLAN,
        *(
            pytest.param(plan, marks=pytest.mark.long)
            for plan in (Plan("gpipe", 2, 4, (1.0, 1.2), 6), Plan("1f1b", 8, 16, _MANY, 4))
        ),
    ],
)
def test_more_micro_batches_gain_no_more(
    plan: Plan, assume: str, said: Callable[[Plan, int], WhatIf]
) -> None:
    """Their kernels are as many times shorter here, too, and not what is between kernels."""
    factor = _MORE[assume]
    (one,) = (one for one in said(plan, 0).answers if one.assume == assume)
    more = replace(
        plan,
        num_micro_batches=round(factor * plan.num_micro_batches),
        work=tuple(work / factor for work in plan.work),
        num_bytes=round(plan.num_bytes / factor),
    )
    gained = mean_step_ns(plan, 0) - mean_step_ns(more, 0)
    assert one.is_bound
    assert one.change_ns is not None, one.refused
    assert 0 < gained <= -one.change_ns <= 1.3 * gained


@pytest.mark.parametrize(
    ("plan", "why"),
    rows_long_after(
        1,
        [
            (replace(_PLAN, is_copying=True), "do not send and receive in turn"),
            (replace(_PLAN, late_ns=5_000_000), "off the measured step"),
            (replace(_PLAN, is_labelled=False), "its passes follow no known order"),
            (replace(_PLAN, is_prefetching=True), "do not send and receive in turn"),
            (replace(_PLAN, order="interleaved"), "do not send and receive in turn"),
        ],
    ),
)
def test_pipelines_that_the_model_does_not_fit_are_refused(
    plan: Plan, why: str, tmp_path: Path
) -> None:
    said = asked(plan, _ALL, tmp_path / "run.sqlite")
    assert all(why in (one.refused or "") for one in said.answers[: len(_ALL)])


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    plan = replace(_PLAN, num_micro_batches=6, num_steps=3)
    assume = ["micro-batches=1.25x", "schedule=1f1b", "schedule=interleaved"]
    refused = [one.refused for one in asked(plan, assume, tmp_path / "run.sqlite").answers]
    assert refused == [
        "6 micro-batches times 1.25 is not a whole number",
        "its passes ran in this order",
        "the number of micro-batches (6) is not a multiple of that of stages (4)",
        "an answer from a model of the passes cannot be combined with other assumptions",
    ]


def test_other_runs_have_no_schedule() -> None:
    said = traceprof.whatif(SAMPLE_FOLDER / "ddp.sqlite", assume=["schedule=gpipe"]).whatif
    assert said.answers[0].refused == "no ranks are known to be the stages of a pipeline"


@pytest.mark.parametrize("text", ["micro-batches=1x", "micro-batches=2", "schedule=dualpipe"])
def test_wrong_values(text: str) -> None:
    with pytest.raises(UsageError):
        traceprof.whatif(SAMPLE_FOLDER / "ddp.sqlite", assume=[text])


def test_a_model_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of, original = [], Assumption.step_change

    def counted(one: Assumption, *of_run: Any) -> Any:
        asked_of.append(one.text)
        return original(one, *of_run)

    monkeypatch.setattr(Assumption, "step_change", counted)
    asked(_PLAN, _ALL, tmp_path / "run")
    assert all(asked_of.count(one) == 1 for one in _ALL)
