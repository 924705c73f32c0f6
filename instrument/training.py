"""Ranges that the training script opens itself: its steps, and what else it wants named."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, ParamSpec, TypeVar, overload

from instrument import nvtx_ranges
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_numbers = itertools.count()


class annotate:  # noqa: N801  (used like a function: `with annotate("validate"):`)
    """A range of the user's own, as a context manager or a decorator.

    It closes when the block or the call ends, also by an exception, which passes through.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> Self:
        nvtx_ranges.push(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        nvtx_ranges.pop()

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the function with a range around every call."""

        @functools.wraps(function)
        def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with annotate(self._text):
                return function(*args, **kwargs)

        return named


@overload
def step() -> annotate: ...
@overload
def step(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...
def step(
    function: Callable[Arguments, Result] | None = None,
) -> annotate | Callable[Arguments, Result]:
    """Name one training step: decorate the function that runs it, or put a `with` around it.

    Steps are numbered 0, 1, 2, … in the order in which the process begins them.
    """
    if function is None:
        return annotate(labels.step(next(_numbers)))

    @functools.wraps(function)
    def stepping(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with step():
            return function(*args, **kwargs)

    return stepping
