"""traceprof: where the time of a multi-GPU training run went.

>>> import traceprof
>>> result = traceprof.analyze("sample_traces/ddp.sqlite")
>>> [finding.id for finding in result.findings]

docs/library.md explains the rest of the API.
"""

from __future__ import annotations

from traceprof.version import __version__

TYPE_CHECKING = False  # as `typing` has it: no import here delays the guard of the command
if TYPE_CHECKING:
    from typing import Any

    from traceprof.analysis import Analysis, Options, analyze
    from traceprof.comparison.ask import compare
    from traceprof.errors import TraceprofError
    from traceprof.findings import Finding, Severity
    from traceprof.frames.open_run import RunFrames, open_run
    from traceprof.replay.whatif import whatif
    from traceprof.trace.open import open_trace

__all__ = [
    "Analysis",
    "Finding",
    "Options",
    "RunFrames",
    "Severity",
    "TraceprofError",
    "__version__",
    "analyze",
    "compare",
    "open_run",
    "open_trace",
    "whatif",
]

_LAZY = {
    "Analysis": "traceprof.analysis",
    "Finding": "traceprof.findings",
    "Options": "traceprof.analysis",
    "RunFrames": "traceprof.frames.open_run",
    "Severity": "traceprof.findings",
    "TraceprofError": "traceprof.errors",
    "analyze": "traceprof.analysis",
    "compare": "traceprof.comparison.ask",
    "open_run": "traceprof.frames.open_run",
    "open_trace": "traceprof.trace.open",
    "whatif": "traceprof.replay.whatif",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the type is that of the lazily imported name)
    """Import the analyzer on first use, so that `import traceprof` stays free of numpy."""
    from importlib import import_module  # noqa: PLC0415  (see above)

    if name == "instrument":
        return import_module("traceprof.instrument")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'traceprof' has no attribute {name!r}")
