"""docs/validation.md is what `make validation` writes; promises are judged as the page says."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Hashable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import script_of
from tests.support.kept_claims import KeptText
from tests.support.selection import long_after
from traceprof.analyses.verdict.yields import usual_yields
from traceprof.replay.assumptions.assumption import PROFILERS_SHARE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def validation() -> ModuleType:
    return script_of("validation")


WRITTEN = (DOCS / "validation.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.slow
def test_a_pair_is_in_the_page_as_it_is_found(validation: ModuleType, traces: Path) -> None:
    first, others = validation._rows(traces, validation.PAIRS[1])
    assert {first, *others} <= {*WRITTEN.splitlines()}, "run `make validation`"


@pytest.mark.long
def test_the_page_is_what_is_written(validation: ModuleType, traces: Path) -> None:
    assert validation.page(traces) == WRITTEN, "run `make validation`"


def _written_changes() -> list[tuple[str, str, str, str]]:
    """Return change, finding, cause and ratio of each row of the page."""
    return re.findall(
        r"^\| (.+) \| `([a-z-]+)` \| ([a-z_]*) \| [\d.]+ .?s \| ([\d.]+) \|$",
        (DOCS / "yields.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )


def test_usual_yields_are_those_of_the_changes_in_their_page() -> None:
    """What the report reads, computed from the page's rows in another way."""
    table = pd.DataFrame(_written_changes(), columns=["change", "finding", "cause", "ratio"])
    table["ratio"] = table["ratio"].astype(float)
    means = table.groupby(["finding", "cause", "change"])["ratio"].mean()
    assert len(table) >= 50
    kinds = means.groupby(["finding", "cause"])
    usual = usual_yields()
    assert {(row.finding, row.cause or "") for row in usual.kinds} == {*kinds.groups}
    expected, of_any = _random_effects(means.reset_index(level="change", drop=True))
    assert usual.of_any == pytest.approx(of_any, abs=0.002)
    for row in usual.kinds:
        kind = row.finding, row.cause or ""
        ratios = means[kind]
        assert row.num_changes == len(ratios)
        quartiles = ratios.quantile([0.25, 0.5, 0.75]).tolist()
        assert [row.low, row.middle, row.high] == pytest.approx(quartiles, abs=0.002)
        assert row.expected == pytest.approx(expected[kind], abs=0.002)


def _random_effects(ratios: pd.Series[float]) -> tuple[dict[Hashable, float], float]:
    """Return the best linear prediction of each kind, and of a kind without a change.

    By generalized least squares with the covariance of all changes, written out as a matrix.
    """
    kinds = ratios.groupby(level=[0, 1])
    names, sizes = [*kinds.groups], kinds.size().to_numpy()
    belongs = np.array([[kind == name for name in names] for kind in ratios.index], dtype=float)
    residuals = ratios.to_numpy() - kinds.transform("mean").to_numpy()
    within = residuals @ residuals / (len(ratios) - len(names))
    around = kinds.transform("mean").to_numpy() - ratios.mean()
    per_kind = (len(ratios) - (sizes**2).sum() / len(ratios)) / (len(names) - 1)
    between = (around @ around / (len(names) - 1) - within) / per_kind
    assert between > 0
    inverse = np.linalg.inv(within * np.eye(len(ratios)) + between * belongs @ belongs.T)
    ones = np.ones(len(ratios))
    mean = ones @ inverse @ ratios.to_numpy() / (ones @ inverse @ ones)
    drawn = mean + between * belongs.T @ inverse @ (ratios.to_numpy() - mean)
    return dict(zip(names, drawn.tolist(), strict=True)), float(mean)


def test_most_changes_brought_what_others_let_expect(validation: ModuleType) -> None:
    """Each one learnt from the others: within a factor of two in 11 of 16."""
    outcomes = [
        validation.Outcome(finding, cause or None, change, 1000, 1000 * float(ratio))
        for change, finding, cause, ratio in _written_changes()
    ]
    right, num, _ = validation.left_out_one(outcomes)
    assert num >= 50
    assert right * 16 >= num * 11


def test_a_kind_is_drawn_to_all_kinds_by_what_chance_explains(validation: ModuleType) -> None:
    kinds = {("a", None): [0.4, 0.6], ("b", None): [0.9, 0.9, 1.0, 1.0], ("c", None): [0.1]}
    drawn = validation.Expected.of(kinds)
    assert drawn.of_kind["a", None] == pytest.approx(0.5, abs=0.02)
    assert 0.1 < drawn.of_kind["c", None] < drawn.of_any
    same = validation.Expected.of({("a", None): [0.2, 0.8], ("b", None): [0.1, 0.9]})
    assert {*same.of_kind.values(), same.of_any} == {0.5}  # kinds do not differ


def test_what_the_profiler_costs_is_written_as_it_was_measured(validation: ModuleType) -> None:
    times = json.loads((validation.RECORDINGS / "times.json").read_text(encoding="utf-8"))
    longer = np.array(
        [
            recorded / statistics.fmean(rounds[when])
            for rounds in times.values()
            for when, recorded in zip(("before", "after"), rounds["recorded"], strict=True)
        ]
    )
    slowed = longer[longer > 1.02]
    said = (
        f"no difference to {'six' if len(longer) - len(slowed) == 6 else '?'} steps that are bound"
        f" by the GPU ({longer.min():.2f} to {longer[longer <= 1.02].max():.2f} times as long), but"
        f" {len(slowed)} steps that are at least partly bound by the host took {slowed.min():.2f}"
        f" to {slowed.max():.2f} times as long, median {np.median(slowed):.2f}"
    )
    assert said in " ".join((DOCS / "testing.md").read_text(encoding="utf-8").split())
    of_launching = 1 - 1 / slowed
    assert (of_launching <= PROFILERS_SHARE).sum() == 19  # as its docstring says


@pytest.mark.parametrize("name", long_after(1, ["load", "pinned", "prefetch", "autocast"]))
def test_a_change_on_a_gpu_is_in_its_page(validation: ModuleType, name: str) -> None:
    times = json.loads((validation.RECORDINGS / "times.json").read_text(encoding="utf-8"))
    report, change = (
        validation.RECORDINGS / f"{name}.pt.trace.json.gz",
        validation.GPU_CHANGES[name],
    )
    written = validation.GPU_PAGE.read_text(encoding="utf-8")
    assert validation._of_gpu(report, change, times[name]) in written.splitlines()


@pytest.mark.long
def test_the_page_of_a_gpu_is_what_is_written(validation: ModuleType) -> None:
    assert validation.gpu_page() == validation.GPU_PAGE.read_text(encoding="utf-8")


def test_promises_are_kept_or_not(validation: ModuleType, kept_text: KeptText) -> None:
    """Of a limit hardly anything came; what came lies between two numbers, or is one."""
    limit, found, both = validation.Promise(None, 100), validation.Promise(5, 100, 50), (90, 110)
    said = [f"at most 100 of 0, {came}: {limit.kept(came, 0)}" for came in (-5, 9, 10, 100, 101)]
    said.append(f"50, 5 to 100 of 0, 9: {found.kept(9, 0)}")
    for low, high, came in (
        (None, None, 5),
        (None, 100, 90),
        (None, 100, -90),
        (None, 100, 102),
        (80, 100, 80),
        (80, 100, 102),
        (80, 100, 40),
        (None, 100, both),
        (None, 80, both),
        (95, 200, both),
        (120, 200, both),
        (10, 80, both),
        (0, 50, (-20, 30)),
    ):
        promise = validation.Promise(*(ms and ms * 1000 for ms in (low, high)))
        if isinstance(came, tuple):
            kept = promise.kept_within(*(1000 * ms for ms in came))
        else:
            kept = promise.kept(1000 * came, 1_000_000)
        said.append(f"{low} to {high} of 1000, {came}: {kept}")
    kept_text("\n".join(said))


def test_faster_kernels_also_slow_communication_down_less(validation: ModuleType) -> None:
    """Which an interval of `kernel:` has to hold: one without it was 22 % too low."""
    rows = validation.GPU_PAGE.read_text(encoding="utf-8").splitlines()
    (row,) = (row for row in rows if row.startswith("| the same, beside reductions"))
    assert row.endswith(" yes |")


_BEATEN = {
    "no reductions, most of which compute hid",  # by 4 %: some kernels have no known slowdown
    "three threads load data, not one",  # the recorded steps did not wait for a batch
}


def test_no_limit_is_beaten_but_those_that_are_known(validation: ModuleType) -> None:
    """Of what its authors, or we, changed; an estimate may miss, a limit may not."""
    beaten = set()
    for page in (WRITTEN, validation.GPU_PAGE.read_text(encoding="utf-8")):
        assert page.count("| at most ") > 5
        beaten |= {row.split(" | ")[0] for row in page.splitlines() if "limit was beaten" in row}
    assert beaten == {f"| {change}" for change in _BEATEN}
