"""Functions with a range around them that torch.compile does not trace."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.compiler import is_compiling

from instrument.core import nvtx_ranges

_log = logging.getLogger("traceprof.instrument")
_KINDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of reading unexpected arguments, or those of an unknown version of PyTorch."""


def is_ours(error: BaseException) -> bool:
    """Return whether reading a call's arguments has failed.

    All other exceptions are the user's and have to pass: those of signal handlers (an alarm, a
    killed worker of a data loader), and those that another thread sends to this one.
    """
    kind = type(error)
    is_known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "torch"
    return is_known and isinstance(error, _KINDS) and not _from_handler(error.__traceback__)


complained: set[str] = set()


def complain(what: str, failure: Exception) -> None:
    """Log, once for each name, that a call could not be labelled."""
    if what not in complained:
        complained.add(what)
        _log.warning("%s could not be labelled", what, exc_info=failure)


def _from_handler(trace: TracebackType | None) -> bool:
    """Return whether a signal handler is in the traceback: it gets the interrupted frame."""
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, FrameType):
                return True
            if type(value) is tuple and any(isinstance(part, FrameType) for part in value):
                return True
        trace = trace.tb_next
    return False


_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)  # noqa: SLF001
"""What torch.compile uses of the interpreter; all of torch._dynamo takes seconds to import."""


def _no_compiler(_: object = None) -> None:
    """Stand in where PyTorch has no such name: torch.compile looks at our functions, too."""


suspend = getattr(_frames, "set_eval_frame", _no_compiler)
"""`suspend(None)` keeps torch.compile from looking at the functions that this thread calls,
`suspend(compiler)` allows it again: our own functions between two graphs would become graphs.
Without a compiler both change nothing."""


def _by_setting() -> Any:  # noqa: ANN401  (of torch.compile's own)
    compiler = suspend(None)
    suspend(compiler)
    return compiler


compiler_of_thread: Callable[[], Any] = (
    _no_compiler
    if suspend is _no_compiler
    else getattr(_frames, "get_eval_frame_callback", _by_setting)
)
"""Returns the argument for `suspend` that allows it again; None if nothing is compiled."""

functions_are_overridden: Callable[[], int] = getattr(
    torch._C,  # noqa: SLF001
    "_len_torch_function_stack",
    lambda: 1,  # there may be some: ours are hidden from them
)
"""Returns the number of the user's modes that see calls of PyTorch's functions."""

without_overrides: Callable[[], Any] = getattr(
    torch._C,  # noqa: SLF001
    "DisableTorchFunction",
    nullcontext,  # the user's modes see what we read
)
"""Returns a context in which the user's modes see no calls."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Function = TypeVar("Function", bound="Callable[..., Any]")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: set[str] = set()
        """Labels of `outermost` whose range is open on this thread."""


_thread = _Thread()


def is_within(label: str) -> bool:
    """Return whether a range of `outermost` with this label is open on the calling thread."""
    return label in _thread.open


def is_in_backward() -> bool:
    """Return whether this thread runs a backward pass, even one begun on another thread."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  (no public name)


def untraced(function: Function) -> Function:
    """Make torch.compile begin no graph in this function, only in the functions that it calls.

    Called from within a graph it is traced nevertheless: there it has to check `is_compiling` and
    do nothing of its own. With both, graphs break in the same places as without it.
    """
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(function.__code__)
    elif hasattr(_frames, "set_code_exec_strategy"):  # from 2.7 on
        skip = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)  # noqa: SLF001
        _frames.set_code_exec_strategy(function.__code__, skip)
    return function


def outermost(
    label: str,
    function: Callable[Arguments, Result],
    unless: Callable[[], bool] = bool,
    *,
    before: Callable[[], object] = bool,
    after: Callable[[], object] = bool,
) -> Callable[Arguments, Result]:
    """Return the function with a range around its outermost call on a thread.

    Calls while a range of this label is open, and those for which `unless` holds, open none.
    `before` runs before the range opens and `after` when it has closed. An exception closes the
    range and passes.
    """
    prepared = nvtx_ranges.prepare(label)

    @untraced
    @functools.wraps(function)
    def named(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if is_compiling() or label in _thread.open:  # nearly always, of modules: keep it short
            return function(*args, **kwargs)
        compiler = compiler_of_thread()
        opened = _thread.open
        is_outermost = is_open = False
        # A signal's exception arrives before a call or after it, never between two other steps.
        try:
            suspend(None)
            if not unless():
                is_outermost = True
                opened.add(label)
                before()
                is_open = True
                nvtx_ranges.push(prepared)
            suspend(compiler)
            return function(*args, **kwargs)
        finally:
            try:
                if is_outermost:
                    opened.discard(label)
            finally:
                try:
                    if is_open:
                        nvtx_ranges.pop()
                        suspend(None)
                        after()
                finally:
                    suspend(compiler)

    return named
