"""The switch for all wrappers: the list of them, and their installation."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from instrument.core import nvtx_ranges
from instrument.core.patching import Exchange, Patches, after_import

_log = logging.getLogger("traceprof.instrument")

PARTS: tuple[str, ...] = (
    "instrument.wraps.collectives",
    "instrument.wraps.point_to_point",
    "instrument.wraps.functional",
    "instrument.wraps.process_groups",
    "instrument.wraps.ddp",
    "instrument.wraps.steps",
    "instrument.wraps.modules",
    "instrument.wraps.tensor_copies",
    "instrument.wraps.pauses",
)
"""Modules with `install(patches: Patches) -> None`, in order; imported only when enabled, since
they import torch. None of them depends on another."""

FOR_WATCH = ("instrument.wraps.ddp", "instrument.wraps.steps")
"""Those that a watch needs; it times calls that wait by wrappers of its own."""

_lock = threading.RLock()
_everywhere = Exchange()
_installed: list[Patches] | None = None
_labelling: list[Patches] | None = None
"""What is installed while the user's own torch.profiler records."""
_after: list[Callable[[], object]] = []
_present: set[str] = set()
"""Parts that are installed."""


def enable() -> None:
    """Install all wrappers; a second call changes nothing.

    Without a tool that records NVTX they are installed while torch.profiler records, whose trace
    has the ranges as annotations; otherwise nothing is replaced but its start and its end. A part
    that cannot be installed (no torch, no torch.distributed, an unknown version) is left out with
    one line in the log `traceprof.instrument`; this never raises.
    """
    global _installed  # noqa: PLW0603  (patches are process-wide)
    with _lock:
        if _installed is not None:
            return
        if nvtx_ranges.is_recording():
            _installed = _install_all()
            return
        patches = Patches()
        _installed = [patches]
        patches.on_restore(after_import("torch", partial(_follow_profiler, patches)))


def enable_for_watch() -> None:
    """Install what a watch needs below all else, and enable."""
    with _lock:
        after_disabling(partial(_restore, _install_all(FOR_WATCH)))
        enable()


def disable() -> None:
    """Restore all originals; a second call changes nothing."""
    global _installed  # noqa: PLW0603
    with _lock:
        _restore(_installed or [])
        _installed = None
        while _after:
            _after.pop()()


def after_disabling(callback: Callable[[], object]) -> None:
    """Call this once, when all originals are back."""
    _after.append(callback)


def end_watch() -> None:
    """Disable, if there is a watch."""
    if _after:
        disable()


def is_enabled() -> bool:
    """Return whether `enable` was called last."""
    return _installed is not None


def follows_profiler() -> bool:
    """Return whether ranges are those of a torch.profiler that is not ours."""
    return _labelling is not None


def _follow_profiler(patches: Patches) -> None:
    """Have ranges in what the user's torch.profiler records, with or without a schedule."""
    profile = importlib.import_module("torch.autograd.profiler").profile
    start, end = profile._start_trace, profile.__exit__  # noqa: SLF001  (of every PyTorch from 1.8)

    @functools.wraps(start)
    def labelled_start(self: object) -> Any:  # noqa: ANN401  (the function's own)
        _label(True)
        try:
            return start(self)
        except BaseException:
            _label(False)
            raise

    @functools.wraps(end)
    def labelled_end(self: object, *error: object) -> Any:  # noqa: ANN401
        try:
            return end(self, *error)
        finally:
            _label(False)

    patches.on_restore(partial(_label, False))
    patches.replace(profile, "_start_trace", labelled_start)
    patches.replace(profile, "__exit__", labelled_end)


def _label(begins: bool) -> None:
    """Install all wrappers as a recording of the user's begins, and restore them at its end."""
    global _labelling  # noqa: PLW0603
    try:
        with _lock:
            if begins and not nvtx_ranges.is_recording():
                nvtx_ranges.annotate_in_profiler()
                _labelling = _install_all()
            elif not begins and _labelling is not None:
                _restore(_labelling)
                _labelling = None
                nvtx_ranges.annotate_no_longer()
    except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
        _log.warning("torch.profiler records no ranges: %s: %s", type(error).__name__, error)


def _install_all(parts: tuple[str, ...] | None = None) -> list[Patches]:
    missing = [part for part in parts or PARTS if part not in _present]
    installed = [patches for part in missing if (patches := _install(part)) is not None]
    _everywhere.run()
    return installed


def _restore(installed: list[Patches]) -> None:
    for patches in reversed(installed):
        patches.restore()
    _everywhere.run()


def _install(part: str) -> Patches | None:
    patches = Patches(_everywhere)
    patches.on_restore(partial(_present.discard, part))
    _present.add(part)
    try:
        importlib.import_module(part).install(patches)
    except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
        _log.warning("%s is not instrumented: %s: %s", part, type(error).__name__, error)
        patches.restore()
        return None
    return patches
