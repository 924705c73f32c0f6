"""Latency as a share of the time of messages, and stretches of small messages."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.run.steady_steps import share_per_step
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.units import size_text

if TYPE_CHECKING:
    from traceprof.communication.messages import Messages
    from traceprof.intervals import Float64, Int64
    from traceprof.run.rank import Rank, Window


# From this size on, a message's rate says something about the link: at 25 GB/s it takes 42 µs,
# several times the 7 to 20 µs that NCCL needs for a message of any size.
LARGE_BYTES = 1 << 20
# Up to this size latency is most of a message's time on any link from PCIe 3.0 on: its transfer
# takes 5 µs.
SMALL_BYTES = 64 << 10
DISTINCT_SIZES = 4
"""The least ratio of the largest to the smallest size with which latency and rate can be separated.
"""
# By NCCL's own model (src/graph/tuning.cc) a tree over a network needs 14 µs and 4 µs for each of
# its steps, of which 1024 GPUs take 20: longer times include waiting for another rank.
MAX_LATENCY_NS = 100_000

_PAUSE_NS = 20_000  # messages that follow within this time are one stretch


class SmallMessages(Record, frozen=True):
    """Communication kernels of a rank whose time is latency more than bandwidth."""

    num_operations: int  # kernels whose time is at least half latency
    median_bytes: int | None  # the median size of these, None without any
    # latency of all kernels of known size over their own time, both without waiting for other
    # ranks, 0 to 1; None if they took no time
    latency_share: float | None
    avoidable_ns: int  # wall time that the latency of these kernels takes while nothing computes
    # what the mean steady step would gain at most without them, the window without any
    most_ns: int
    stretches: tuple[Evidence, ...]  # times in which many of them follow each other, longest first


def small_messages(
    rank: Rank, window: Window, sent: Messages, sized: Int64, row: Int64
) -> tuple[SmallMessages, Int64, int]:
    """Return the communication kernels of a rank whose time is latency, judged by their sizes.

    Also returned: their indices among the rank's kernels, int64[n], and their wait in the mean step
    while nothing computes, in ns. `most_ns` counts their latency alone.

    `row`: int64[n], numbers that are equal for one operation on one communicator.
    """
    kernels = rank.operations.kernels
    start, end = kernels.start_ns[sent.kernel[sized]], kernels.ends(sent.kernel[sized])
    size, best, latency = sent.bytes[sized], np.zeros(len(sized)), np.zeros(len(sized))
    for number in distinct_values(row[sized]).tolist():
        alike = row[sized] == number
        best[alike], latency[alike] = best_time_and_latency(size[alike], (end - start)[alike])
    is_small = (2 * latency >= best) & (best > 0)
    few = np.flatnonzero(is_small)

    exposed = intervals.clip(rank.exposed, window.start_ns, window.end_ns)
    of_each = intervals.covered_within(exposed, start[few], end[few])
    together = intervals.intersect(intervals.union(start[few], end[few]), exposed)
    avoidable = min(int(np.minimum(of_each, latency[few]).sum()), together.measure_ns)
    took = float(best.sum())
    names = [sent.operations[kind] for kind in distinct_values(sent.operation[sized[few]]).tolist()]
    waiting = together.measure_ns - min(
        int(np.minimum(of_each, best[few]).sum()), together.measure_ns
    )
    share = share_per_step(rank, window, together)
    of_step = 1 if share is None else share
    small = SmallMessages(
        num_operations=len(few),
        median_bytes=int(median_of(size[few])) if len(few) else None,
        latency_share=float(latency.sum()) / took if took else None,
        avoidable_ns=avoidable,
        most_ns=ceil(avoidable * of_step),
        stretches=_stretches(start[few], end[few], size[few], ", ".join(names)),
    )
    return small, sent.kernel[sized[few]], ceil(waiting * of_step)


def best_time_and_latency(size: Int64, duration_ns: Int64) -> tuple[Float64, Float64]:
    """Return how long messages take without waiting for other ranks, and the latency in that time.

    The model is NCCL's: time = latency + size ÷ rate, for one operation on one communicator. A
    message's best time is the fastest decile of those of its size. The rate is the run's own: the
    best of the messages from 1 MiB on; without any, by how much the best times of the smallest and
    the largest size differ, if the sizes differ fourfold. Without that either, messages up to
    64 KiB are latency alone and others have none. Latency is at most 100 µs: longer times include
    waiting even in the fastest message, and the excess is left out of the best time as well.

    `size`: int64[n], in bytes. `duration_ns`: int64[n].

    Returns:
        Best time and latency of each message, float64[n], in ns.
    """
    order = np.lexsort((duration_ns, size))
    sizes, first, at, count = np.unique(
        size[order], return_index=True, return_inverse=True, return_counts=True
    )
    fastest = duration_ns[order][first + (count - 1) // 10].astype(np.float64)
    large = (sizes >= LARGE_BYTES) & (fastest > 0)
    transfer: Float64
    if large.any():
        transfer = sizes.astype(np.float64) / float((sizes[large] / fastest[large]).max())
    elif sizes[-1] >= DISTINCT_SIZES * max(int(sizes[0]), 1):
        slope = max(float(fastest[-1] - fastest[0]), 0.0) / float(sizes[-1] - sizes[0])
        transfer = sizes.astype(np.float64) * slope
    else:
        transfer = np.where(sizes <= SMALL_BYTES, 0.0, fastest)
    best = np.minimum(fastest, transfer + MAX_LATENCY_NS)
    latency = np.clip(best - transfer, 0.0, None)
    of_message = np.empty(len(size), np.int64)
    of_message[order] = at.reshape(-1)
    return best[of_message], latency[of_message]


def _stretches(start: Int64, end: Int64, size: Int64, names: str) -> tuple[Evidence, ...]:
    if len(start) == 0:
        return ()
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] - reach[:-1] > _PAUSE_NS))
    stop = np.append(first[1:], len(start))
    length = reach[stop - 1] - start[first]
    worst = intervals.largest(length, MAX_EVIDENCE)
    return tuple(
        Evidence(
            int(start[first[index]]),
            int(reach[stop[index] - 1]),
            f"{stop[index] - first[index]} × {names} of"
            f" {size_text(int(median_of(size[first[index] : stop[index]])))} at the median",
        )
        for index in worst.tolist()
    )
