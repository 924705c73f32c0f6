"""Wraps communication functions: one range for each call, whatever it calls inside."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import _functional_collectives

from instrument import completion, nvtx_ranges, operations
from instrument.wrapping import is_compiling, suspend, untraced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from instrument.operations import Operation
    from instrument.patching import Patches

    Function = Callable[..., Any]
    Describe = Callable[..., Operation]
    """Reads a call's arguments: has the parameters of the function that it describes."""

_log = logging.getLogger("traceprof.instrument")

FREE, BLOCK, INSIDE = range(3)
"""On each thread: outside of all ranges, around operations with ranges of their own, or inside
an operation, which opens no further range."""


class _Thread(threading.local):
    level = FREE


class _Process:
    is_on = False
    parts = 0
    has_complained = False


_thread = _Thread()
_process = _Process()


def switch_on(patches: Patches) -> None:
    """Let wrappers write ranges until the patches are restored; then they only pass calls on.

    Where nobody records ranges they only pass calls on, too.
    """
    _process.parts += 1
    _process.is_on = nvtx_ranges.is_recording()
    patches.on_restore(_switch_off)


def _switch_off() -> None:
    _process.parts -= 1
    _process.is_on = _process.is_on and _process.parts > 0


def wrapped(
    modules: Sequence[ModuleType], describe: Mapping[str, Describe]
) -> list[tuple[Function, Function]]:
    """Return each function of these names, from the first module that has it, and its wrapper."""
    pairs = []
    for name, described in describe.items():
        original = next((vars(each)[name] for each in modules if name in vars(each)), None)
        if original is not None:
            pairs.append((original, named(original, described, name)))
    return pairs


def install(patches: Patches, pairs: Sequence[tuple[Function, Function]]) -> None:
    """Put each wrapper wherever its original is held, also where torch.compile looks it up.

    One wrapper stands for one function under all its names: PyTorch compares them by identity.
    """
    switch_on(patches)
    rewritten = _functional_collectives.traceable_collective_remaps
    for original, wrapper in pairs:
        if original in rewritten:
            rewritten[wrapper] = rewritten[original]
            patches.on_restore(functools.partial(rewritten.pop, wrapper, None))
    patches.replace_each_everywhere(pairs)


def named(original: Function, describe: Describe, name: str, level: int = INSIDE) -> Function:
    """Return the function with a range around its calls, labelled by what `describe` tells.

    What fails in here is logged once; the call goes on without a label. Exceptions of the
    function close the range and pass. `level` is what holds for calls inside.
    """

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Range | _Unlabelled:
        try:
            with torch._C.DisableTorchFunction():  # noqa: SLF001  (modes and tensors of the user)
                labelled = operations.label(name, describe(*args, **kwargs))
        except Exception as error:  # noqa: BLE001
            return _Unlabelled(name, error)
        return _Unlabelled(name) if labelled is None else Range(*labelled, name, level)

    return around(original, begin)


def around(original: Function, begin: Callable[..., Range | _Unlabelled]) -> Function:
    """Return the function with a range around its calls, which `begin(args, kwargs)` opens."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (the function's own)
        if not _process.is_on or is_compiling() or _thread.level == INSIDE:
            return original(*args, **kwargs)
        compiler = suspend(None)
        opened = begin(args, kwargs)
        suspend(compiler)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            suspend(None)
            opened.fail()
            suspend(compiler)
            raise
        suspend(None)
        opened.end(result)
        suspend(compiler)
        return result

    return untraced(_as(original.__name__, call))


class Range:
    """A range that is open, and what holds for calls inside."""

    __slots__ = ("_handle", "_name", "_outer", "_text")

    def __init__(
        self, text: str, will_report: bool = False, name: str = "", level: int = INSIDE
    ) -> None:
        self._text = text
        self._name = name
        self._outer = _thread.level
        follow = will_report and self._outer == FREE and completion.may_report(name)
        self._handle = nvtx_ranges.start(text) if follow else None
        nvtx_ranges.push(text)
        _thread.level = level

    def end(self, result: object) -> None:
        """Close the range; of an asynchronous operation, the start/end range when it is done."""
        if self._handle is not None:
            completion.follow(result, self._handle, self._name)
        if result is not None:
            completion.remember(result, self._text)
        self._close()

    def fail(self) -> None:
        """Close the range of a call that has raised."""
        nvtx_ranges.end(self._handle)
        self._close()

    def _close(self) -> None:
        _thread.level = self._outer
        nvtx_ranges.pop()


class _Unlabelled:
    """A call without a range: this process is no member of the group, or we have failed."""

    __slots__ = ("_failure", "_name")

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self._name = name
        self._failure = failure

    def end(self, _: object) -> None:
        """Tell that we have failed: had the arguments been at fault, the call had, too."""
        if self._failure is not None:
            complain(self._name, self._failure)

    def fail(self) -> None:
        """Say nothing: the arguments were at fault."""


def as_override(method: Function, name: str) -> Function:
    """Return a Python function that calls a C++ method, and may stand in its class for it.

    In an object of a Python subclass, C++ looks each method up before it does its own work, and
    so finds the wrapper, which calls C++ again. pybind11 ends this where the calling function has
    the method's name and its `self`.
    """

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return method(self, *args, **kwargs)

    return untraced(_as(name, functools.update_wrapper(override, method)))


def _as(name: str, function: Function) -> Function:
    """Give the function's code this name: in tracebacks, for pybind11, and for torch.compile."""
    function.__code__ = function.__code__.replace(co_name=name)
    return function


def is_silent(level: int) -> bool:
    """Tell whether a call opens no range: from this level on, or in a graph of torch.compile."""
    return not _process.is_on or is_compiling() or _thread.level >= level


def stay_inside() -> None:
    """Open no further range on this thread until the range that is open ends."""
    _thread.level = INSIDE


def complain(what: str, failure: Exception) -> None:
    """Say once that something could not be labelled."""
    if not _process.has_complained:
        _process.has_complained = True
        _log.warning("%s could not be labelled", what, exc_info=failure)
