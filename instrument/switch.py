"""Switches everything on and off: which parts there are, and whether they are installed."""

from __future__ import annotations

import importlib
import logging
import threading

from instrument.patching import Patches

_log = logging.getLogger("traceprof.instrument")

PARTS: tuple[str, ...] = (
    "instrument.collectives",
    "instrument.point_to_point",
    "instrument.functional",
    "instrument.process_groups",
    "instrument.waits",
    "instrument.ddp",
    "instrument.passes",
    "instrument.optimizers",
    "instrument.data_loading",
    "instrument.tensor_copies",
)
"""Modules with `install(patches: Patches) -> None`, in order; imported only when enabled, since
they import torch. None of them depends on another."""

_lock = threading.Lock()
_installed: list[Patches] | None = None


def enable() -> None:
    """Name what the process does from here on; a second call changes nothing.

    A part that cannot be installed (no torch, no torch.distributed, an unknown version) is left
    out with one line in the log `traceprof.instrument`; this never raises.
    """
    global _installed  # noqa: PLW0603  (patches are process-wide)
    with _lock:
        if _installed is None:
            _installed = [patches for part in PARTS if (patches := _install(part)) is not None]


def disable() -> None:
    """Put every original object back; a second call changes nothing."""
    global _installed  # noqa: PLW0603
    with _lock:
        for patches in reversed(_installed or ()):
            patches.restore()
        _installed = None


def is_enabled() -> bool:
    """Tell whether `enable` was called last."""
    return _installed is not None


def _install(part: str) -> Patches | None:
    """Install one part; return what it replaced, or None where it cannot be installed."""
    patches = Patches()
    try:
        importlib.import_module(part).install(patches)
    except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
        _log.warning("%s is not instrumented: %s: %s", part, type(error).__name__, error)
        patches.restore()
        return None
    return patches
