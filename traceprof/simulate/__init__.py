"""Small models of training runs that write Nsight-schema exports with known answers.

`simulate_ddp` makes runs of data-parallel training of any size, fast; `simulate_scenario` makes
small runs with one thing wrong in each, on a discrete-event model (`engine.py`), and `simulate_run`
runs of several machines, with a report of each, on the same model; `simulate_gloo` makes runs whose
ranks have no GPU. None needs a GPU. What they write is marked as simulated in the export's
metadata, and the truth beside it follows from the model, not from reading the export back.
"""

from traceprof.simulate.gloo import simulate_gloo
from traceprof.simulate.large_ddp.ddp import simulate_ddp
from traceprof.simulate.scenarios import SCENARIOS, simulate_scenario
from traceprof.simulate.scenarios.runs import RUN_SCENARIOS, simulate_run
from traceprof.trace.nsight.schema_layouts import PRODUCTS

SCHEMA_VERSIONS = tuple(PRODUCTS)
"""Versions of exports that can be written, oldest first."""

__all__ = [
    "RUN_SCENARIOS",
    "SCENARIOS",
    "SCHEMA_VERSIONS",
    "simulate_ddp",
    "simulate_gloo",
    "simulate_run",
    "simulate_scenario",
]
