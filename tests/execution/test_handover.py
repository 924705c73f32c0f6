"""What a copy of the process hands over is what it made, and its memory goes with it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from traceprof.execution import child_process as processes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="no copies elsewhere"),
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


def nothing(_: object) -> None:
    """Do nothing in the copy."""


def handed_over(*made: object) -> list[object]:
    """Return what arrives of pieces that a copy makes; fail where this process makes them."""
    here = os.getpid()

    def make() -> list[object]:
        assert os.getpid() != here
        return [*made]

    with processes.ahead([make], nothing) as (pieces,):
        return pieces.made()


@pytest.fixture(params=["shared memory", "without"], autouse=True)
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With what the system has, and where it has no files in memory."""

    def refused(*_: object) -> int:
        raise PermissionError

    if request.param == "without":
        monkeypatch.setattr(os, "memfd_create", refused)
    return str(request.param)


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


def test_shared_memory_is_free_when_its_arrays_are_gone(
    memory: str, shared_files: Callable[[], list[str]]
) -> None:
    gc.collect()  # what errors of other tests hold
    found: list[Any] = handed_over(ARRAYS["large"], ARRAYS["flags"])
    assert shared_mappings() == (2 if memory == "shared memory" else 0)
    assert len(shared_files()) == shared_mappings()
    found.pop()
    gc.collect()
    assert shared_mappings() == (1 if memory == "shared memory" else 0)
    found.clear()
    gc.collect()
    assert shared_mappings() == 0
    assert shared_files() == []


def shared_mappings() -> int:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sum("memfd:traceprof" in line for line in maps.splitlines())


def test_memory_that_runs_out_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    here = os.getpid()
    made = processes.shared(lambda size: (np.arange(size), os.getpid()), [10**6, 10**6], nothing)
    assert all((array == np.arange(10**6)).all() for array, _ in made)
    is_shared = hasattr(os, "memfd_create") and _has_shared_memory()
    assert {process == here for _, process in made} == ({True} if is_shared else {True, False})


def _has_shared_memory() -> bool:
    try:
        os.close(os.memfd_create("tried"))
    except OSError:
        return False
    return True
