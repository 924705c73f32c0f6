"""Simulates training runs and writes them as reports with known answers; no GPU takes part.

`simulate_scenario` makes small runs with one problem each, on a discrete-event model of host
threads, streams, links and ranks; `simulate_run` makes runs of several machines, with a report of
each, on the same model; `simulate_ddp` makes data-parallel runs of any size, and `simulate_gloo`
runs whose ranks have no GPU. Exports are marked as simulated in their metadata, and the truth
beside them follows from the model, not from reading the export back.
"""

from sample_traces.simulator.ddp import simulate_ddp
from sample_traces.simulator.gloo import simulate_gloo
from sample_traces.simulator.scenarios import SCENARIOS, SCHEMA_VERSIONS, simulate_scenario
from sample_traces.simulator.scenarios.runs import RUN_SCENARIOS, simulate_run

__all__ = [
    "RUN_SCENARIOS",
    "SCENARIOS",
    "SCHEMA_VERSIONS",
    "simulate_ddp",
    "simulate_gloo",
    "simulate_run",
    "simulate_scenario",
]
