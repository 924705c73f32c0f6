"""Which part of a long test runs always, and which with `make verify` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _pytest.mark import ParameterSet


def long_after(num: int, values: Iterable[object]) -> list[ParameterSet]:
    """Return parameters for `parametrize`; those after the first `num` are for `make verify`."""
    return [
        pytest.param(value, marks=[] if index < num else [pytest.mark.long])
        for index, value in enumerate(values)
    ]


def in_turn(values: Iterable[object], others: Sequence[object]) -> list[ParameterSet]:
    """Return all pairs for `parametrize`; quick for each value is one of the others, in turn."""
    return [
        pytest.param(value, other, marks=[] if index % len(others) == place else [pytest.mark.long])
        for index, value in enumerate(values)
        for place, other in enumerate(others)
    ]
