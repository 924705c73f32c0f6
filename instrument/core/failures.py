"""Distinguishes errors of the instrumentation from the user's exceptions."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_KINDS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors of reading unexpected arguments, or those of an unknown version of PyTorch."""


def is_ours(error: BaseException) -> bool:
    """Return whether reading a call's arguments has failed.

    All other exceptions are the user's and have to pass: those of signal handlers (an alarm, a
    killed worker of a data loader), and those that another thread sends to this one.
    """
    kind = type(error)
    is_known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "torch"
    return is_known and isinstance(error, _KINDS) and not _from_handler(error.__traceback__)


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
