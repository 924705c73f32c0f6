"""What recording cost: lengths of steps before the recorder started, and of recorded ones.

`instrument` writes them beside the report, by one clock for both (`instrument.core.baseline`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from traceprof.findings import Count
from traceprof.run.machines import read_beside
from traceprof.structs import Record
from traceprof.units import counted, duration

SUFFIX = ".baseline.json"
MIN_STEPS = 3
"""Of each kind; of fewer nothing is said."""
_PROCESS = re.compile(r"-(rank)?\d+$")  # of a report of a whole machine
_MAX_NS = 1 << 53  # so that sums and squares are numbers
_ERRORS = 2.0  # standard errors, about 95 %


class TimedSteps(Record, frozen=True):
    """Lengths of steps of one process, in order."""

    rank: Annotated[int | None, "As the training numbers it; null if unknown."]
    unrecorded_ns: Annotated[tuple[Count, ...], "Up to 20 steps without the recorder, in order."]
    recorded_ns: Annotated[tuple[Count, ...], "Recorded steps, by the same clock."]
    schema: Literal["traceprof.baseline/1"] = "traceprof.baseline/1"

    @property
    def is_sane(self) -> bool:
        """Whether there are enough of each kind, and all are lengths."""
        sides = self.unrecorded_ns, self.recorded_ns
        is_sane = all(0 < ns < _MAX_NS for side in sides for ns in side)
        return is_sane and min(map(len, sides)) >= MIN_STEPS

    @property
    def change(self) -> tuple[float, float]:
        """By which fraction a recorded step is longer in the mean, and how uncertain that is."""
        sides = [np.array(side, float) for side in (self.unrecorded_ns, self.recorded_ns)]
        before, under = (float(side.mean()) for side in sides)
        error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in sides))
        return under / before - 1, _ERRORS * error / before

    def sentence(self) -> str:
        """Return what recording cost a step."""
        change, error = self.change
        before, recorded = (
            (duration(round(float(np.mean(side)))), duration(round(float(np.median(side)))))
            for side in (self.unrecorded_ns, self.recorded_ns)
        )
        said = f"{100 * abs(change):.1f} % {'longer' if change > 0 else 'shorter'}"
        if abs(change) <= error:
            said = "no longer or shorter than steps vary"
        rank = "" if self.rank is None else f" on rank {self.rank}"
        return (
            f"recording made a step {said} (±{100 * error:.1f} %):"
            f" {counted(len(self.unrecorded_ns), 'step')} before it took {before[0]} in the mean"
            f" ({before[1]} in the median), {len(self.recorded_ns)} recorded ones {recorded[0]}"
            f" ({recorded[1]}){rank}"
        )


def timed_beside(report: Path) -> tuple[TimedSteps, ...]:
    """Return the lengths of steps that processes of a report left beside it, by rank."""

    def is_of_report(file: str) -> bool:
        name = file.removesuffix(SUFFIX)
        return report.name.startswith((f"{name}.", f"{_PROCESS.sub('', name)}."))

    read = read_beside(report, f"*{SUFFIX}", TimedSteps, is_of_report)
    found = filter(lambda timed: timed.is_sane, read)
    return tuple(sorted(found, key=lambda timed: -1 if timed.rank is None else timed.rank))


def longest(timed: Sequence[TimedSteps]) -> TimedSteps | None:
    """Return the rank whose steps are longest without a recorder; None without any."""
    return max(timed, key=lambda one: float(np.mean(one.unrecorded_ns)), default=None)
