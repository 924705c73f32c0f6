"""A rank in one row: the share of each column that it computed, communicated and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.intervals import even_limits

if TYPE_CHECKING:
    from dashboards.timeline.model import RankTimeline


def strip(timeline: RankTimeline, start_ns: int, end_ns: int, columns: int) -> dict[str, Any]:
    """Return the work of a rank between two times.

    Args:
        timeline: of its GPU.
        start_ns: the first nanosecond in view.
        end_ns: one past the last.
        columns: of the screen.

    Returns:
        For each of `GPU_KINDS` that the rank did: its share of each column, in thousandths.
    """
    borders = even_limits(start_ns, end_ns, columns)
    shares = {}
    for kind, row in timeline.kind_rows.items():
        covered = np.diff(row.covered_before(borders, row.started_before(borders)))
        shares[kind] = (1000 * covered // np.diff(borders)).tolist()
    return shares
