"""What recordings of one unchanged program differ by, and what one recording a side can say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator.ddp import simulate_ddp
from tests.support.builders import stretch
from tests.support.claims import OPTIONS, TRAINING, document_of
from tests.support.selection import known
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analysis import Options, analyze_reports
from traceprof.comparison.ask import compare, compared
from traceprof.comparison.between import NAMES, STEADY, VARYING, reach, spreads
from traceprof.comparison.gates import parse
from traceprof.comparison.sides import LoadedSide, stored_with
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import document
from traceprof.errors import TraceprofError
from traceprof.reports import html, markdown
from traceprof.reports.comparison_sections import usual
from traceprof.run.mean_change import Mean, difference, mann_whitney, usual_change
from traceprof.store import save

LOADER = "pairs/kineto_loader/resnet50_{}.pt.trace.json.gz"


def _document(path: Path, steps: tuple[int, int] | None = None) -> Document:
    return document(analyze_reports([path], Options(savings=False, steps=steps)))


def _side(one: Document) -> LoadedSide:
    return LoadedSide("a window", (one,))


def test_a_loader_that_varies_so_is_no_change(traces: Path) -> None:
    gates = ["step:+2%", "step:-2%", "idle:-2%", "compute:+2%"]
    paths = [traces / LOADER.format(name) for name in ("w0_a", "w0_b")]
    found = compare(*paths, gates=gates, options=OPTIONS)
    assert found.step.verdict == "differs"
    assert found.step.varying == "data loading"
    assert found.headline.endswith(
        "runs of one program differ so, in data loading above all (here -24.0 ms). Record three a"
        " side."
    )
    outcomes = ["inconclusive", "inconclusive", "inconclusive", "met"]
    assert [gate.outcome for gate in found.gates] == outcomes
    alone = compare(*paths, gates=gates, one_recording=True, options=OPTIONS)
    assert [gate.outcome for gate in alone.gates] == ["met", "met", "met", "met"]


def test_what_varies_does_not_hide_a_change_of_what_is_steady(traces: Path) -> None:
    """8.0 of 8.25 µs are launching; allocation, which varies by factors, grew by a quarter µs."""
    paths = [traces / f"pairs/openacc/{name}.sqlite" for name in ("before", "after")]
    gates = ["step:+2%", "step:+30%", "idle:+1us"]
    found = compare(*paths, gates=gates, options=OPTIONS)
    assert found.step.verdict == "slower"
    assert 0 < (found.step.between_low or 0) < (found.step.change or 0)
    assert [gate.outcome for gate in found.gates] == ["not met", "met", "not met"]


def test_windows_that_differ_by_less_than_a_per_cent_are_the_same(traces: Path) -> None:
    """A third of a per cent is certain over steps, but less than what runs differ by."""
    path = traces / "pairs/v100_mpas_1_async.sqlite"
    numbers = sorted({step.step for step in _document(path).steps})
    middle = numbers[len(numbers) // 2]
    halves = [_document(path, steps) for steps in ((0, middle), (middle, numbers[-1] + 1))]
    gates = [parse(gate) for gate in ("step:+2%", "step:-0.01%", "step:+0.01ms")]
    found = compared(_side(halves[0]), _side(halves[1]), gates)
    assert found.step.verdict == "same"
    assert (found.step.high or 0) < 0
    assert [gate.outcome for gate in found.gates] == ["met", "inconclusive", "met"]


def test_what_varies_counts_where_it_makes_most_of_the_change() -> None:
    def means(launch_ns: int, loading_ns: int) -> dict[str, int]:
        parts = {"launch_bound_ns": launch_ns, "data_loading_ns": loading_ns}
        return {**dict.fromkeys(NAMES, 0), **parts, "window_ns": launch_ns + loading_ns}

    spread = spreads()
    launching = 1.96 * 2**0.5 * STEADY["launch_bound_ns"] * 1_100_000
    steady = reach(means(1_000_000, 500_000), means(1_200_000, 450_000), spread)
    assert steady.high == pytest.approx(launching + 50_000, rel=0.02)
    loader = reach(means(1_000_000, 500_000), means(1_050_000, 420_000), spread)
    assert loader.high > 1_000_000
    runs = [replace(one, source="runs") for one in spread]  # whose spread is measured
    measured = reach(means(1_000_000, 500_000), means(1_200_000, 450_000), runs)
    assert measured.high > 1_000_000


@pytest.mark.parametrize(
    ("names", "word", "longer", "decides"),
    [
        (("1_8workers", "2_dali"), "differs", (3, 0), "three a side"),
        (
            ("2_dali", "3_dali_amp"),
            "inconclusive",
            (0, 4),
            "three a side, of about 890 steps each, not 27",
        ),
    ],
)
def test_a_usual_step_is_shorter_whatever_hides_it_in_the_mean(
    names: tuple[str, str], word: str, longer: tuple[int, int], decides: str, traces: Path
) -> None:
    paths = [traces / f"pairs/a100_loader_{name}.sqlite" for name in names]
    found = compare(*paths, options=OPTIONS)
    assert found.step.verdict == word
    assert found.step.usual is not None
    assert found.step.usual.verdict == "faster"
    assert (found.step.usual.num_longer_before, found.step.usual.num_longer_after) == longer
    assert found.step.usual.longer_cause == "data_loading"
    told = f"{longer[0]} steps before and {longer[1]} after, a quarter longer or more (mostly data"
    assert told in (usual(found) or "")
    assert found.step.to_decide == f"Record {decides}"
    # Every format says it in the verdict's own sentence.
    assert found.headline.endswith(f" Record {decides}.")
    title = markdown.render_comparison(found).splitlines()[0]
    assert title.endswith(f" Record {decides}.")
    (heading,) = re.findall("<h1>(.*?)</h1>", html.render_comparison(found))
    assert heading.endswith(f" Record {decides}.")


def test_stored_runs_say_how_much_parts_vary() -> None:
    runs = [document_of(TRAINING) for _ in range(4)]
    assert {one.deviation for one in spreads(runs)} == {0.0}
    for factor, run in zip((0.9, 1.0, 1.0, 1.1), runs, strict=True):
        run.step_totals = [
            replace(
                totals,
                compute_ns=round(factor * totals.compute_ns),
                window_ns=totals.window_ns + round((factor - 1) * totals.compute_ns),
            )
            for totals in run.step_totals
        ]
    found = {one.part: one for one in spreads(runs)}
    logarithms = np.log([0.9, 1.0, 1.0, 1.1])
    quantile = 3.182  # Student's t of three degrees of freedom
    expected = quantile / 1.96 * logarithms.std(ddof=1)
    assert found["compute"].deviation == pytest.approx(expected, rel=1e-3)
    assert found["exposed communication"].deviation == 0
    assert {one.source for one in found.values()} == {"runs"}


def test_few_runs_say_nothing() -> None:
    found = {one.part: one for one in spreads([document_of(TRAINING)] * 2)}
    assert {one.source for one in found.values()} == {"table"}
    assert found["compute"].deviation == STEADY["compute_ns"]
    assert found["mpi"].deviation == VARYING


def test_reach_holds_so_many_of_two_draws() -> None:
    """Draw both sides of an unchanged part: 95 of 100 changes lie within the reach of each."""
    random = np.random.default_rng(5)
    spread = spreads()
    num_within = 0
    for _ in range(2000):
        means = []
        for _ in range(2):
            compute = round(1e6 * math.exp(random.normal(0, STEADY["compute_ns"])))
            means.append({**dict.fromkeys(NAMES, 0), "compute_ns": compute, "window_ns": compute})
        change = means[1]["window_ns"] - means[0]["window_ns"]
        low, high = reach(means[0], means[1], spread)
        num_within += low <= -change <= high
    assert num_within == pytest.approx(1900, abs=40)


def test_no_interval_of_shares_goes_below_all() -> None:
    before, after = Mean(100.0, 900.0, 10), Mean(4.0, 0.04, 10)
    low, high = difference([before, after], is_share=True)
    assert -100 < low < -96 < high < 0
    plain = difference([before, after])
    assert plain.low < -100
    # Means that are certain, but of so few steps that the interval is wide.
    few = [Mean(100.0, 16.0, 1), Mean(6.0, 0.01, 1)]
    assert difference(few).low < -100
    low, high = difference(few, is_share=True)
    assert -100 < low < -94 < high < 0
    sure = [Mean(100.0, 1.0, 10), Mean(98.0, 1.0, 10)]
    assert difference(sure, is_share=True) == difference(sure)


def test_the_usual_step_is_the_median_of_the_commonest_kind() -> None:
    random = np.random.default_rng(1)
    before, after = (random.normal(length, 1, 40) for length in (100, 90))
    before[::8] = 700
    change = usual_change((before, after))
    assert change is not None
    assert change.medians == pytest.approx((100, 90), abs=0.6)
    assert change.num_longer == (5, 0)
    assert change.interval.low < -0.1 < change.interval.high < -0.09
    assert usual_change((before[:2], after)) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0], 0.0122),
        ([1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 6.0, 7.0], 0.4705),
        ([1.0, 1.0, 1.0], [1.0, 1.0], 1.0),
    ],
)
def test_mann_whitney(before: list[float], after: list[float], expected: float) -> None:
    """By hand: U is 0 of 25 and 5 of 16, with the correction for continuity."""
    found = mann_whitney(np.array(before), np.array(after))
    assert found == pytest.approx(expected, abs=5e-4)


def test_a_recording_that_was_stored_twice_is_one_run(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    for name in ("ddp", "late-allreduce"):
        for again in range(2):
            result = analyze_reports([SAMPLE_FOLDER / f"{name}.sqlite"], OPTIONS)
            save(store, result, f"{name}-{again}", {"branch": "main"})
    with pytest.raises(TraceprofError, match="2 recordings with these labels; 3 are needed"):
        stored_with(store, {"branch": "main"})
    save(store, analyze_reports([TRAINING], OPTIONS), "training", {"branch": "main"})
    assert len(stored_with(store, {"branch": "main"})) == 3
    with pytest.raises(TraceprofError, match="0 recordings with these labels"):
        stored_with(store, {"branch": "other"})


@pytest.mark.long
def test_one_per_cent_is_found_and_ten_are_more_than_recordings_differ(tmp_path: Path) -> None:
    num_runs, num_false, num_found, num_slower = 40, 0, 0, 0
    for run in range(num_runs):
        before, after = (tmp_path / f"{run}-{side}.sqlite" for side in (0, 1))
        for side, path in enumerate((before, after)):  # two steps are warm-up, and the last one
            simulate_ddp(path, gpus=2, steps=62, kernels_per_step=24, seed=2 * run + side)
        step = compare(before, after, options=OPTIONS).step
        num_false += not known(step.low) <= 0 <= known(step.high)
        stretch(after, 1.01)
        step = compare(before, after, options=OPTIONS).step
        num_found += known(step.low) > 0 and step.verdict == "differs"
        stretch(after, 1.09)
        num_slower += compare(before, after, options=OPTIONS).step.verdict == "slower"
    assert num_false <= 4  # 5 %, and what 40 runs leave open
    assert num_found == num_slower == num_runs
