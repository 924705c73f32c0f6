"""What holds a thread up without PyTorch's doing: `save checkpoint` and `garbage collection`.

Checkpoints count as long as their writing holds the thread up. Collections of Python's `gc`, during
which no other code runs, are off unless asked for: `gc` swallows what a handler of a signal raises
while it calls back, so that a Ctrl-C could be lost.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from instrument.core import nvtx_ranges
from instrument.core.patching import Patches, after_import
from instrument.core.wrapping import compiler_of_thread, outermost, suspend, untraced
from traceprof import labels

_DISTRIBUTED = "torch.distributed.checkpoint.state_dict_saver"
_SAVING = ("save", "async_save")
"""`async_save` returns when the tensors are staged; what writes them is another thread."""
_YOUNGEST = 0
"""Collections of the youngest objects are many, and take microseconds."""


def install(patches: Patches) -> None:
    """Wrap the writing of checkpoints, and collections if they are asked for."""
    patches.replace_everywhere(torch.save, outermost(labels.SAVE_CHECKPOINT, torch.save))
    patches.on_restore(after_import(_DISTRIBUTED, lambda: _wrap_distributed(patches)))
    if nvtx_ranges.asks_for_collections():
        follow_collections(patches)


def _wrap_distributed(patches: Patches) -> None:
    module = sys.modules[_DISTRIBUTED]
    functions = [vars(module)[name] for name in _SAVING if name in vars(module)]
    patches.replace_each_everywhere(
        [(function, outermost(labels.SAVE_CHECKPOINT, function)) for function in functions]
    )


def follow_collections(patches: Patches) -> None:
    """Have `gc` call back when a collection begins and when it is over."""
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
        suspend(None)
        try:
            if phase == "start":
                opened = True
                nvtx_ranges.push(prepared)
            elif opened:
                opened = False
                nvtx_ranges.pop()
        finally:
            suspend(compiler)

    return mark
