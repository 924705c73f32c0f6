"""The source of timelines: the ranks of a run, and their measurements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dashboards.time_axis import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.analysis import Analysis
    from traceprof.host.rank_stalls import RankStalls
    from traceprof.run.opening import Run

    Span = tuple[int, int]


@dataclass(frozen=True)
class TimelineSource:
    """A run with open reports.

    Attributes:
        run: its ranks.
        steps: their training steps, by number of the rank.
        judged: start and end of the time that findings judge (ns of the rank's report), by rank.
        clock: of the run; all times are drawn on it.
        analysis: of the run; without it, there are no findings, collectives or critical paths.
        stalls: of the threads that launch the work of ranks, by rank.
    """

    run: Run
    steps: Mapping[int, Sequence[StepMeasures]]
    judged: Mapping[int, Span]
    clock: Clock
    analysis: Analysis | None = None
    stalls: Mapping[int, RankStalls] = field(default_factory=dict)

    @classmethod
    def of(cls, analysis: Analysis) -> TimelineSource:
        """Return the run of an analysis."""
        results = analysis.result.breakdown
        starts = {result.rank: result.judged.window_start_ns for result in results}
        return cls(
            analysis.run,
            {result.rank: result.steps for result in results},
            {
                result.rank: (starts[result.rank], starts[result.rank] + result.judged.window_ns)
                for result in results
            },
            Clock.of(analysis),
            analysis,
            {stalls.rank: stalls for stalls in analysis.result.measured.stalls},
        )
