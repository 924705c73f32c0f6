"""Ranges as annotations of torch.profiler, if no tool for NVTX is attached.

Outside of a recording they leave nothing. An annotation may end on another thread, such as one of
Gloo's, only if that thread has the profiler's state: PyTorch passes it on to its own callbacks of a
future, but not to ours.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from instrument.core.nvtx_package import Functions


class ProfilerFunctions(NamedTuple):
    """Functions for annotations.

    Attributes:
        ranges: functions for ranges, which take texts.
        end_with: closes a range of `start` when a future is complete.
    """

    ranges: Functions
    end_with: Any


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []
        """Handles of the annotations that `push` opened on this thread, the outermost first."""


def functions() -> ProfilerFunctions:
    """Return functions that write annotations."""
    # The functions of `push` and `pop` take a twentieth of the time; not every PyTorch has them.
    enter: Any = getattr(torch.autograd, "_record_function_with_args_enter", None)
    leave: Any = getattr(torch.autograd, "_record_function_with_args_exit", None)
    operators: Any = torch.ops.profiler
    start, end = operators._record_function_enter_new, operators._record_function_exit  # noqa: SLF001
    start, end = start.default, end._RecordFunction  # noqa: SLF001
    end_with = operators._call_end_callbacks_on_jit_fut._RecordFunction  # noqa: SLF001
    if enter is None or leave is None:
        enter, leave = start, end
    thread = _Thread()

    def push(text: Any) -> int:  # noqa: ANN401
        thread.open.append(enter(text))
        return len(thread.open)

    def pop() -> int:
        if thread.open:
            leave(thread.open.pop())
        return len(thread.open)

    return ProfilerFunctions(Functions(push, pop, start, end, lambda text, _: text), end_with)
