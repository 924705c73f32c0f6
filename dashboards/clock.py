"""The one clock of a run, on which every page shows times, and its axes.

It is the clock of the run's first report. Times of other reports are converted by the offset and
drift that the analysis found. Ranks whose clock cannot be compared have axes of their own, which
begin at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from traceprof.analysis import Analysis
from traceprof.findings import Evidence
from traceprof.intervals import Int64
from traceprof.run.session_clocks import Clocks

_EXACT_NS = 1 << 53
"""Up to which the browser's numbers are exact."""

_HOW = {
    "operations": "by operations that all members leave together",
    "session start": "by the starts of the recordings in UTC alone",
}
_NO_START = "its report does not say when the recording began"
_NOTHING_SHARED = "it shares no operation with the other ranks that all members leave together"
_OTHER_RUN = "recorded in another run"


@dataclass(frozen=True)
class RankClock:
    """The times of a rank's report as times of the run."""

    clocks: Clocks | None = None  # of the run; None if times are not converted
    report: int = 0  # the rank's
    shift_ns: int = 0  # what is added to times of the run
    # of its times against the run's; None if they cannot be compared
    uncertainty_ns: int | None = 0
    said: str = ""  # a text: how the clock was compared, or why it cannot be
    # 0 for ranks on the run's clock; ranks of another number can be compared only with each other
    panel: int = 0

    def to_run(self, times_ns: Int64) -> Int64:
        """Return times of the report as times of the run, int64[n]."""
        if self.clocks is None:
            return times_ns
        return self.clocks.to_run(self.report, times_ns) + self.shift_ns

    def at(self, time_ns: int) -> int:
        """Return a time of the report as a time of the run."""
        return int(self.to_run(np.array([time_ns], np.int64))[0])

    def own(self, time_ns: int) -> int:
        """Return the first time of the report at or after a time of the run."""
        if self.clocks is None:
            return time_ns
        times = np.array([time_ns - self.shift_ns], np.int64)
        return int(self.clocks.to_report(self.report, times)[0])

    def interval(self, evidence: Evidence) -> Evidence:
        """Return an interval of the report as one of the run."""
        start, end = self.at(evidence.start_ns), self.at(evidence.end_ns)
        return structs.replace(evidence, start_ns=start, end_ns=end)


OWN = RankClock()
"""The clock of a rank whose times are taken as they are."""


@dataclass(frozen=True)
class Clock:
    """The clock of a run and its axes."""

    base_ns: int  # 0, or the run's start where times are UTC
    # the clocks of the ranks, by number; times of missing ones are not converted
    of_rank: Mapping[int, RankClock] = field(default_factory=dict)
    title: str = "time (s)"  # of an axis

    @classmethod
    def of(cls, analysis: Analysis) -> Clock:
        """Return the clock of a run."""
        ranks = _rank_clocks(analysis)
        starts = [
            ranks.get(result.rank, OWN).at(result.whole.window_start_ns)
            for result in analysis.result.breakdown
        ]
        start = min(starts, default=0)
        if abs(start) >= _EXACT_NS:
            return cls(start, ranks, "time since the first GPU operation (s)")
        return cls(0, ranks)

    def rank(self, number: int) -> RankClock:
        """Return the clock of a rank."""
        return self.of_rank.get(number, OWN)

    def text(self, time_ns: int) -> str:
        """Write a time: `1.503242 s`, and `+0.000042 s` after the first GPU operation."""
        return f"{self.second(time_ns):{'+' if self.base_ns else ''}.6f} s"

    def second(self, time_ns: int) -> float:
        """Return one time on the axis."""
        return (time_ns - self.base_ns) / 1e9


def _rank_clocks(analysis: Analysis) -> dict[int, RankClock]:
    """Return the clocks of a run's ranks; none where a single report has all of them."""
    run, clocks = analysis.result.run, analysis.result.ranks.clocks
    if len(run.reports) < 2:
        return {}
    starts = {result.rank: result.whole.window_start_ns for result in analysis.result.breakdown}
    panels: dict[tuple[int, int | None], int] = {(run.run_numbers[0], None): 0}
    ranks: dict[int, RankClock] = {}
    for rank in sorted(run.ranks, key=lambda rank: rank.rank):
        report, number = rank.report, run.run_numbers[rank.report]
        machine, reference = clocks.of(report), run.run_numbers.index(number)
        uncertainty_ns = 0 if report == reference else clocks.uncertainty_ns(reference, report)
        is_apart = uncertainty_ns is None
        panel = panels.setdefault(
            (number, clocks.host_of[report] if is_apart else None), len(panels)
        )
        how = _HOW.get(machine.source, "")
        if is_apart:
            how = f"{_NO_START}, and {_NOTHING_SHARED}"
        elif number != run.run_numbers[0]:
            how = _OTHER_RUN
        ranks[rank.rank] = RankClock(
            clocks, report, -clocks.seeds_ns[0], uncertainty_ns, how, panel
        )
    first: dict[int, int] = {}  # start of each panel
    for number, start in starts.items():
        panel, at = ranks[number].panel, ranks[number].at(start)
        first[panel] = min(first.get(panel, at), at)
    return {
        number: replace(
            clock, shift_ns=clock.shift_ns + first.get(0, 0) - first.get(clock.panel, 0)
        )
        for number, clock in ranks.items()
    }
