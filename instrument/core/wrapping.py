"""Functions with a range around them, which torch.compile does not notice."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling

from instrument.core import nvtx_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

_frames = torch._C._dynamo.eval_frame  # noqa: SLF001  (all of torch._dynamo takes seconds)

suspend = _frames.set_eval_frame
"""`compiler = suspend(None)` keeps torch.compile from looking at the functions that this thread
calls, `suspend(compiler)` lets it again: ours, called between two graphs, would become graphs."""

functions_are_overridden = torch._C._len_torch_function_stack  # noqa: SLF001
"""Tells, by their number, whether modes of the user see calls of PyTorch's functions."""

__all__ = ["functions_are_overridden", "is_compiling", "outermost", "suspend", "untraced"]

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
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(function.__code__)
    elif hasattr(_frames, "set_code_exec_strategy"):  # from 2.7 on
        skip = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)  # noqa: SLF001
        _frames.set_code_exec_strategy(function.__code__, skip)
    return function


def outermost(
    label: str, function: Callable[Arguments, Result], unless: Callable[[], bool] = bool
) -> Callable[Arguments, Result]:
    """Return the function with a range around its outermost call on a thread.

    Calls while a range of this label is open, and those for which `unless` holds, open none.
    An exception closes the range and passes.
    """
    prepared = nvtx_ranges.prepare(label)

    @untraced
    @functools.wraps(function)
    def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if is_compiling():
            return function(*args, **kwargs)
        compiler = suspend(None)
        opened = _thread.open
        if label in opened or unless():
            suspend(compiler)
            return function(*args, **kwargs)
        nvtx_ranges.push(prepared)
        opened.add(label)
        suspend(compiler)
        try:
            return function(*args, **kwargs)
        finally:
            suspend(None)
            opened.discard(label)
            nvtx_ranges.pop()
            suspend(compiler)

    return named
