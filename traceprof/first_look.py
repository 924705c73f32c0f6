"""What can be told of a report before all of it is read: where the time of each rank went.

Nothing but what the GPU did is needed for that; no steps, which the API calls tell apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceprof.analyses import breakdown
from traceprof.run import facts_of, run_of_reports, with_ranks
from traceprof.windows import choose_windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.measuring import Options
    from traceprof.rank import Rank
    from traceprof.run import Run
    from traceprof.trace.model import Trace


def first_looks(
    trace: Trace, ranks: Sequence[Rank], options: Options
) -> Iterator[tuple[Run, tuple[BreakdownResult, ...]]]:
    """Yield the run of a report with what is known of its ranks: of the first one, of two, ….

    Args:
        trace: the only report of the run.
        ranks: its ranks.
        options: what to analyse.

    Raises:
        TraceprofError: the report is damaged, or the options are impossible.
    """
    if options.steps is not None:
        return  # which windows are asked for is not known yet
    run = with_ranks(run_of_reports([facts_of(trace, ranks)], [ranks]), [trace], [ranks])
    found: tuple[BreakdownResult, ...] = ()
    for each in sorted(run.ranks, key=lambda rank: rank.rank):
        rank = replace(each, step_ranges=None)
        (window,) = choose_windows([rank], None, options.time_range)
        if window is not None:
            found = (*found, breakdown.run(rank, window))
        rank.forget()
        yield run, found
