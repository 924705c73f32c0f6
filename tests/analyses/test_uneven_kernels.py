"""Uneven kernels: planted ones, none in equal ranks, and a second computation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.scenarios import ranks
from tests.reference.streams import read
from tests.reference.uneven import Expected, expected
from tests.support.changes import recorded
from tests.support.placed import CLOCKS, kernels_of, noisy
from tests.support.selection import known, long_after
from tests.support.traces import REAL_TRACES, SAMPLE_FOLDER, closed_analysis
from traceprof.analyses import uneven_kernels
from traceprof.analyses.kernels.placed_kernels import PlacedKernels, pack_places
from traceprof.analyses.kernels.unevenness import Unevenness, unevenness
from traceprof.analyses.uneven_kernels import (
    ADVICE,
    CHANGING,
    CLOCK,
    HARDWARE,
    UNKNOWN,
    WORK,
    UnevenKernelsMetrics,
    advice,
    because,
    cause_of,
)
from traceprof.findings import Finding, NotApplicable
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import MAIN_COMPUTE, kernel_kind
from traceprof.trace.columns import pack
from traceprof.units import duration, percent

ID = "uneven-kernels"
MS = 1_000_000


def named(name: str) -> str:
    category = kernel_kind(name, communicates=False).category
    return function_name(name) if category in MAIN_COMPUTE else name


def judged(
    path: Path, **options: Any
) -> tuple[list[Finding], list[NotApplicable], Unevenness | None, Any]:
    analysis = closed_analysis(path, **options)
    found = [finding for finding in analysis.findings if finding.id == ID]
    missing = [gap for gap in analysis.not_applicable if gap.id == ID]
    return found, missing, analysis.measured.uneven, analysis.measured.placed


def of_reference(path: Path, placed: tuple[PlacedKernels, ...]) -> Expected:
    steps = [
        {
            int(number): (int(start), int(end))
            for number, start, end in zip(one.number, one.start_ns, one.end_ns, strict=True)
        }
        for one in placed
    ]
    return expected(read(path), steps, named)


REAL = [
    pytest.param(path, marks=pytest.mark.long)
    for path in REAL_TRACES
    if path.stem == "h100x2_torchrun_nccl_on_compute_stream"
]


@pytest.mark.parametrize(
    "path",
    [
        *(SAMPLE_FOLDER / f"{name}.sqlite" for name in ("uneven-clock", "uneven-experts", "ddp")),
        *(
            pytest.param(SAMPLE_FOLDER / f"{name}.sqlite", marks=pytest.mark.long)
            for name in ("healthy", "training")
        ),
        *REAL,
    ],
    ids=lambda path: path.stem,
)
def test_a_second_computation_agrees(path: Path) -> None:
    *_, found, placed = judged(path)
    assert found is not None
    reference = of_reference(path, placed)
    assert [*reference.by_step] == found.numbers.tolist()
    for row, values in zip(found.by_step_ns, reference.by_step.values(), strict=True):
        assert row == pytest.approx(values, abs=1)
    assert found.coverage == pytest.approx(reference.compared, abs=1e-6)
    if not found.is_constant:
        total = max(sum(reference.changing), 0)
        assert found.excess_ns * len(found.numbers) == pytest.approx(total, abs=10)
    else:
        assert sum(reference.constant) == pytest.approx(
            found.excess_ns * len(found.numbers), rel=1e-6
        )


@pytest.mark.parametrize("num_ranks", long_after(1, [4, 8]))
@pytest.mark.parametrize("kind", long_after(1, ["experts", "clock"]))
def test_planted_excess(kind: str, num_ranks: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_ranks)
    build = ranks.slower_clock if kind == "clock" else ranks.uneven_experts
    setup = build(rng, num_ranks)
    path = recorded(setup, tmp_path / "run.sqlite")
    (truth,) = setup.findings(Ranks(setup.run()))
    (finding,), missing, _, placed = judged(path)
    assert not missing
    values: Any = finding.metrics
    assert values["is_constant"] is truth["metrics"]["is_constant"]
    assert values["category"] == "matmul"
    of_steps = truth["metrics"]["model_excess_ns_of_steps"]
    planted = sum(of_steps[number] for number in placed[0].number.tolist())
    assert values["excess_ns"] == pytest.approx(planted, rel=0.05)
    assert finding.impact_ns <= values["excess_ns"]
    waited = values["others_wait_ns"]
    assert waited == pytest.approx(planted * num_ranks / (num_ranks - 1), rel=0.25)
    if kind == "clock":
        assert finding.rank == truth["rank"] == 2
        assert values["slower"] == pytest.approx(1.15, abs=0.01)
        assert values["work"] == 1
        assert "slower" in finding.title
        assert finding.advice == advice(
            HARDWARE,
            "nsys profile --gpu-metrics-devices=cuda-visible"
            " (--gpu-metrics-device=… before 2024) …",
        )
    else:
        assert values["work"] > 1.2
        assert "thread blocks" in finding.title
        assert finding.advice == ADVICE[CHANGING]


@pytest.mark.parametrize("num_ranks", long_after(1, [2, 4, 8]))
def test_equal_ranks_are_silent(num_ranks: int, tmp_path: Path) -> None:
    setup = ranks.equal_ranks(np.random.default_rng(num_ranks), num_ranks)
    found, missing, measured, _ = judged(recorded(setup, tmp_path / "run.sqlite"))
    assert found == []
    assert missing == []
    assert measured is not None
    assert not measured.is_uneven
    assert measured.coverage == 1


def test_ranks_without_kernels_at_one_place_are_compared_as_a_whole() -> None:
    (finding,), missing, measured, _ = judged(SAMPLE_FOLDER / "p2p-slower-than-copy.sqlite")
    assert missing == []
    assert measured is None or not measured.is_uneven
    values: Any = finding.metrics
    assert (finding.rank, values["is_constant"], values["num_peers"]) == (0, True, 1)
    assert values["slower"] == pytest.approx(2, rel=0.01)
    assert "more work: 2.00 × the thread blocks" in finding.title
    assert finding.advice == ADVICE[WORK]


# -- noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_ranks", "num_steps", "num", "parts", "num_runs"),
    [
        (4, 8, 40, 1, 40),
        pytest.param(2, 20, 40, 1, 500, marks=pytest.mark.long),
        pytest.param(4, 8, 40, 1, 500, marks=pytest.mark.long),
        pytest.param(8, 30, 60, 5, 500, marks=pytest.mark.long),
        pytest.param(8, 6, 200, 20, 500, marks=pytest.mark.long),
        pytest.param(8, 1, 200, 10, 500, marks=pytest.mark.long),
    ],
)
def test_false_alarms(num_ranks: int, num_steps: int, num: int, parts: int, num_runs: int) -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(num_runs):
        found = known(unevenness(noisy(rng, num_ranks, num_steps, num, parts), CLOCKS))
        alarms += found.is_uneven
    assert alarms == 0


def test_a_step_alone_does_not_show_who_is_always_the_longest() -> None:
    rng = np.random.default_rng(2)
    ranks = noisy(rng, 4, 1, 200, 10)
    ranks[3] = replace(ranks[3], length_ns=pack(ranks[3].length_ns.values * 6 // 5))
    found = known(unevenness(ranks, CLOCKS))
    assert (found.is_uneven, found.is_constant, found.member) == (True, None, 3)
    assert found.slower == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize(("num_kernels", "is_judged"), [(5, False), (6, True)])
def test_six_values_are_enough_to_know_what_is_noise(num_kernels: int, is_judged: bool) -> None:
    """A kernel is a value: each is longer on the second rank, and held out of the others once."""
    lengths = np.full((1, num_kernels), 1_000)
    ranks = [kernels_of(0, lengths, 1), kernels_of(1, lengths + 500, 1)]
    found = known(unevenness(ranks, CLOCKS))
    assert (found.is_judged, found.is_uneven) == (is_judged, is_judged)
    assert (found.is_constant, found.member) == (None, 1)
    assert found.excess_ns == pytest.approx(250 * num_kernels)  # beyond the mean of both


def test_what_experts_send_back_shows_their_work() -> None:
    """Two parts a step; in the first, another rank has twice the work in each step."""
    rng = np.random.default_rng(6)
    ranks = noisy(rng, 4, 8, 40, 2)
    for number, one in enumerate(ranks):
        _, step, part, *_ = one.places.in_runs(np.arange(len(one.places.runs) // 3))
        has_more = (part == 0) & (step % 4 == number)
        sizes = np.where(np.arange(8) % 4 == number, 2_000, 1_000)
        ranks[number] = replace(
            one,
            length_ns=pack(np.where(has_more, 2, 1) * one.length_ns.values),
            all_to_all=np.stack((np.arange(8), np.zeros(8, np.int64), sizes), axis=1),
        )
    found = known(unevenness(ranks, CLOCKS))
    assert (found.is_uneven, found.is_constant) == (True, False)
    assert found.all_to_all == pytest.approx(2_000 / 1_250)


# -- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [0, 1, 2, 1000])
def test_packed_places_are_the_same(num: int) -> None:
    rng = np.random.default_rng(num)
    step, part = np.sort(rng.integers(0, 5, num)), rng.integers(0, 3, num)
    name, blocks = rng.integers(0, 4, num), rng.choice([0, 1, 7, 1 << 40], num)
    beside = rng.integers(0, 3, num)
    places = pack_places(step, part, name, blocks, beside)
    runs = np.arange(len(places.runs) // 3)
    for some in (runs, runs[rng.random(len(runs)) < 0.5]):
        run = np.cumsum(np.diff(step * 3 + part, prepend=-1) != 0) - 1
        row, *packed = places.in_runs(some)
        assert row.tolist() == np.flatnonzero(np.isin(run, some)).tolist()
        for values, column in zip(packed, (step, part, name, blocks, beside), strict=True):
            assert values.tolist() == column[row].tolist()


def test_some_steps_at_a_time_say_what_all_say(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = noisy(np.random.default_rng(6), 4, 8, 40, 2)
    whole = unevenness(ranks, CLOCKS)
    monkeypatch.setattr("traceprof.analyses.kernels.unevenness._MAX_ROWS", 100)
    some = known(unevenness(ranks, CLOCKS))
    assert whole is not None
    assert np.array_equal(some.numbers, whole.numbers)
    np.testing.assert_allclose(some.by_step_ns, whole.by_step_ns)
    assert (some.member, some.category) == (whole.member, whole.category)
    assert some.excess_ns == pytest.approx(whole.excess_ns)
    assert some.slower == pytest.approx(whole.slower)


# -- edges ----------------------------------------------------------------------------------------


def test_ranks_without_kernels_at_the_same_place() -> None:
    rng = np.random.default_rng(3)
    one, other = noisy(rng, 2, 8, 40, 1)
    assert unevenness([one, replace(other, names=tuple("hijklmn"))], CLOCKS) is None
    assert unevenness([one], CLOCKS) is None
    assert unevenness([], CLOCKS) is None


def test_kernels_beside_communication_are_not_compared_with_those_alone() -> None:
    rng = np.random.default_rng(4)
    one, other = noisy(rng, 2, 8, 40, 1)
    beside = np.zeros((8, 40), np.int64)
    beside[:, :20] = 1
    slowed = replace(
        other,
        length_ns=pack(np.where(beside.ravel(), 2, 1) * other.length_ns.values),
        places=kernels_of(1, np.ones((8, 40), np.int64), 1, beside=beside).places,
    )
    found = known(unevenness([one, slowed], CLOCKS))
    assert not found.is_uneven
    assert found.coverage < 0.8


def test_steps_are_matched_by_time_and_not_by_number() -> None:
    """Steps of both ranks alternate; the second one numbers them from another one on."""
    rng = np.random.default_rng(5)
    one, other = noisy(rng, 2, 8, 40, 1)
    times = np.repeat(np.tile([1, 2], 4), 40)
    ranks = [replace(rank, length_ns=pack(times * rank.length_ns.values)) for rank in (one, other)]
    ranks[1] = replace(ranks[1], number=ranks[1].number + 1)
    found = known(unevenness(ranks, CLOCKS))
    assert len(found.numbers) == 8
    assert not found.is_uneven


def metrics(**changes: Any) -> UnevenKernelsMetrics:
    values: dict[str, Any] = {
        "excess_ns": MS, "rank": 1, "num_kernels": 8, "is_constant": True, "category": "matmul",
        "category_fraction": 0.9, "slower": 1.1, "share_longest": 1.0, "others_wait_ns": MS,
        "compute_ns": 2 * MS, "least_ns": MS, "most_ns": MS, "num_peers": 3, "num_in_group": 4,
        "stage": None,
        "clock": None, "work": None, "all_to_all": None, "coverage": 1.0,
    }  # fmt: skip
    return UnevenKernelsMetrics(**values | changes)


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"clock": 0.87, "work": 1.0}, CLOCK, "the clock of its GPU is 13.0 % lower"),
        ({"clock": 1.0, "work": 1.0}, HARDWARE, "with as many thread blocks at the same clock"),
        ({}, HARDWARE, "throttled, shared, or another kind of board"),
        ({"work": 1.5, "clock": 0.9}, WORK, "1.50 × the thread blocks of the others"),
        ({"is_constant": False, "all_to_all": 1.8}, CHANGING, "1.80 × the mean bytes"),
        ({"is_constant": None}, UNKNOWN, "too few steps"),
    ],
)
def test_the_reason_has_its_numbers(changes: Any, cause: str, words: str) -> None:
    found = metrics(**changes)
    assert cause_of(found) == cause
    assert words in because(found)


def test_only_clocks_that_were_not_sampled_are_to_be_recorded() -> None:
    assert "Record clocks, too, to see whether it is throttled: HOW" in advice(HARDWARE, "HOW")
    assert "clocks" not in " ".join(advice(HARDWARE, None))
    assert advice(CHANGING, "HOW") == ADVICE[CHANGING]


def test_the_sample_has_its_truth() -> None:
    path = SAMPLE_FOLDER / "uneven-clock.sqlite"
    truth = json.loads(path.with_suffix("").with_suffix(".truth.json").read_text("utf-8"))
    (expected_finding,) = truth["findings"]
    (finding,), *_ = judged(path, savings=None)
    assert finding.rank == expected_finding["rank"]
    assert known(finding.saving).assume == "equal-kernels"


# -- stragglers -----------------------------------------------------------------------------------


def test_a_straggler_has_the_numbers_of_its_uneven_kernels() -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / "uneven-clock.sqlite")
    (late,) = (finding for finding in analysis.findings if finding.id == "straggler")
    (found,) = (finding for finding in analysis.findings if finding.id == ID)
    slower: Any = found.metrics["slower"]
    assert late.rank == found.rank == 2
    assert f"{percent(slower - 1)} longer at the same places" in late.title
    assert "no constant straggler" not in " ".join(text for _, text in analysis.notes)


def test_ranks_that_take_turns_are_no_straggler() -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / "uneven-experts.sqlite")
    assert all(finding.id != "straggler" for finding in analysis.findings)
    (found,) = (finding for finding in analysis.findings if finding.id == ID)
    (note,) = (text for _, text in analysis.notes if text.startswith("no constant straggler"))
    waited: Any = found.metrics["others_wait_ns"]
    assert f"The others waited {duration(waited)} in all" in note
    assert f"see uneven-kernels (rank {found.rank})" in note


@pytest.mark.long
def test_equal_ranks_take_no_turns(tmp_path: Path) -> None:
    analysis = closed_analysis(
        recorded(ranks.equal_ranks(np.random.default_rng(9)), tmp_path / "run.sqlite")
    )
    assert not any("straggler" in text for _, text in analysis.notes)


# -- clocks ---------------------------------------------------------------------------------------


def test_clocks_are_read_without_those_that_overflowed() -> None:
    *_, placed = judged(SAMPLE_FOLDER / "link-counters.sqlite")
    assert [one.clock_hz for one in placed] == [1.41e9, 1.41e9]


def test_the_clock_of_the_slow_rank_is_its_share_of_the_others() -> None:
    measured = closed_analysis(SAMPLE_FOLDER / "uneven-clock.sqlite").measured
    clocks = (1.4e9, 1.42e9, 1.2e9)
    placed = tuple(
        replace(one, clock_hz=clock) for one, clock in zip(measured.placed, clocks, strict=True)
    )
    found = known(uneven_kernels.run(replace(measured, placed=placed)).metrics)
    assert found.clock == pytest.approx(1.2 / ((1.4 + 1.42) / 2))
    assert cause_of(found) == CLOCK
