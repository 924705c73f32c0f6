"""Delays that are held out: those of one half of the steps, from the other half.

A replay with the delays that were measured cannot miss what was measured. With those of other
steps it can, and it does where steps differ for reasons that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.replay.graph.hidden_host_waits import names_of, numbered
from traceprof.replay.graph.latencies import MAX_LATENCY_NS

if TYPE_CHECKING:
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.replay.graph.latencies import Latencies
    from traceprof.replay.graph.process_graph import Process


def halves(start_ns: Int64, limits_ns: Int64, is_steady: Mask) -> Int64:
    """Return the half that each time's step belongs to, 0 or 1, int64[n]; -1 in no steady step.

    Steps alternate as in the sequence of Thue and Morse: no period of the steps falls into one
    half, as that of a loader of two batches would with even and odd ones.

    Args:
        start_ns: int64[n].
        limits_ns: int64[s + 1], when steps began and the last one ended.
        is_steady: bool[s], which steps are compared.
    """
    step = np.searchsorted(limits_ns, start_ns, side="right") - 1
    is_inside = np.append(is_steady, False)[step] & (step >= 0)
    half, rest = np.zeros(len(step), np.int64), np.where(is_inside, step, 0)
    while rest.any():
        half ^= rest & 1
        rest >>= 1
    return np.where(is_inside, half, -1)


def held_out_latencies(process: Process) -> Latencies:
    """Return the delays of operations from similar operations in the other half.

    Operations are alike on the same stream, with the same name. What has no like there keeps its
    own, and what the kernels of other streams left no room for is part of what these took. An
    operation that began before its call returned was handed over before: by how much is the call's
    time, which belongs to its step.
    """
    latencies, work = process.latencies, process.work
    half = halves(work.start_ns, process.limits_ns, process.is_steady)
    like = numbered(work.chain, names_of(process.ranks, work))
    consumer = process.stream_waits.consumer
    return replace(
        latencies,
        after_launch_ns=_delays_of_others(latencies.after_launch_ns, like, half),
        after_previous_ns=_delays_of_others(latencies.after_previous_ns, like, half),
        after_wait_ns=_delays_of_others(latencies.after_wait_ns, like[consumer], half[consumer]),
        unexplained_ns=_of_others(latencies.unexplained_ns, like, half),
    )


def held_out_tails(process: Process) -> Float64:
    """Return how long after what they waited for calls return, as in the other half, float64[m].

    A call that returns later than what it waited for can explain has worked or slept since, and
    what was over before the call held nobody: both are as they were.
    """
    waits = process.host_waits
    operation, tail = waits.operation, waits.tail_ns
    half = halves(process.work.start_ns[operation], process.limits_ns, process.is_steady)
    has_waited = process.work.end_ns[operation] > process.calls.start_ns[waits.call]
    is_delay = has_waited & (tail <= MAX_LATENCY_NS)
    half = np.where(is_delay, half, -1)
    names = names_of(process.ranks, process.work)
    like = numbered(names[operation], waits.is_stall.astype(np.int64))
    return _of_others(tail, like, half).astype(np.float64)


def _delays_of_others(values: Int64, like: Int64, half: Int64) -> Int64:
    return _of_others(values, like, np.where(values >= 0, half, -1))


def _of_others(values: Int64, like: Int64, half: Int64) -> Int64:
    """Return the mean of what is alike in the other half, int64[n].

    Where nothing is, and in neither half (-1), that is the value.
    """
    rows = np.flatnonzero(half >= 0)
    if not len(rows):
        return values
    own, other = 2 * like[rows] + half[rows], 2 * like[rows] + 1 - half[rows]
    num = 2 * int(like.max()) + 2
    count = np.bincount(own, minlength=num)
    mean = np.rint(np.bincount(own, values[rows], num) / np.maximum(count, 1)).astype(np.int64)
    held_out = values.copy()
    held_out[rows] = np.where(count[other] > 0, mean[other], values[rows])
    return held_out
