"""Ranges that the training script opens itself: steps and annotations."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from instrument.core import nvtx_ranges, steps
from traceprof import labels

if TYPE_CHECKING:
    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_numbers = itertools.count()


class annotate:  # noqa: N801  (used like a function: `with annotate("validate"):`)
    """A range of the user's own, as a context manager or a decorator.

    It closes when the block or the call ends, also by an exception, which passes through. Around a
    coroutine or a generator it is open from the first step of its body to the last. In code that
    torch.compile traces it does nothing: put it around the call of a compiled function.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[str] = []  # labels

    def __enter__(self) -> Self:
        if not _is_compiling():
            label = self._begins()
            opened = (
                nvtx_ranges.prepare(label) if label is self._text else nvtx_ranges.message(label)
            )
            is_open = False
            try:
                is_open = True
                nvtx_ranges.push(opened)
                self._open.append(label)
            except BaseException:  # of a signal: there will be no exit
                if is_open:
                    nvtx_ranges.pop()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._open and not _is_compiling():
            nvtx_ranges.pop()
            self._ends(self._open.pop(), is_whole=kind is None)

    def _begins(self) -> str:
        return self._text

    def _ends(self, label: str, *, is_whole: bool) -> None:
        """Run after the end of the range; does nothing here."""

    @contextmanager
    def _across(self) -> Iterator[None]:
        """Open a range that need not nest: other code may run between a coroutine's."""
        ranges: list[Any] = []
        label, is_whole = self._begins(), False
        try:
            nvtx_ranges.start_into(ranges, nvtx_ranges.message(label))
            yield
            is_whole = True
        finally:
            nvtx_ranges.end_all(ranges)
            self._ends(label, is_whole=is_whole)

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the function with a range around every run of its body."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def named_coroutine(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:  # noqa: ANN401
                with self._across():
                    return await function(*args, **kwargs)

            return cast("Callable[Arguments, Result]", named_coroutine)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def named_generator(
                *args: Arguments.args, **kwargs: Arguments.kwargs
            ) -> Generator[Any, Any, Any]:
                with self._across():
                    return (yield from function(*args, **kwargs))

            return cast("Callable[Arguments, Result]", named_generator)

        @functools.wraps(function)
        def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if _is_compiling():
                return function(*args, **kwargs)
            label = self._begins()
            opened = nvtx_ranges.message(label)
            is_open = is_whole = False
            # No `with`: a signal's exception would arrive between its begin and the call.
            try:
                is_open = True
                nvtx_ranges.push(opened)
                result = function(*args, **kwargs)
                is_whole = True
                return result
            finally:
                if is_open:
                    nvtx_ranges.pop()
                    self._ends(label, is_whole=is_whole)

        return named


class _Step(annotate):
    """A range that is the next step each time it is entered."""

    def __init__(self) -> None:
        super().__init__(labels.STEP)

    def _begins(self) -> str:
        number = next(_numbers)
        steps.mark_begins(number)
        return labels.step(number)

    def _ends(self, label: str, *, is_whole: bool) -> None:
        """Write down that an exception cut the step, which is not to be counted."""
        if not is_whole:
            nvtx_ranges.push(nvtx_ranges.message(labels.cut(label)))
            nvtx_ranges.pop()
        steps.mark_ends(is_whole=is_whole)


@overload
def step() -> annotate: ...
@overload
def step(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]: ...
def step(
    function: Callable[Arguments, Result] | None = None,
) -> annotate | Callable[Arguments, Result]:
    """Name one training step: decorate the function that runs it, or put a `with` around it.

    Steps are numbered 0, 1, 2, … in the order in which the process begins them, also if the result
    is kept and entered again.

    Args:
        function: runs one step each time it is called; without it, the result is entered by `with`.

    Raises:
        TypeError: the argument is not a function, such as a number.
    """
    if function is None:
        return _Step()
    if not callable(function):
        raise TypeError(
            f"step() takes no {type(function).__name__}: steps are numbered as they begin; "
            "write `with instrument.step():` or decorate a function with `@instrument.step`"
        )
    return _Step()(function)


def _is_compiling() -> bool:
    """Return whether torch.compile traces this; False without PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
