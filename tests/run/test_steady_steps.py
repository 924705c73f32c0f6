"""Which ranges are steps, and which steps are steady: by their kernels, and by what else ran."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.reference import breakdown as reference
from tests.support.builders import TraceBuilder
from tests.support.claims import os_call
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.run.steady_steps import StepUse, long_steps, steady_steps, step_uses
from traceprof.run.windows import training_window

Named = tuple[str, int, int]
TRAINER = [("step 5", 0, 96), ("step 6", 96, 192), ("step 7", 192, 290)]
LIBRARY = [(f"step {place}", 32 * place + 1, 32 * place + 25) for place in range(9)]


def steps_of(tmp_path: Path, *threads: list[Named]) -> tuple[list[int], int]:
    builder = TraceBuilder()
    for number, named in enumerate(threads):
        for text, start, end in named:
            builder.nvtx(text, start, end, tid=1000 + number)
    for place in range(29):
        builder.kernel(10 * place + 3, 10 * place + 9, launch=(10 * place, 10 * place + 1))
    path = builder.shuffled(1).write(tmp_path)
    (expected,) = reference.read(path)
    with ranks_of(path) as (rank,):
        steps = rank.training_ranges.steps
        assert steps is not None
        assert rank.steps is not None
        assert rank.steps.number.tolist() == [number for number, *_ in expected.steps]
        return steps.number.tolist(), steps.num_nested


@pytest.mark.parametrize(
    ("named", "numbers", "num_nested"),
    [
        (TRAINER, [5, 6, 7], 0),
        (TRAINER + LIBRARY, [5, 6, 7], 9),
        (TRAINER + TRAINER, [5, 6, 7], 3),
        ([("step 1", 0, 290), *LIBRARY], [*range(9)], 1),
        ([("step 1", 0, 290), *TRAINER, *LIBRARY], [5, 6, 7], 10),
        ([("step 5", 0, 100), ("step 6", 90, 290)], [5, 6], 0),
        ([("step 5", 0, 290), ("step 0", 10, 20)], [5], 1),
    ],
    ids=["none", "inside", "twice", "around all", "three levels", "overlapping", "one in one"],
)
def test_the_outer_ranges_are_the_steps(
    named: list[Named], numbers: list[int], num_nested: int, tmp_path: Path
) -> None:
    assert steps_of(tmp_path, named) == (numbers, num_nested)


def test_ranges_of_other_threads_hold_nothing(tmp_path: Path) -> None:
    numbers, num_nested = steps_of(tmp_path, TRAINER, [("step 0", 0, 150), ("step 1", 150, 290)])
    assert (sorted(numbers), num_nested) == ([0, 1, 5, 6, 7], 0)


def test_a_note_says_so(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for text, start, end in TRAINER + LIBRARY:
        builder.nvtx(text, start, end)
    analysis = closed_analysis(builder.kernel(3, 9, launch=(0, 1)).write(tmp_path))
    assert any("are no steps (9 in one process)" in note for _, note in analysis.notes)


@pytest.mark.parametrize("num", long_after(12, range(4, 16)))
def test_kinds_are_those_of_the_best_cut(num: int) -> None:
    """Held to all cuts, one by one."""
    source = np.random.default_rng(num)
    for _ in range(20):
        lengths = np.where(source.random(num) < 0.4, 3, 1) * source.lognormal(0, 0.2, num)
        logarithms = np.log(lengths)
        best, chosen = math.inf, None
        for limit in np.sort(lengths)[1:]:
            groups = logarithms[lengths < limit], logarithms[lengths >= limit]
            within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
            if within < best:
                best, chosen = within, lengths >= limit
        assert chosen is not None
        explained = 1 - best / float(((logarithms - logarithms.mean()) ** 2).sum())
        is_enough = min(chosen.sum(), num - chosen.sum()) >= 3
        ratio = lengths[chosen].mean() / lengths[~chosen].mean()
        mask = long_steps(lengths)
        if explained >= 0.8 and is_enough and ratio >= 1.5:
            assert mask is not None
            assert mask.tolist() == chosen.tolist()
        else:
            assert mask is None


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [1],
        [2] * 7,
        [0, 0, 0, 5, 5, 5],
        [100] * 39 + [900],  # one slow step is no kind
        [100] * 20 + [140] * 20,  # too little apart
        list(range(100, 500, 10)),  # spread evenly
    ],
)
def test_equal_few_and_empty_steps_are_of_one_kind(lengths: list[int]) -> None:
    assert long_steps(lengths) is None


_LETTERS = {StepUse.STEADY: ".", StepUse.CUT: "c", StepUse.OPENING: "o", StepUse.RARE: "r"}


def uses(
    lengths: list[int],
    kernels: dict[int, int] | None = None,
    *,
    ends_early: bool = False,
    ran_else: tuple[int, ...] = (),
) -> str:
    """Return the use of each step, a letter each; a step has 100 kernels unless said."""
    num = np.full(len(lengths), 100)
    for place, number in (kernels or {}).items():
        num[place] = number
    found = step_uses(
        np.array(lengths, np.int64),
        num,
        ends_early=ends_early,
        ran_else=lambda steps: np.isin(steps, ran_else),
    )
    return "".join(_LETTERS[StepUse(use)] for use in found.tolist())


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9], "."),
        ([9, 9], ".."),
        ([9, 9, 4], "..c"),
        ([100] * 8, "." * 7 + "c"),
        ([300, 150, *[100] * 10], "oo" + "." * 9 + "c"),
        ([100, 300, *[100] * 10], "." * 11 + "c"),  # slow, but not at first
        ([500] * 5 + [100] * 7, "oo" + "." * 9 + "c"),  # no more than a quarter
        ([500] * 20 + [100] * 60, "o" * 10 + "." * 69 + "c"),  # no more than ten
        ([200, *[100] * 5], "o....c"),
        ([200, *[100] * 4], "....c"),  # too few to see what is usual
    ],
)
def test_the_last_and_slow_first_steps_do_not_count(lengths: list[int], expected: str) -> None:
    assert uses(lengths, ends_early=True) == expected
    if len(lengths) > 2:
        assert uses(lengths)[-1] == "."


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ({0: 89}, "c........."),
        ({0: 90}, ".........."),
        ({9: 20}, ".........c"),
        ({0: 20, 9: 20}, ".........."),  # each excuses the other: they may be a kind of their own
        ({5: 20}, ".........."),  # amid others nothing cuts a step
        (dict.fromkeys(range(0, 10, 2), 20), ".........."),  # gradients are accumulated
        (dict.fromkeys(range(10), 0), ".........."),  # no kernel is known
    ],
)
def test_a_first_or_last_step_with_too_few_kernels_is_cut(
    kernels: dict[int, int], expected: str
) -> None:
    assert uses([100] * 10, kernels) == expected


@pytest.mark.parametrize("num", [3, 6, 10])
def test_where_each_step_is_cut_all_count(num: int) -> None:
    is_cut = np.arange(num) < num - 1  # by exceptions; and no step follows the last one
    lengths, kernels = np.full(num, 100), np.full(num, 10)
    assert not step_uses(lengths, kernels, ends_early=True, is_cut=is_cut).any()
    found = step_uses(lengths, kernels, ends_early=False, is_cut=is_cut)
    assert found.tolist() == [StepUse.CUT] * (num - 1) + [StepUse.STEADY]


@pytest.mark.parametrize("num", [3, 6, 10])
def test_where_a_slow_first_step_is_the_only_one_not_cut_all_count(num: int) -> None:
    is_cut = np.arange(num) > 0
    lengths, kernels = np.full(num, 100), np.full(num, 100)
    lengths[0], kernels[0] = 1000, 1
    assert not step_uses(lengths, kernels, ends_early=False, is_cut=is_cut).any()


def test_a_rare_step_is_long_and_something_else_ran_in_it() -> None:
    lengths = [*[100] * 19, 301, *[100] * 20]
    rare = "." * 19 + "r" + "." * 20
    assert uses(lengths) == "." * 40  # a stall of the same kernels counts
    assert uses(lengths, {19: 111}) == rare
    assert uses(lengths, {19: 89}) == rare
    assert uses(lengths, {19: 110}) == "." * 40
    assert uses(lengths, ran_else=(19,)) == rare
    assert uses([*[100] * 19, 300, *[100] * 20], {19: 111}) == "." * 40


def test_steps_that_come_often_are_not_rare() -> None:
    few = [*[100] * 30, 900, 900, *[100] * 8]
    assert uses(few, {30: 200, 31: 200}) == "." * 30 + "rr" + "." * 8
    many = [*[100] * 30, 900, 900, 900, *[100] * 7]
    assert uses(many, {30: 200, 31: 200, 32: 200}) == "." * 40


def test_what_is_rare_is_longer_than_the_longest_kind() -> None:
    kinds = [100, 900] * 20
    kinds[20] = 2000
    assert uses(kinds, {20: 200}) == "." * 40
    kinds[20] = 2800
    assert uses(kinds, {20: 200}) == "." * 20 + "r" + "." * 19


def test_noise_leaves_hardly_a_step_out() -> None:
    source = np.random.default_rng(3)
    lengths = (1e6 * source.normal(1, 0.02, (300, 60))).astype(np.int64)
    kernels = np.full(60, 100)
    left_out = sum(int(step_uses(row, kernels, ends_early=False).sum()) for row in lengths)
    assert left_out <= 6


_STEP, _LONG, _NUM = 1_000_000, 9_000_000, 20
_AT = 10


def steps(num_kernels_of_long: int = 10) -> TraceBuilder:
    """Twenty steps of ten kernels, and one that ends the recording; the eleventh is far longer.

    step    0 … 9   | 10: kernels, then 9 ms of something else | 11 … 19, 20
    """
    builder = TraceBuilder()
    for step in range(_NUM + 1):
        begin = step * _STEP + (_LONG if step > _AT else 0)
        builder.nvtx(f"step {step}", begin, begin + _STEP - 1)
        num = num_kernels_of_long if step == _AT else 10
        for kernel in range(num):
            builder.kernel(begin + kernel * _STEP // num, begin + (kernel + 1) * _STEP // num)
    return builder


_BEGIN, _END = (_AT + 1) * _STEP, (_AT + 1) * _STEP + _LONG


@pytest.mark.parametrize(
    ("builder", "is_rare"),
    [
        (steps(), False),  # a stall
        (steps(12), True),
        (steps().nvtx("save checkpoint", _BEGIN, _END - 1), True),
        (steps().nvtx("validate", _BEGIN, _END - 1), True),
        (steps().nvtx("validate", _BEGIN, _BEGIN + _STEP), False),  # too little of it
        (steps().nvtx("load batch", _BEGIN, _END - 1), False),
        (os_call(steps(), "fsync", _BEGIN, _END - 1), True),
        (os_call(steps(), "read", _BEGIN, _END - 1), False),  # training pays for its input
    ],
)
def test_a_rare_step_is_told_from_a_stall(
    builder: TraceBuilder, is_rare: bool, tmp_path: Path
) -> None:
    with ranks_of(builder.write(tmp_path)) as (rank,):
        found = steady_steps(rank, training_window(rank))
        uses = [StepUse(use) for use in found.uses.tolist()]
        assert uses[-1] is StepUse.CUT
        assert uses[_AT] is (StepUse.RARE if is_rare else StepUse.STEADY)
        assert uses.count(StepUse.STEADY) == _NUM - is_rare
        assert len(found.step) == _NUM - is_rare


def test_one_of_two_steps_at_the_same_time_is_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(5):
        begin = step * _STEP
        for inside in (0, 1):
            builder.nvtx(f"step {step}", begin + inside, begin + _STEP - 1 - inside)
        builder.kernel(begin + 10, begin + _STEP)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        found = steady_steps(rank, training_window(rank))
        assert (found.end_ns - found.start_ns).tolist() == [_STEP] * 4
