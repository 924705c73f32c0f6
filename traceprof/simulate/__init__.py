"""Small models of training runs that write Nsight-schema exports with known answers.

`simulate_ddp` needs no GPU. What it writes is marked as simulated in the export's metadata, and the
truth beside it follows from the model, not from reading the export back.
"""

from traceprof.simulate.ddp import simulate_ddp

__all__ = ["simulate_ddp"]
