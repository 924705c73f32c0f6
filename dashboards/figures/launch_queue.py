"""The launch queue: its depth over time, and when it blocked the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.figures.reduction import MAX_POINTS, covered_share, envelope
from dashboards.widgets.palette import BLUE, COMMUNICATION
from dashboards.widgets.plots import offsets, rounded
from traceprof.intervals import even_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from dashboards.time_axis import Clock
    from traceprof.intervals import Int64, Intervals


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The queue of one rank's process.

    Attributes:
        rank: the rank's number.
        start_ns: the first nanosecond shown, in the rank's report as all times here.
        end_ns: one past the last.
        times_ns: int64[k], when the depth changed, ascending.
        depth: int[k], how many launches were pending from then on.
        blocked: when a launch for this rank was blocked.
        cap: pending launches at which a launch blocks, None if that is unknown.
        cap_scope: whether that is of one `stream` or of the whole `process`.
    """

    rank: int
    start_ns: int
    end_ns: int
    times_ns: Int64
    depth: npt.NDArray[np.int32]
    blocked: Intervals
    cap: int | None
    cap_scope: str | None


def depth_over_time(queues: Sequence[QueueRow], clock: Clock) -> dict[str, Any]:
    """Return the depth of each queue over time, one row each, with the stalls behind it."""
    return {
        "kind": "depth",
        "axis": clock.title,
        "base": str(clock.base_ns),
        "rows": [_row(queue, clock) for queue in queues],
    }


def _row(queue: QueueRow, clock: Clock) -> dict[str, Any]:
    to_run = clock.rank(queue.rank).to_run
    start, end = to_run(np.array([queue.start_ns, queue.end_ns], np.int64)).tolist()
    limits = envelope(queue.times_ns, queue.depth, queue.start_ns, queue.end_ns)
    whose = "a stream" if queue.cap_scope == "stream" else "the process"
    return {
        "title": f"rank {queue.rank}",
        "unit": "launches",
        "color": BLUE,
        "start": start - clock.base_ns,
        "end": end - clock.base_ns,
        "times": offsets(to_run(np.append(limits.start_ns, queue.end_ns)), clock.base_ns),
        "least": limits.least.tolist(),
        "most": limits.most.tolist(),
        "limit": queue.cap,
        "limit_text": None if queue.cap is None else f"limit of {whose}: {queue.cap}",
        "blocked": _blocked(queue, clock),
        "blocked_color": COMMUNICATION,
    }


def _blocked(queue: QueueRow, clock: Clock) -> dict[str, Any]:
    """Return the pieces of time in which the host was blocked, and for which share of each."""
    limits = even_limits(queue.start_ns, queue.end_ns, MAX_POINTS)
    share = covered_share(queue.blocked, limits)
    hit = np.flatnonzero(share > 0)
    to_run = clock.rank(queue.rank).to_run
    return {
        "starts": offsets(to_run(limits[hit]), clock.base_ns),
        "ends": offsets(to_run(limits[hit + 1]), clock.base_ns),
        "shares": rounded(share[hit], 6),
    }
