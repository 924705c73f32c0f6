"""Small models of training runs that write Nsight-schema exports with known answers.

`simulate_ddp` makes runs of data-parallel training of any size, fast; `simulate_scenario` makes
small runs with one thing wrong in each, on a discrete-event model (`engine.py`); `simulate_gloo`
makes runs whose ranks have no GPU. What they write is marked as simulated in the export's metadata,
and the truth beside it follows from the model, not from reading the export back.
"""

from traceprof.simulate.ddp import simulate_ddp
from traceprof.simulate.gloo import simulate_gloo
from traceprof.simulate.scenarios import SCENARIOS, simulate_scenario

__all__ = ["SCENARIOS", "simulate_ddp", "simulate_gloo", "simulate_scenario"]
