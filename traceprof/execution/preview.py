"""What is known of ranks before all of their report is read: where their time went.

Nothing but what the GPU did is needed for that; no steps, which need the API calls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceprof.analyses import breakdown
from traceprof.run.rank import WindowKind
from traceprof.run.steps import NO_TRAINING_RANGES
from traceprof.run.windows import time_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.execution.options import Options
    from traceprof.run.rank import Rank


def previews(ranks: Sequence[Rank], options: Options) -> Iterator[tuple[BreakdownResult, ...]]:
    """Yield what is known of ranks, without steps: of the first one by number, of two, ….

    Args:
        ranks: of one run.
        options: what to analyse; nothing is known yet of windows that are chosen by steps.

    Raises:
        TraceprofError: the report is damaged, or the options are impossible.
    """
    if options.steps is not None:
        return
    results: tuple[BreakdownResult, ...] = ()
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        without_steps = replace(rank, training_ranges=NO_TRAINING_RANGES)
        time_range = options.time_range
        chosen = rank.window if time_range is None else time_window(rank, time_range)
        whole = replace(chosen, kind=WindowKind.WHOLE)  # its training is not known yet
        results = (*results, breakdown.run(without_steps, whole))
        without_steps.release()
        yield results
