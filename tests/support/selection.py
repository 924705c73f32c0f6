"""Which tests run, which values they take for granted, and what is made once for all of them."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy.typing as npt
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def long_after(num: int, values: Iterable[object]) -> list[ParameterSet]:
    """Return parameters for `parametrize`; those after the first `num` are for `make verify`."""
    return rows_long_after(num, ((value,) for value in values))


def rows_long_after(num: int, rows: Iterable[Sequence[object]]) -> list[ParameterSet]:
    """Return `long_after` for tests that take several values of each row."""
    return [
        pytest.param(*row, marks=[] if index < num else [pytest.mark.long])
        for index, row in enumerate(rows)
    ]


def in_turn(values: Iterable[object], others: Sequence[object]) -> list[ParameterSet]:
    """Return all pairs for `parametrize`; quick for each value is one of the others, in turn."""
    return [
        pytest.param(value, other, marks=[] if index % len(others) == place else [pytest.mark.long])
        for index, value in enumerate(values)
        for place, other in enumerate(others)
    ]


def few_and_many(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with so many examples (`num_examples`), and with more by `make verify`."""
    values = [few, pytest.param(many, marks=pytest.mark.long)]
    return pytest.mark.parametrize("num_examples", values, ids=["few", "many"])


def for_examples(
    num_examples: int, check: Callable[..., None], *strategies: SearchStrategy[Any]
) -> None:
    """Hold a check to generated values: so many of them, the same everywhere."""
    chosen = settings(max_examples=num_examples, suppress_health_check=list(HealthCheck))
    chosen(given(*strategies)(check))()


def missing(what: str, program: str = "") -> NoReturn:
    """Skip the test because of what is missing; in CI, which installs everything, fail it.

    Args:
        what: what is missing.
        program: its name, if `.ci/run` may find that a machine has none (TRACEPROF_WITHOUT).
    """
    can_be_had = program not in os.environ.get("TRACEPROF_WITHOUT", "").split()
    if os.environ.get("CI") and can_be_had:
        pytest.fail(f"{what}, and CI must not skip what needs it")
    pytest.skip(what)


T = TypeVar("T")


def as_rows(*columns: npt.NDArray[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def known(value: T | None) -> T:
    """Return a value, which must not be None."""
    assert value is not None
    return value


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills, in the worker that comes first; the others wait for it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has one of its own in it
    folder, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what one that failed has left
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
