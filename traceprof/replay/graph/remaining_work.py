"""Work that remains on the GPU under an assumption: no step is shorter than that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations


class RemainingWork(Record, frozen=True):
    """The work of one process in each step, by variant.

    Attributes:
        number: int64[s], the numbers of the steps.
        limits_ns: int64[s + 1], when they began and the last one ended, on the run's clock.
        stream_ns: float64[s] each, what the compute and the copies of the busiest stream take.
        removed_ns: float64[s] each, by how much kernels that compute take less than measured.
    """

    number: Int64
    limits_ns: Int64
    stream_ns: tuple[Float64, ...] = ()
    removed_ns: tuple[Float64, ...] = ()

    def under(self, process: Process, measured: Durations, sets: list[Durations]) -> RemainingWork:
        """Return the same under other assumptions: one set of durations for each variant."""
        work, num = process.work, len(self.number)
        step = np.searchsorted(self.limits_ns, work.start_ns, side="right") - 1
        rows = np.flatnonzero((step >= 0) & (step < num) & (work.kind != COMMUNICATION))
        step, chain = step[rows], work.chain[rows]
        computes = work.kind[rows] == COMPUTE
        length, beside = measured.length_ns[rows], _beside(work.start_ns, work.end_ns, work.chain)
        alone = length - beside[rows]
        spent = np.bincount(chain, alone)
        on_busiest = chain == (int(spent.argmax()) if len(spent) else -1)
        known: dict[int, tuple[Float64, Float64]] = {}
        for durations in sets:
            if id(durations.length_ns) in known:
                continue
            less = length - durations.length_ns[rows]
            counted = on_busiest & ~durations.is_free_of_stream[rows]
            stream = np.bincount(step, np.where(counted, np.maximum(alone - less, 0), 0), num)
            removed = np.bincount(step, np.where(computes, np.maximum(less, 0), 0), num)
            known[id(durations.length_ns)] = stream.astype(float), removed.astype(float)
        columns = [known[id(durations.length_ns)] for durations in sets]
        stream_ns, removed_ns = zip(*columns, strict=True)
        return replace(self, stream_ns=stream_ns, removed_ns=removed_ns)


def _beside(start_ns: Int64, end_ns: Int64, chain: Int64) -> Int64:
    """Return how long each operation ran beside earlier ones of its stream, int64[n]."""
    beside = np.zeros(len(start_ns), np.int64)
    order = np.lexsort((start_ns, chain))
    start, end, of = start_ns[order], end_ns[order], chain[order]
    if len(order):
        # Streams lie one after the other, far apart, so that one running maximum serves all.
        base = of * (int(end_ns.max()) - int(start_ns.min()) + 1)
        reached = np.maximum.accumulate(end + base)[:-1] - base[1:]
        beside[order[1:]] = np.clip(reached - start[1:], 0, end[1:] - start[1:])
    return beside
