"""No rank is late again and again: the ranks at the root of waits are not waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses import straggler
from traceprof.replay.assumptions.run_change import CannotChange, RunChange
from traceprof.replay.graph.longest_path import NEVER
from traceprof.replay.graph.matched import group_members
from traceprof.replay.graph.process_graph import EdgeKind
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.replay.graph.run_graph import RunGraph


def without_stragglers(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | CannotChange:
    """Let the other ranks go on without waiting for those that are late, and count only them.

    A late rank is taken to be as fast as the one that came before it: its own steps are those of
    the others then.
    """
    ranks = analysis.measured.ranks
    members = group_members(analysis)
    if not members:
        return CannotChange("no ranks were seen to wait for each other on one clock")
    late = [lag.member for lag in straggler.run(analysis.measured).stragglers]
    index = {rank.rank: place for place, rank in enumerate(analysis.run.ranks)}
    indices = [index[ranks.ranks[member]] for member in late]
    is_late = [
        np.tile(is_in(np.array(of_group), indices), len(matched.node))
        for of_group, matched in zip(members, graph.matched, strict=True)
    ]
    edges = np.flatnonzero(graph.edges.kind == EdgeKind.ARRIVAL)[np.concatenate(is_late)]
    return RunChange(
        edges=edges,
        weights=np.full(len(edges), NEVER),
        left_out=frozenset(ranks.ranks[member] for member in late),
    )
