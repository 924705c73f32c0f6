"""Instrumentation of the training process with ranges that recorders write into reports.

Wrappers around PyTorch's functions open NVTX ranges in the domain `traceprof`, in the grammar of
`traceprof.labels`, which `traceprof analyze` reads. Results of the training stay the same bit for
bit. Without Nsight Systems attached it is a no-op, unless torch.profiler records, that of `record`
or the user's own: its traces have the ranges as annotations. Users import it by its other name,
`traceprof.instrument`, which no other package can take.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from instrument.recording import record
    from instrument.switch import disable, enable, is_enabled
    from instrument.training import annotate, step
    from instrument.watching import watch

__all__ = ["__version__", "annotate", "disable", "enable", "is_enabled", "record", "step", "watch"]

_LAZY = {
    "__version__": "traceprof.version",
    "annotate": "instrument.training",
    "disable": "instrument.switch",
    "enable": "instrument.switch",
    "is_enabled": "instrument.switch",
    "record": "instrument.recording",
    "step": "instrument.training",
    "watch": "instrument.watching",
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
    """Return the public names, also those that are imported on first use."""
    return sorted({*__all__, *_CALLBACKS})
