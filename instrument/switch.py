"""The switch for all wrappers: the list of them, and their installation."""

from __future__ import annotations

import importlib
import logging
import threading

from instrument.core import nvtx_ranges
from instrument.core.patching import Exchange, Patches

_log = logging.getLogger("traceprof.instrument")

PARTS: tuple[str, ...] = (
    "instrument.wraps.collectives",
    "instrument.wraps.point_to_point",
    "instrument.wraps.functional",
    "instrument.wraps.process_groups",
    "instrument.wraps.waits",
    "instrument.wraps.ddp",
    "instrument.wraps.modules",
    "instrument.wraps.passes",
    "instrument.wraps.optimizers",
    "instrument.wraps.data_loading",
    "instrument.wraps.tensor_copies",
    "instrument.wraps.checkpoints",
    "instrument.wraps.garbage_collection",
)
"""Modules with `install(patches: Patches) -> None`, in order; imported only when enabled, since
they import torch. None of them depends on another."""

_lock = threading.Lock()
_everywhere = Exchange()
_installed: list[Patches] | None = None


def enable() -> None:
    """Install all wrappers; a second call changes nothing.

    Without a tool that records NVTX nothing is replaced. A part that cannot be installed (no torch,
    no torch.distributed, an unknown version) is left out with one line in the log
    `traceprof.instrument`; this never raises.
    """
    global _installed  # noqa: PLW0603  (patches are process-wide)
    with _lock:
        if _installed is None:
            parts = PARTS if nvtx_ranges.is_recording() else ()
            _installed = [patches for part in parts if (patches := _install(part)) is not None]
            _everywhere.run()


def disable() -> None:
    """Restore all originals; a second call changes nothing."""
    global _installed  # noqa: PLW0603
    with _lock:
        for patches in reversed(_installed or ()):
            patches.restore()
        _everywhere.run()
        _installed = None


def is_enabled() -> bool:
    """Return whether `enable` was called last."""
    return _installed is not None


def _install(part: str) -> Patches | None:
    patches = Patches(_everywhere)
    try:
        importlib.import_module(part).install(patches)
    except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
        _log.warning("%s is not instrumented: %s: %s", part, type(error).__name__, error)
        patches.restore()
        return None
    return patches
