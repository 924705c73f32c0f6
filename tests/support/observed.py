"""What a replay observes of a run of the second simulator."""

from contextlib import closing
from pathlib import Path

from tests.reference.gpu_machine import Machine
from traceprof.analysis import Options, analyze
from traceprof.host.launch_stalls import find_stalls
from traceprof.replay.graph.process_graph import Observed, observe


def observed(machine: Machine, folder: Path) -> Observed:
    """Write what a machine did, and read it again."""
    path = machine.write(folder / "run.sqlite")
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        ranks = list(enumerate(analysis.run.ranks))
        return observe(ranks, 0, find_stalls(ranks[0][1]))
