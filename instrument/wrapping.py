"""Functions with a range around them, which torch.compile does not notice."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torch.compiler import is_compiling

from instrument import nvtx_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from torch._C._dynamo.eval_frame import skip_code  # type: ignore[attr-defined]
except ImportError:  # another torch: a compiled program may break its graph once more, no worse
    skip_code = None

__all__ = ["is_compiling", "outermost", "untraced"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Function = TypeVar("Function", bound="Callable[..., Any]")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: set[str] = set()
        """Labels of `outermost` whose range is open on this thread."""


_thread = _Thread()


def untraced(function: Function) -> Function:
    """Tell torch.compile not to begin a graph in this function, only in what it calls.

    Called from within a graph it is traced nevertheless: there it has to ask `is_compiling` and
    do nothing of its own. With both, graphs break where they break without it.
    """
    if skip_code is not None:
        skip_code(function.__code__)
    return function


def outermost(
    label: str, function: Callable[Arguments, Result], unless: Callable[[], bool] = bool
) -> Callable[Arguments, Result]:
    """Return the function with a range around its outermost call on a thread.

    Calls while a range of this label is open, and those for which `unless` holds, open none.
    An exception closes the range and passes.
    """

    @untraced
    @functools.wraps(function)
    def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if is_compiling() or label in _thread.open or unless():
            return function(*args, **kwargs)
        _thread.open.add(label)
        nvtx_ranges.push(label)
        try:
            return function(*args, **kwargs)
        finally:
            nvtx_ranges.pop()
            _thread.open.discard(label)

    return named
