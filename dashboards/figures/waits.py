"""The matrix of waits between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.view import MAX_NAME
from dashboards.widgets.palette import BLUE
from traceprof.errors import one_line
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceprof.ranks.comparison import RankComparison


def wait_matrix(comparison: RankComparison, shown: Collection[int]) -> dict[str, Any] | None:
    """Return how long each rank waited in collectives for each other one; None where none did.

    Args:
        comparison: of the ranks of the run.
        shown: the numbers of the ranks to draw.
    """
    order = sorted(
        (number, member) for member, number in enumerate(comparison.ranks) if number in shown
    )
    members = [member for _, member in order]
    waited = comparison.matrix_ns[np.ix_(members, members)]
    if not waited.any():
        return None
    names = [
        {
            "title": f"rank {number}",
            "name": f"rank {number} ({one_line(comparison.machines[member], MAX_NAME)})",
        }
        for number, member in order
    ]
    return {
        "kind": "matrix",
        "axis": "the rank that came last",
        "side": "the rank that waited",
        "color": BLUE,
        "high": float(waited.max()) / 1e6,
        "between": "waited for",
        "columns": names,
        "rows": [
            name
            | {
                "values": [waited_ns / 1e6 if waited_ns else None for waited_ns in of_rank],
                "texts": [duration(waited_ns) if waited_ns else None for waited_ns in of_rank],
                "notes": None,
            }
            for name, of_rank in zip(names, waited.tolist(), strict=True)
        ],
    }
