"""What a child hands over is what it made, and its memory goes with it."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from traceprof.execution import children
from traceprof.execution.children import Child, run_in_children

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="no children elsewhere"),
]

Array = npt.NDArray[Any]

ARRAYS: dict[str, Array] = {
    "none": np.empty(0, np.int64),
    "one": np.array([7]),
    "just too small to be shared": np.arange(65_535, dtype=np.uint8),
    "just large enough": np.arange(65_536).astype(np.uint8),
    "large": np.arange(1_000_003),
    "flags": np.arange(300_001) % 3 == 0,
    "every other": np.arange(400_000)[::2],
    "by columns": np.asfortranarray(np.arange(600_000).reshape(1000, 600)),
    "texts": np.array([f"rank {number}" for number in range(20_000)]),
}


def handed_over(*made: object) -> list[object]:
    """Return what arrives of items that a child makes."""
    with Child(lambda: iter(made)) as child:
        return [*child.items()]


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_arrives_as_it_was_and_is_ours(name: str) -> None:
    sent = ARRAYS[name]
    (found,) = handed_over(sent)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
    assert (found == sent).all()
    if len(found):
        found[:1] = sent[-1:]  # which changes nothing elsewhere
        assert (found[1:] == sent[1:]).all()


def test_pieces_come_in_order_with_all_of_their_arrays() -> None:
    pieces = [("first", ARRAYS), "second", ("third", ARRAYS["large"], ARRAYS["large"][10:])]
    found: list[Any] = handed_over(*pieces)
    assert found[0][0] == "first"
    for name, sent in ARRAYS.items():
        assert (found[0][1][name] == sent).all()
    assert found[1] == "second"
    assert (found[2][1] == ARRAYS["large"]).all()
    assert (found[2][2] == ARRAYS["large"][10:]).all()


@pytest.mark.long
def test_shared_memory_is_free_when_its_arrays_are_gone(
    shared_files: Callable[[], list[str]],
) -> None:
    gc.collect()  # what errors of other tests hold
    found: list[Any] = handed_over(ARRAYS["large"], ARRAYS["flags"])
    assert shared_mappings() == len(shared_files()) == 2
    found.pop()
    gc.collect()
    assert shared_mappings() == 1
    found.clear()
    gc.collect()
    assert shared_mappings() == 0
    assert shared_files() == []


def shared_mappings() -> int:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sum("memfd:traceprof" in line for line in maps.splitlines())


@pytest.mark.parametrize("file", ["/dev/full", "/nowhere"])
def test_memory_that_runs_out_costs_only_time(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", lambda _: os.open(file, os.O_RDWR))
    monkeypatch.setattr(children, "can_fork", lambda: True)  # other tests leave threads behind
    made = run_in_children(
        lambda size: (np.arange(size), os.getpid()), [10**6, 10**6], lambda: None, num_processes=2
    )
    assert all((array == np.arange(10**6)).all() for array, _ in made)
    assert {process for _, process in made} == {os.getpid()}


def test_what_is_forwarded_is_in_the_same_memory(shared_files: Callable[[], list[str]]) -> None:
    def make() -> Iterator[tuple[str, Array]]:
        with Child(lambda: [("large", ARRAYS["large"])], forwards=True) as inner:
            ((_, array),) = inner.items()
            array[:1] = 7  # which changes nothing elsewhere
        yield "small", array[:2]

    gc.collect()  # what errors of other tests hold
    with Child(make) as child:
        (_, large), (_, small) = child.items()
    assert (large == ARRAYS["large"]).all()
    assert small.tolist() == [7, 1]
    assert len(shared_files()) == 1


def num_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.long
def test_many_large_items_leave_no_file_open() -> None:
    gc.collect()  # what other tests left
    before = num_files()
    for _ in range(3):
        found = handed_over(*[ARRAYS["large"]] * 20)
        assert len(found) == 20
    del found
    gc.collect()
    assert num_files() == before
