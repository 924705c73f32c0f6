"""Ranges that the training script opens itself: its steps, and what else it wants named."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from instrument.core import nvtx_ranges
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_numbers = itertools.count()


class annotate:  # noqa: N801  (used like a function: `with annotate("validate"):`)
    """A range of the user's own, as a context manager or a decorator.

    It closes when the block or the call ends, also by an exception, which passes through. Around a
    coroutine or a generator it is open from the first step of its body to the last. In what
    torch.compile traces it does nothing: put it around the call of a compiled function.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._num_open = 0

    def __enter__(self) -> Self:
        if not _is_compiling():
            nvtx_ranges.push(self._text)
            self._num_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        if self._num_open and not _is_compiling():
            nvtx_ranges.pop()
            self._num_open -= 1

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the function with a range around every call."""
        return _named(function, lambda: self._text)


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
    return annotate(_next_step()) if function is None else _named(function, _next_step)


def _next_step() -> str:
    return labels.step(next(_numbers))


def _named(
    function: Callable[Arguments, Result], text: Callable[[], str]
) -> Callable[Arguments, Result]:
    """Return the function with a range around every run of its body."""
    if inspect.iscoroutinefunction(function):
        return cast("Callable[Arguments, Result]", _named_coroutine(function, text))
    if inspect.isgeneratorfunction(function):
        return cast("Callable[Arguments, Result]", _named_generator(function, text))

    @functools.wraps(function)
    def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if _is_compiling():
            return function(*args, **kwargs)
        with annotate(text()):
            return function(*args, **kwargs)

    return named


# Others may run between the steps of a coroutine or a generator, with ranges of their own, so
# these are ranges that need not nest.


def _named_coroutine(function: Callable[..., Any], text: Callable[[], str]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def named(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (the function's own)
        range_ = nvtx_ranges.start(text())
        try:
            return await function(*args, **kwargs)
        finally:
            nvtx_ranges.end(range_)

    return named


def _named_generator(function: Callable[..., Any], text: Callable[[], str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401
        range_ = nvtx_ranges.start(text())
        try:
            return (yield from function(*args, **kwargs))
        finally:
            nvtx_ranges.end(range_)

    return named


def _is_compiling() -> bool:
    """Return whether torch.compile traces this; without PyTorch, nothing does."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
