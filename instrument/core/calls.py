"""Wrappers of communication functions: one range per call, nested calls included."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.compiler import is_compiling
from torch.distributed import _functional_collectives

from instrument.core import completion, nvtx_ranges, operations, wrapping
from instrument.core.operations import Labelled, Operation, Parameters, reader
from instrument.core.patching import Patches
from instrument.core.wrapping import compiler_of_thread, suspend, untraced
from traceprof import labels

Function = Callable[..., Any]
Describe = Callable[..., Operation]
"""Reads a call's arguments, with the parameters of the described function."""

FREE, BLOCK, INSIDE = range(3)
"""On each thread: outside of all ranges, around operations with ranges of their own, or inside
an operation, which opens no further range."""


class _Thread(threading.local):
    level = FREE


class _Process:
    is_on = False
    parts = 0


thread = _Thread()
"""Code that sets the level resets it in a `finally`, without a call in between."""
_process = _Process()


def switch_on(patches: Patches) -> None:
    """Let wrappers write ranges until the patches are restored; then they only pass calls on.

    Without a recorder they only pass calls on, too.
    """
    _process.parts += 1
    _process.is_on = nvtx_ranges.is_recording()
    patches.on_restore(_switch_off)


def _switch_off() -> None:
    _process.parts -= 1
    _process.is_on = _process.is_on and _process.parts > 0


def originals(modules: Sequence[ModuleType], names: Iterable[str]) -> dict[str, Function]:
    """Return the function of each name, from the first module that has it."""
    found = {
        name: [vars(module)[name] for module in modules if name in vars(module)] for name in names
    }
    return {name: functions[0] for name, functions in found.items() if functions}


def wrapped(
    modules: Sequence[ModuleType],
    parameters: Mapping[str, Parameters],
    group_of: Callable[[Any, str], Any] | None = None,
) -> list[tuple[Function, Function]]:
    """Return each function of these names and its wrapper; see `operations.reader`.

    Functions whose arguments cannot be read, in an unknown version of PyTorch, are left out.
    """
    pairs = []
    for name, original in originals(modules, parameters).items():
        try:
            describe = reader(original, parameters[name], group_of)
        except (TypeError, ValueError) as error:  # noqa: PERF203  (once, of a few dozen)
            wrapping.complain(name, error)
        else:
            pairs.append((original, around(original, describe, name)))
    return pairs


def install(patches: Patches, pairs: Sequence[tuple[Function, Function]]) -> None:
    """Put each wrapper in all places of its original, also in tables of torch.compile.

    One wrapper stands for one function under all its names: PyTorch compares them by identity.
    """
    switch_on(patches)
    rewritten = getattr(_functional_collectives, "traceable_collective_remaps", {})
    for original, wrapper in pairs:
        if original in rewritten:
            rewritten[wrapper] = rewritten[original]
            patches.on_restore(functools.partial(rewritten.pop, wrapper, None))
    patches.replace_each_everywhere(pairs)


def around(  # noqa: C901  (the function in it is one on purpose)
    original: Function,
    describe: Callable[..., Any],
    name: str,
    *,
    label: Callable[[str, Any], Labelled | None] = operations.label,
    level: int = INSIDE,
) -> Function:
    """Return the function with a range around its calls.

    `describe` reads the arguments; `label` makes the range's text from them, or None for no range.
    `level` holds for calls inside. A failure in here is logged once for each name, and the call
    goes on without a label; exceptions of the function close the range and pass.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, C901, PLR0912
        if not _process.is_on or is_compiling() or (outer := thread.level) == INSIDE:
            return original(*args, **kwargs)
        # All in one function: further calls would double the cost. A signal's exception arrives
        # before or after a call, never between two other steps, and passes.
        compiler = compiler_of_thread()
        is_open = False
        failure = labelled = None
        handles: list[Any] = []
        try:
            suspend(None)
            try:
                labelled = label(name, describe(*args, **kwargs))
            except Exception as error:
                if not wrapping.is_ours(error):
                    raise
                failure = error
            if labelled is not None:
                text, number, will_report = labelled
                opened = nvtx_ranges.message(text, number)
                if will_report and outer == FREE and completion.may_report(name):
                    nvtx_ranges.start_into(handles, opened)
                is_open = True
                nvtx_ranges.push(opened)
                thread.level = level
            suspend(compiler)
            result = original(*args, **kwargs)
            suspend(None)
            if handles and completion.follow(result, handles, name):
                handles = []
            if labelled is not None and result is not None:
                completion.remember(result, nvtx_ranges.joined(text, number))
            if failure is not None:  # with wrong arguments the call itself would have failed
                wrapping.complain(name, failure)
            return result
        finally:
            thread.level = outer
            try:
                if is_open:
                    nvtx_ranges.pop()
            finally:
                try:
                    if handles:  # of an operation without a future
                        nvtx_ranges.end_all(handles)
                finally:
                    suspend(compiler)

    return untraced(_as(original.__name__, call))


def around_method(
    cls: type,
    method: str,
    describe: Callable[..., Any],
    name: str,
    *,
    label: Callable[[str, Any], Labelled | None] = operations.label,
) -> Function:
    """Return a replacement for a method of a C++ class, with a range around its calls.

    For an object of a Python subclass, C++ looks each method up before its own work, and so finds
    the wrapper, which calls C++ again. pybind11 ends this recursion if the calling function has
    the method's name and its `self`: both functions in here have.
    """
    original = getattr(cls, method)

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return original(self, *args, **kwargs)

    override = untraced(_as(method, functools.update_wrapper(override, original)))
    of_class = around(original, describe, name, label=label)
    of_subclass = around(override, describe, name, label=label)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not _process.is_on or thread.level == INSIDE:  # nearly always: keep it short
            return original(self, *args, **kwargs)
        if type(self) is cls:  # C++ does not look its methods up
            return of_class(self, *args, **kwargs)
        return of_subclass(self, *args, **kwargs)

    return untraced(_as(method, call))


class Timer(Protocol):
    """Takes the times of calls: a label costs more than four times as much."""

    mark: Callable[[], Any]  # never raises, and calls no function that torch.compile would trace
    marks: deque[Any]  # of the begin and the end of each call
    ident: int  # the thread whose calls are taken
    transfers: set[str]  # names of groups that sent or received


def timed(original: Function, timer: Timer) -> Function:
    """Return the function, whose calls a timer takes, nested ones also."""
    append = timer.marks.append

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if is_compiling():
            return original(*args, **kwargs)
        begin = timer.mark()
        try:
            return original(*args, **kwargs)
        finally:
            if get_ident() == timer.ident:
                append(begin)
                append(timer.mark())

    return untraced(_as(original.__name__, call))


def timed_method(cls: type, method: str, timer: Timer, *, is_transfer: bool = False) -> Function:
    """Return a replacement for a method of a C++ class, whose calls a timer takes.

    Of objects of Python subclasses, too: see `around_method`. torch.compile breaks its graph here
    as it does without it.
    """
    original, append = getattr(cls, method), timer.marks.append

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if is_transfer:
            timer.transfers.add(self.group_name)
        begin = timer.mark()
        try:
            return original(self, *args, **kwargs)
        finally:
            if get_ident() == timer.ident:
                append(begin)
                append(timer.mark())

    return untraced(_as(method, functools.update_wrapper(call, original)))


def _as(name: str, function: Function) -> Function:
    """Give the function's code this name: in tracebacks, for pybind11, and for torch.compile."""
    function.__code__ = function.__code__.replace(co_name=name)
    return function


_HIDDEN = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


def line_of(thread: int) -> str:
    """Return the line of the script that a thread runs now; empty within a call with a wrapper."""
    line = ""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  (there is no other way)
    while frame is not None:
        file, code = frame.f_code.co_filename, frame.f_code
        if file == __file__:
            return ""
        if not line and not file.startswith(_HIDDEN):
            line = f"{Path(file).name}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return line or "?"


def is_silent(level: int) -> bool:
    """Return whether a call opens no range: from this level on, or in a graph of torch.compile."""
    return not _process.is_on or is_compiling() or thread.level >= level


def around_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a range around its waits for the operation of its first argument.

    A wait inside a labelled call is part of that call, and has none.
    """
    return around(wait, _awaited, labels.WAIT, label=_wait_label)


def around_waiting_method(cls: type, method: str) -> Callable[..., Any]:
    """Return a replacement for a method of a C++ class that waits for the object's operation."""
    return around_method(cls, method, _awaited, labels.WAIT, label=_wait_label)


def _awaited(awaited: object, *_: object, **__: object) -> object:
    return awaited


def _wait_label(wait: str, awaited: object) -> Labelled:
    text = completion.label_of(awaited)
    if text is None:
        return wait, None, False
    operation = labels.parse(text)
    known = {key: operation.facts[key] for key in ("group", "seq") if key in operation.facts}
    return str(labels.Label(wait, {"op": operation.operation} | known)), None, False
