"""Runs inside the training process: names what it does, for Nsight Systems to record.

In come the calls of PyTorch that the process makes; out go NVTX ranges in the domain `traceprof`,
in the grammar of `traceprof.labels`, which `traceprof analyze` reads. Results of the training are
the same bit for bit. Without Nsight attached nothing happens, unless `record` is called: it records
with torch.profiler, in whose traces the ranges are annotations.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from instrument.recording import record
    from instrument.switch import disable, enable, is_enabled
    from instrument.training import annotate, step

__all__ = ["__version__", "annotate", "disable", "enable", "is_enabled", "record", "step"]

_LAZY = {
    "__version__": "traceprof.version",
    "annotate": "instrument.training",
    "disable": "instrument.switch",
    "enable": "instrument.switch",
    "is_enabled": "instrument.switch",
    "record": "instrument.recording",
    "step": "instrument.training",
}

_CALLBACKS = ("lightning", "transformers")  # modules, also without an import of their own


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the type is that of the lazily imported name)
    """Import on first use: `python -m instrument` loads nothing that the script configures."""
    from importlib import import_module  # noqa: PLC0415

    if name in _CALLBACKS:
        return import_module(f"instrument.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'instrument' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return also what is imported on first use."""
    return sorted({*globals(), *_LAZY, *_CALLBACKS})
