"""Which part of a long test runs always, and which with `make verify` only."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
