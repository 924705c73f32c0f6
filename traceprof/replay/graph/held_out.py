"""Delays that are held out: those of one half of the steps, from the other half.

A replay with the delays that were measured cannot miss what was measured. With those of other
steps it can, and it does where steps differ for reasons that it does not know.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traceprof.replay.graph.hidden_host_waits import names_of, numbered
from traceprof.replay.graph.latencies import MAX_LATENCY_NS

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.replay.graph.latencies import Latencies
    from traceprof.replay.graph.longest_path import Float64
    from traceprof.replay.graph.process_graph import Process


def halves(start_ns: Int64, limits_ns: Int64) -> Int64:
    """Return the half that each time's step belongs to, 0 or 1, int64[n].

    Steps alternate as in the sequence of Thue and Morse: no period of the steps falls into one
    half, as that of a loader of two batches would with even and odd ones.

    Args:
        start_ns: int64[n].
        limits_ns: int64[s + 1], when steps began and the last one ended.
    """
    step = np.clip(np.searchsorted(limits_ns, start_ns, side="right") - 1, 0, len(limits_ns))
    half, rest = np.zeros(len(step), np.int64), step.copy()
    while rest.any():
        half ^= rest & 1
        rest >>= 1
    return half


def held_out_latencies(process: Process) -> Latencies:
    """Return the delays of operations by what those like them had in the other half.

    Operations are alike on the same stream, with the same name. What has no like there keeps its
    own, and what the kernels of other streams left no room for is part of what these took.
    """
    latencies, work = process.latencies, process.work
    half = halves(work.start_ns, process.limits_ns)
    like = numbered(work.chain, names_of(process.ranks, work))
    consumer = process.stream_waits.consumer
    alike, halved = like[consumer], half[consumer]
    return replace(
        latencies,
        after_launch_ns=_of_others(_near(latencies.after_launch_ns), like, half),
        after_previous_ns=_of_others(_near(latencies.after_previous_ns), like, half),
        after_wait_ns=_of_others(_near(latencies.after_wait_ns), alike, halved),
        unexplained_ns=_of_others(latencies.unexplained_ns, like, half),
    )


def held_out_tails(process: Process) -> Float64:
    """Return how long after what they waited for calls return, as in the other half, float64[m]."""
    waits = process.host_waits
    half = halves(process.work.start_ns[waits.operation], process.limits_ns)
    return _of_others(_near(waits.tail_ns), waits.is_stall.astype(np.int64), half).astype(
        np.float64
    )


def _near(values: Int64) -> Int64:
    return np.clip(values, -MAX_LATENCY_NS, MAX_LATENCY_NS)


def _of_others(values: Int64, like: Int64, half: Int64) -> Int64:
    """Return the mean of what is alike in the other half, int64[n]; the value where nothing is."""
    if not len(values):
        return values
    own, other = 2 * like + half, 2 * like + 1 - half
    num = 2 * int(like.max()) + 2
    count = np.bincount(own, minlength=num)
    mean = np.bincount(own, values, num) / np.maximum(count, 1)
    return np.where(count[other] > 0, np.rint(mean[other]).astype(np.int64), values)
