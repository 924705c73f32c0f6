"""Ranks by their work: planted excess is named, equal ranks are silent, a second computation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reference.rank_work import expected
from tests.support.builders import ALL_REDUCE, US, TraceBuilder
from tests.support.placed import CLOCKS, kernels_of, noisy
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, closed_analysis
from traceprof.analyses.kernels.placed_kernels import PlacedKernels, pack_places
from traceprof.analyses.pipeline_bubble import ID as PIPELINE
from traceprof.analyses.rank_work import RunWork, by_note, work_of
from traceprof.trace.columns import pack

ALL = 40  # kernels of a step


def work(
    ranks: Sequence[PlacedKernels],
    stages: Sequence[int | None] = (),
    groups: Sequence[tuple[tuple[int, ...], int]] = (),
) -> RunWork:
    num = len(ranks)
    return work_of(ranks, CLOCKS, stages or [None] * num, groups, [(None, None)] * num)


def slowed(ranks: list[PlacedKernels], factors: Any) -> list[PlacedKernels]:
    """Ranks whose kernels take these many times as long: float[ranks, steps, kernels]."""
    return together(
        [
            replace(
                rank, length_ns=pack(np.rint(rank.length_ns.values * factor.ravel()).astype(int))
            )
            for rank, factor in zip(ranks, factors, strict=True)
        ]
    )


def together(ranks: list[PlacedKernels]) -> list[PlacedKernels]:
    """Ranks whose steps begin and end together."""
    ends = np.max([rank.end_ns for rank in ranks], axis=0)
    starts = np.append(0, ends[:-1])
    return [replace(rank, start_ns=starts, end_ns=ends) for rank in ranks]


def planted(
    rng: np.random.Generator,
    how: str,
    excess: float,
    shape: tuple[int, int],
    kernels: slice = slice(None),
    num_parts: int = 1,
) -> list[PlacedKernels]:
    num_ranks, num_steps = shape
    factors = np.ones((num_ranks, num_steps, ALL))
    if how == "constant":
        factors[num_ranks // 2, :, kernels] += excess
    else:
        turns = rng.permutation(np.arange(num_steps) % num_ranks)
        factors[turns, np.arange(num_steps), kernels] += excess
    return slowed(noisy(rng, num_ranks, num_steps, ALL, num_parts), factors)


SHAPES = [(num_ranks, num_steps) for num_ranks in (2, 4, 8, 64) for num_steps in (1, 2, 3, 10, 60)]
SOME = [(8, 10), (2, 2), (64, 1), (4, 60)]


@pytest.mark.parametrize("shape", [*SOME, *long_after(0, [s for s in SHAPES if s not in SOME])])
@pytest.mark.parametrize("excess", [0.01, 0.02, 0.05, 0.2, 1.0])
def test_a_rank_that_is_always_slower_is_named(excess: float, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(round(1000 * excess) + shape[0] * shape[1])
    found = work(planted(rng, "constant", excess, shape))
    slow = shape[0] // 2
    row = found.ranks[slow]
    assert row.excess_ns == pytest.approx(
        excess * (row.compute_ns / (1 + excess)), rel=0.1, abs=row.compute_ns * 0.015
    )
    named = [excess_.member for excess_ in found.excesses]
    if excess >= 0.2 and (shape[1] >= 3 or excess > 0.2):
        assert named == [slow]
        assert found.excesses[0].is_constant is (True if shape[1] > 1 else None)
    elif excess == 0.05 and shape[1] >= 3:
        assert named == [slow]
        assert found.excesses[0].is_constant
    elif excess < 0.03:
        assert named == []  # equal GPUs differ by as much


@pytest.mark.parametrize("shape", [*SOME, *long_after(0, [s for s in SHAPES if s not in SOME])])
@pytest.mark.parametrize("excess", [0.01, 0.02, 0.1, 0.2, 1.0])
def test_ranks_that_take_turns_are_no_constant_excess(
    excess: float, shape: tuple[int, int]
) -> None:
    num_ranks, num_steps = shape
    rng = np.random.default_rng(round(1000 * excess) + num_ranks * num_steps)
    ranks = planted(rng, "rotating", excess, shape)
    found = work(ranks)
    if num_steps < 3:
        return  # nobody can tell
    if num_ranks > 2 and num_steps >= 6:
        assert not any(excess_.is_constant for excess_ in found.excesses)
        assert len(found.excesses) == (excess >= 0.1)
        if found.excesses:
            assert found.excesses[0].is_constant is False
            mean = np.mean([row.compute_ns for row in found.ranks])
            usual = mean / (1 + excess / num_ranks)
            longest = found.excesses[0].excess_ns
            assert longest == pytest.approx(excess * (1 - 1 / num_ranks) * usual, rel=0.05)


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
def test_one_kernel_of_forty_that_is_slower_on_one_rank_is_named(num_ranks: int) -> None:
    rng = np.random.default_rng(num_ranks)
    ranks = noisy(rng, num_ranks, 12, ALL, 1)
    lengths = ranks[0].length_ns.values.reshape(12, ALL)
    share = lengths[:, 3].sum() / lengths.sum()
    factors = np.ones((num_ranks, 12, ALL))
    factors[1][:, 3] += 0.025 / share  # too little to be seen in the sum of all
    found = work(slowed(ranks, factors))
    assert not any(row.is_outlier for row in found.ranks)
    (excess,) = found.excesses
    assert (excess.member, excess.is_constant) == (1, True)
    assert excess.name == "d"
    assert excess.own_ns > excess.most_ns


@pytest.mark.parametrize(("others", "name"), [(1.0, "d"), (1.1, None)])
def test_a_kernel_that_makes_all_of_an_excess_is_named(others: float, name: str | None) -> None:
    """Where others of the rank take longer, too, its GPU is slower."""
    ranks = noisy(np.random.default_rng(4), 4, 12, ALL, 1)
    lengths = ranks[0].length_ns.values.reshape(12, ALL)
    factors = np.ones((4, 12, ALL))
    factors[1] *= others
    factors[1][:, 3] = 1 + 0.3 * lengths.sum() / lengths[:, 3].sum()
    (excess,) = work(slowed(ranks, factors)).excesses
    assert (excess.member, excess.is_constant, excess.name) == (1, True, name)


@pytest.mark.parametrize(
    ("slow", "num_steps", "least", "most"),
    [
        (slice(20, None), 12, 0.1, 0.9),  # experts with more tokens
        (slice(None), 12, 0, 0),  # a lower clock
        (slice(20, None), 2, None, None),  # a clock that falls
    ],
)
def test_parts_of_a_slow_rank_may_be_as_fast_as_its_peers(
    slow: slice, num_steps: int, least: float | None, most: float | None
) -> None:
    rng = np.random.default_rng(5)
    ranks = planted(rng, "constant", 0.6, (4, num_steps), slow, num_parts=4)
    (excess,) = work(ranks).excesses
    assert (excess.member, excess.is_constant) == (2, True)
    fraction = excess.alike_fraction
    if least is None or most is None or fraction is None:
        assert least is most is fraction is None
    else:
        assert least <= fraction <= most


def test_kernels_that_are_no_products_tell_of_no_clock() -> None:
    """Those of one rank are slower by much in half of the step: its memory may be."""
    rng = np.random.default_rng(5)
    names = np.arange(ALL) % 7
    factors = np.ones((4, 12, ALL))
    factors[2, :, (names < 4) & (np.arange(ALL) >= 20)] += 2
    ranks = slowed(noisy(rng, 4, 12, ALL, 4), factors)
    kinds = ("elementwise",) * 4 + ("matmul",) * 3
    (excess,) = work([replace(rank, categories=kinds) for rank in ranks]).excesses
    assert (excess.member, excess.is_constant, excess.alike_fraction) == (2, True, None)


def test_one_slower_kernel_of_a_rank_that_computes_less_tells_of_no_clock() -> None:
    factors = np.ones((4, 12, ALL))
    factors[1] = np.where(np.arange(ALL) % 7 == 3, 1.2, 0.95)
    ranks = slowed(noisy(np.random.default_rng(4), 4, 12, ALL, 1), factors)
    kinds = ("elementwise",) * 7
    (excess,) = work([replace(rank, categories=kinds) for rank in ranks]).excesses
    assert (excess.member, excess.name, excess.alike_fraction) == (1, "d", None)


def test_ranks_that_share_a_gpu_are_peers_only_if_they_reduce_together() -> None:
    ranks = planted(np.random.default_rng(5), "constant", 0.6, (2, 12))
    for groups, named in (((), []), ([((0, 1), 2)], [1])):
        both = work_of(ranks, CLOCKS, [None] * 2, groups, [(None, None)] * 2, {0, 1})
        assert [excess.member for excess in both.excesses] == named


@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("num_steps", [1, 2, 5, 12])
@pytest.mark.parametrize("num_ranks", [2, 5, 16])
def test_a_second_computation_agrees(num_ranks: int, num_steps: int, num_parts: int) -> None:
    for seed, how, excess in ((1, "constant", 0.3), (2, "rotating", 0.3), (3, "rotating", 0.0)):
        rng = np.random.default_rng(seed)
        ranks = planted(rng, how, excess, (num_ranks, num_steps), num_parts=num_parts)
        lengths = [rank.length_ns.values.reshape(num_steps, num_parts, -1) for rank in ranks]
        step_ns = float(np.median([rank.end_ns - rank.start_ns for rank in ranks]))
        wanted = expected([length.sum(axis=2).tolist() for length in lengths], step_ns)
        found = work(ranks)
        assert [row.excess_ns for row in found.ranks] == pytest.approx(wanted.excess_ns, abs=2)
        assert found.ranks[0].noise_ns == pytest.approx(wanted.noise_ns, abs=2)
        assert {index for index, row in enumerate(found.ranks) if row.is_outlier} == wanted.outliers
        whole = [excess_ for excess_ in found.excesses if excess_.name is None]
        if not wanted.outliers:
            assert [excess_.excess_ns for excess_ in whole] == pytest.approx(
                [] if wanted.changing_ns is None else [wanted.changing_ns], rel=1e-6, abs=2
            )


@pytest.mark.parametrize(
    ("num_ranks", "num_steps", "num", "parts", "num_runs"),
    [
        (8, 10, 40, 2, 40),
        *(
            pytest.param(*shape, 500, marks=pytest.mark.long)
            for shape in (
                (2, 2, 40, 1), (2, 60, 40, 1), (4, 1, 40, 1), (8, 10, 40, 1), (8, 3, 200, 20),
                (64, 6, 40, 4),
            )
        ),
    ],
)  # fmt: skip
def test_false_alarms(num_ranks: int, num_steps: int, num: int, parts: int, num_runs: int) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(
        bool(work(together(noisy(rng, num_ranks, num_steps, num, parts))).excesses)
        for _ in range(num_runs)
    )
    assert alarms < 0.03 * num_runs


@pytest.mark.parametrize("num", [0, 1, 2, 1000])
def test_packed_places_are_the_same(num: int) -> None:
    rng = np.random.default_rng(num)
    step, part = np.sort(rng.integers(0, 5, num)), rng.integers(0, 3, num)
    name, blocks = rng.integers(0, 4, num), rng.choice([0, 1, 7, 1 << 40], num)
    columns = step, part, name, blocks
    for unpacked, column in zip(pack_places(*columns).unpacked, columns, strict=True):
        assert unpacked.tolist() == column.tolist()


def test_steps_are_matched_by_time_and_not_by_number() -> None:
    """Steps of both ranks alternate; the second one numbers them from another one on."""
    ranks = noisy(np.random.default_rng(5), 2, 8, ALL, 1)
    times = np.tile([1, 2], 4)[np.newaxis, :, np.newaxis] * np.ones((2, 1, ALL))
    ranks = slowed(ranks, times)
    ranks[1] = replace(ranks[1], number=ranks[1].number + 1)
    found = work(ranks)
    assert [row.num_steps for row in found.ranks] == [8, 8]
    assert found.excesses == ()


def test_ranks_that_share_no_step_have_the_compute_of_their_own() -> None:
    ranks = noisy(np.random.default_rng(7), 2, 8, ALL, 1)
    later = ranks[0].end_ns[-1]
    ranks[1] = replace(ranks[1], start_ns=ranks[1].start_ns + later, end_ns=ranks[1].end_ns + later)
    found = work(ranks)
    assert [row.num_steps for row in found.ranks] == [0, 0]
    assert [row.compute_ns for row in found.ranks] == pytest.approx(
        [rank.length_ns.values.sum() / 8 for rank in ranks], abs=1
    )


def test_peers_are_ranks_of_one_stage_that_reduce_together() -> None:
    ranks = noisy(np.random.default_rng(4), 8, 6, ALL, 1)
    stages = [0, 0, 1, 1, None, None, None, None]
    found = work(ranks, stages, [((0, 1), 2), ((2, 3), 4), ((0, 2), 2), ((4, 5), 2)])
    assert [(peers.ranks, peers.source, peers.num_ranks, peers.stage) for peers in found.peers] == [
        ((0, 1), "groups", 2, 0),
        ((2, 3), "groups", 4, 1),
        ((4, 5), "groups", 2, None),
        ((6, 7), "work", 2, None),
    ]
    assert [row.peers for row in found.ranks] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ranks_with_other_work_are_no_peers() -> None:
    rng = np.random.default_rng(6)
    lengths = np.rint(rng.normal(1e5, 1e3, (3, 6, ALL))).astype(np.int64)
    ranks = [kernels_of(0, lengths[0], 1), kernels_of(1, lengths[1], 1)]
    ranks.append(kernels_of(2, lengths[2][:, : ALL // 2], 1))
    found = work(ranks)
    assert [peers.ranks for peers in found.peers] == [(0, 1)]
    assert (found.ranks[2].peers, found.ranks[2].excess_ns) == (None, None)


@pytest.mark.parametrize(
    ("name", "first"), [("exposed-waiting", 1), ("uneven-clock", 2), ("pipeline-bubble", None)]
)
def test_ranks_that_stand_out_are_shown_first(name: str, first: int | None) -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / f"{name}.sqlite")
    noted = by_note(analysis.measured)
    assert sorted(noted) == [rank.rank for rank in analysis.run.ranks]
    if first is None:  # the stage that computes longest
        metrics: Any = [finding.metrics for finding in analysis.findings if finding.id == PIPELINE]
        first = known(metrics[0]["longest_rank"])
    assert noted[0] == first


@pytest.mark.parametrize(("apart_us", "named"), [(0, [1]), (250, [])])
def test_ranks_that_leave_reductions_together_are_peers(
    tmp_path: Path, apart_us: int, named: list[int]
) -> None:
    """Rank 1 has half as many kernels more, of other names; no range names the process group."""
    trace = TraceBuilder()
    for rank, num in enumerate((40, 60)):
        for step in range(12):
            at = step * 1000 * US
            for place in range(num):
                name = f"gemm_{rank}_{place}"
                trace.kernel(at, at + 10 * US, name, device=rank, pid=1000 + rank)
                at += 10 * US
            end = (step * 1000 + 700 + rank * apart_us) * US
            trace.kernel(at, end, ALL_REDUCE, device=rank, pid=1000 + rank, stream=20)
    analysis = closed_analysis(trace.write(tmp_path))
    found = [finding for finding in analysis.findings if finding.id == "uneven-kernels"]
    assert [finding.rank for finding in found] == named
    assert all(
        str(finding.advice[0]).startswith("Its kernels have more to do") for finding in found
    )
