"""Whose exception it is that arrives inside our code: ours, or the user's on its way through."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

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
"""What reading arguments raises where they, or PyTorch's version, are others than we know."""


def is_ours(error: BaseException) -> bool:
    """Return whether reading a call's arguments has failed.

    All else is the user's and has to pass: what the handler of a signal raises (an alarm, a worker
    of a data loader that was killed), and what another thread sends to this one.
    """
    kind = type(error)
    is_known = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "torch"
    return is_known and isinstance(error, _KINDS) and not _from_handler(error.__traceback__)


def _from_handler(trace: TracebackType | None) -> bool:
    """Return whether a signal's handler is among the functions: it gets the interrupted frame."""
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, FrameType):
                return True
            if type(value) is tuple and any(isinstance(part, FrameType) for part in value):
                return True
        trace = trace.tb_next
    return False
