"""What a replay observes of a run of the second simulator."""

from contextlib import closing
from pathlib import Path

import numpy as np

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


def assert_begun_when_allowed(process: Observed) -> None:
    """Assert that calls begin when the later of what they wait for allows it."""
    calls, overs = process.calls, process.hand_overs
    earliest = np.zeros(len(calls), np.int64)
    np.maximum.at(earliest, overs.call, calls.end_ns[overs.after] + overs.gap_ns)
    both = overs.own_ns >= 0
    own = calls.end_ns[overs.call[both] - 1] + overs.own_ns[both]
    np.maximum.at(earliest, overs.call[both], own)
    assert earliest[overs.call].tolist() == calls.start_ns[overs.call].tolist()
