"""What is measured of a rank: all that needs its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses import ddp_buckets, process_groups
from traceprof.analyses.measured import RankMeasurements
from traceprof.analyses.registry import RANK_ANALYSES
from traceprof.ranks import arrivals

if TYPE_CHECKING:
    from traceprof.run.rank import Rank, Window


def measure_rank(rank: Rank, window: Window) -> RankMeasurements:
    """Measure a window of a rank by all analyses that are for it.

    Args:
        rank: the rank, of an open report.
        window: what to measure of it.

    Raises:
        TraceFormatError: the report is damaged.
    """
    has_gpu = rank.device is not None
    return RankMeasurements(
        results={
            analysis.name: analysis.run(rank, window)
            for analysis in RANK_ANALYSES
            if has_gpu or analysis.is_for_cpu
        },
        arrivals=arrivals.run(rank, window),
        buckets=ddp_buckets.run(rank, window),
        process_groups=None if has_gpu else process_groups.run(rank, window),
    )
