"""Small models of training runs that write Nsight-schema exports with known answers.

`simulate_ddp` makes data-parallel runs of any size, fast; `simulate_scenario` makes small runs with
one problem each, on a discrete-event model (`engine.py`), and `simulate_run` makes runs of several
machines, with a report of each, on the same model; `simulate_gloo` makes runs whose ranks have no
GPU. None needs a GPU. Exports are marked as simulated in their metadata, and the truth beside them
follows from the model, not from reading the export back.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceprof.simulate.gloo import simulate_gloo
    from traceprof.simulate.large_ddp.ddp import simulate_ddp
    from traceprof.simulate.scenarios import SCENARIOS, SCHEMA_VERSIONS, simulate_scenario
    from traceprof.simulate.scenarios.runs import RUN_SCENARIOS, simulate_run

__all__ = [
    "RUN_SCENARIOS", "SCENARIOS", "SCHEMA_VERSIONS", "simulate_ddp", "simulate_gloo",
    "simulate_run", "simulate_scenario",
]  # fmt: skip

_LAZY = {
    "RUN_SCENARIOS": "traceprof.simulate.scenarios.runs",
    "SCENARIOS": "traceprof.simulate.scenarios",
    "SCHEMA_VERSIONS": "traceprof.simulate.scenarios",
    "simulate_ddp": "traceprof.simulate.large_ddp.ddp",
    "simulate_gloo": "traceprof.simulate.gloo",
    "simulate_run": "traceprof.simulate.scenarios.runs",
    "simulate_scenario": "traceprof.simulate.scenarios",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the type is that of the lazily imported name)
    """Import a simulator on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'traceprof.simulate' has no attribute {name!r}")
