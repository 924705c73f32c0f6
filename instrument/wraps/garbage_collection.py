"""`garbage collection`: the collections of Python's `gc`, during which no other code runs.

Off unless asked for: `gc` swallows what a handler of a signal raises while it calls back, so that a
Ctrl-C could be lost.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from instrument.core import nvtx_ranges
from instrument.core.wrapping import compiler_of_thread, suspend, untraced
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.core.patching import Patches

_YOUNGEST = 0
"""Collections of the youngest objects are many, and take microseconds."""


def install(patches: Patches) -> None:
    """Have `gc` call back when a collection begins and when it is over, if that is asked for."""
    if nvtx_ranges.asks_for_collections():
        _follow(patches)


def install_unasked(patches: Patches) -> None:
    """Have `gc` call back also if nobody asked for that."""
    if not nvtx_ranges.asks_for_collections():
        _follow(patches)


def _follow(patches: Patches) -> None:
    callback = _callback()
    gc.callbacks.append(callback)
    patches.on_restore(lambda: _remove(callback))


def _remove(callback: Callable[[str, dict[str, Any]], None]) -> None:
    with suppress(ValueError):  # a program may clear the list
        gc.callbacks.remove(callback)


def _callback() -> Callable[[str, dict[str, Any]], None]:
    prepared = nvtx_ranges.prepare(labels.GARBAGE_COLLECTION)
    opened = False

    @untraced
    def mark(phase: str, info: dict[str, Any]) -> None:
        # Collections do not nest, and begin and end on one thread.
        nonlocal opened
        if info["generation"] == _YOUNGEST:
            return
        compiler = compiler_of_thread()
        if compiler is not None:
            suspend(None)
        try:
            if phase == "start":
                opened = True
                nvtx_ranges.push(prepared)
            elif opened:
                opened = False
                nvtx_ranges.pop()
        finally:
            if compiler is not None:
                suspend(compiler)

    return mark
