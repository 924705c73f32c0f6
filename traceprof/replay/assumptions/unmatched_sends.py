"""Sends and receives whose other side is not known: their waits look like transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses import breakdown
from traceprof.communication.messages import EXCHANGES
from traceprof.replay.assumptions.run_change import CannotChange
from traceprof.replay.graph.matched import synchronizing_groups
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from traceprof.execution.open_analysis import OpenAnalysis

_SEND_RECV = "SendRecv"
_MAX_UNMATCHED = 0.01  # of the training, that such kernels may take


def unmatched_sends(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why nothing that changes what ranks wait for can be assumed, None where it can.

    A receive runs from when its rank comes until the data have come: if the send that it waits for
    is not known, it would take as long whatever else changed.

    Args:
        analysis: of the run.
    """
    num_matched = np.zeros(len(analysis.measured.ranks.ranks), np.int64)
    for waits, together in synchronizing_groups(analysis):
        is_send = together & waits.group.is_one_of(EXCHANGES)
        num_matched[list(waits.group.members)] += int(is_send.sum())
    known = dict(zip(analysis.measured.ranks.ranks, num_matched.tolist(), strict=True))
    judged = {result.rank: result.judged for result in analysis.measured.of(breakdown)}
    for rank in analysis.run.ranks:
        ids = [id_ for id_, name in rank.communication_operations.items() if name == _SEND_RECV]
        kernels, window = rank.operations.kernels, judged[rank.rank]
        since_ns = kernels.start_ns - window.window_start_ns
        is_judged = (since_ns >= 0) & (since_ns < window.window_ns)
        sends = np.flatnonzero(kernels.are_named(ids) & is_judged)
        if not len(sends):
            continue
        taken = intervals.union(kernels.start_ns[sends], kernels.ends(sends)).measure_ns
        unmatched = max(1 - known.get(rank.rank, 0) / len(sends), 0.0)
        share = unmatched * taken / max(window.window_ns, 1)
        if share > _MAX_UNMATCHED:
            return CannotChange(
                f"of sends and receives that take {100 * share:.1f} % of the time of rank"
                f" {rank.rank} the other side is not known: how long they wait for it is not"
                " known, either",
                rank.trace.how_to_collect(Part.COMMUNICATION_CALLS),
            )
    return None
