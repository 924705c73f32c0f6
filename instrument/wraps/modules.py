"""`forward`, of outermost modules, and `module PATH`, down to the depth that is asked for."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.compiler import is_compiling
from torch.nn import Module
from torch.utils.data import get_worker_info

from instrument.core import nvtx_ranges, steps
from instrument.core.nvtx_ranges import asked_depth
from instrument.core.patching import Patches
from instrument.core.wrapping import (
    compiler_of_thread,
    is_in_backward,
    is_within,
    outermost,
    suspend,
    untraced,
)
from traceprof import labels

_log = logging.getLogger("traceprof.instrument")

_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "CheckpointWrapper",
)
"""Modules that only run another one: they are not part of the model, and open no range."""
_INSIDE_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
"""Their names for that one."""


def install(patches: Patches) -> None:
    """Wrap the calls of modules.

    Not by PyTorch's global hooks for modules: each module would take the slow path through them,
    and compiled models would warn of them. DDP, FSDP and pipeline stages are modules, too.
    """
    try:
        depth = asked_depth()
    except ValueError as error:
        _log.warning("modules have no ranges: %s", error)
        depth = 0
    if depth:
        _replace(patches, _named(Module.__call__, depth))
    call = Module.__call__
    _replace(
        patches, outermost(labels.FORWARD, call, unless=_is_no_forward, before=steps.pass_begins)
    )


def _replace(patches: Patches, named: Callable[..., Any]) -> None:
    call = Module.__call__
    patches.replace(Module, "__call__", named)
    # torch.compile and torch.fx keep it under their own names, to see whether a user changed it.
    patches.replace_everywhere(call, named)


def _is_no_forward() -> bool:
    """Return whether a module runs outside of a forward pass.

    Recomputation in a backward pass (activation checkpointing) is part of that pass, and preparing
    a batch is part of loading it.
    """
    return is_in_backward() or is_within(labels.DATA_LOADING) or get_worker_info() is not None


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[str] = []
        """Paths of the modules whose ranges are open on this thread."""


def _named(call: Callable[..., Any], max_depth: int) -> Callable[..., Any]:
    thread, paths = _Thread(), _Paths()

    @untraced
    @functools.wraps(call)
    def named(module: Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (the module's own)
        if is_compiling() or len(thread.open) >= max_depth or _only_runs_another(module):
            return call(module, *args, **kwargs)
        compiler = compiler_of_thread()
        opened = thread.open
        is_named = is_open = False
        # A signal's exception arrives before a call or after it, never between two other steps.
        try:
            suspend(None)
            path, prepared = paths.of(module, opened)
            is_named = True
            opened.append(path)
            is_open = True
            nvtx_ranges.push(prepared)
            suspend(compiler)
            return call(module, *args, **kwargs)
        finally:
            try:
                if is_named:
                    opened.pop()
            finally:
                try:
                    if is_open:
                        nvtx_ranges.pop()
                finally:
                    suspend(compiler)

    return named


class _Paths:
    """Paths of modules and the prepared labels of their ranges, for as long as they live."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Module, tuple[str, Any]] = WeakKeyDictionary()

    def of(self, module: Module, around: list[str]) -> tuple[str, Any]:
        """Return the path of a module and its label; it may not be a part of those around it."""
        known = self._known.get(module)
        if known is None:
            name = type(module).__name__
            self._add(module, f"{around[-1]}.{name}" if around else name)
            known = self._known[module]
        return known

    def _add(self, root: Module, path: str) -> None:
        for name, module in root.named_modules():
            if module not in self._known:
                inside = [part for part in name.split(".") if part not in _INSIDE_WRAPPERS]
                own = ".".join([path, *filter(None, inside)])
                self._known[module] = own, nvtx_ranges.prepare(f"{labels.MODULE} {own}")


def _only_runs_another(module: Module) -> bool:
    kind = type(module)
    return kind.__name__.startswith(_WRAPPERS) and kind.__module__.startswith("torch.")
