"""Times on the axes of charts: seconds of the report's own clock, exact enough to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from traceprof.analysis import Analysis
    from traceprof.intervals import Int64

_EXACT_NS = 1 << 53
"""Up to which the browser's numbers are exact."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of an axis.

    Attributes:
        base_ns: 0, or the run's start where the report's times are UTC.
    """

    base_ns: int

    @classmethod
    def of(cls, analysis: Analysis) -> Clock:
        """Return the clock of a run."""
        starts = [result.whole.window_start_ns for result in analysis.result.breakdown]
        start = min(starts, default=0)
        return cls(start if abs(start) >= _EXACT_NS else 0)

    @property
    def title(self) -> str:
        """The title of the axis."""
        return "time since the first GPU operation (s)" if self.base_ns else "time (s)"

    def text(self, time_ns: int) -> str:
        """Write a time: `1.503242 s`, and `+0.000042 s` after the first GPU operation."""
        return f"{self.second(time_ns):{'+' if self.base_ns else ''}.6f} s"

    def seconds(self, times_ns: Int64) -> npt.NDArray[np.float64]:
        """Return times on the axis, float64[n] for int64[n]."""
        seconds: Any = (times_ns - self.base_ns) / 1e9
        return seconds  # type: ignore[no-any-return]

    def second(self, time_ns: int) -> float:
        """Return one time on the axis."""
        return (time_ns - self.base_ns) / 1e9
