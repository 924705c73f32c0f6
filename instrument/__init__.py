"""Runs inside the training process: names what it does, for Nsight Systems to record.

In come the calls of PyTorch that the process makes; out go NVTX ranges in the domain `traceprof`,
in the grammar of `traceprof.labels`, which `traceprof analyze` reads. Results of the training are
the same bit for bit. Without the package nvtx, or without Nsight attached, nothing happens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instrument.switch import disable, enable, is_enabled
    from instrument.training import annotate, step

__all__ = ["annotate", "disable", "enable", "is_enabled", "step"]

_LAZY = {
    "annotate": "instrument.training",
    "disable": "instrument.switch",
    "enable": "instrument.switch",
    "is_enabled": "instrument.switch",
    "step": "instrument.training",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the type is that of the lazily imported name)
    """Import on first use: `python -m instrument` loads nothing that the script configures.

    nvtx loads numpy, and a script may want to set the number of its threads before.
    """
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'instrument' has no attribute {name!r}")
