"""Ranges with names of steps inside of others: which ones are the steps."""

from pathlib import Path

import pytest

from tests.reference import breakdown as reference
from tests.support.builders import TraceBuilder
from tests.support.traces import closed_analysis, ranks_of

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
