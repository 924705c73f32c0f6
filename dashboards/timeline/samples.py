"""Sampled counters of links as rows: the samples, and their mean in each column of a view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from dashboards.time_axis import OWN
from dashboards.timeline.row import Row
from dashboards.timeline.viewport import Viewport
from traceprof.intervals import even_limits
from traceprof.trace.model.counters import PERCENT
from traceprof.units import counted, three_digits

if TYPE_CHECKING:
    from dashboards.time_axis import RankClock
    from traceprof.intervals import Float64, Int64
    from traceprof.trace.model.counters import LinkSamples


_NAMES = {"nvlink": "NVLink", "pcie": "PCIe"}
_WAYS = {"tx": "sent", "rx": "received"}
_BYTES_PER_MS_A_GB_PER_S = 1e6
_NO_EVENTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one link in one direction.

    Attributes:
        of: the sampled counter, on the run's clock.
        row: the times of the samples.
    """

    of: LinkSamples
    row: Row

    @classmethod
    def sampled(cls, of: LinkSamples, clock: RankClock = OWN) -> Samples:
        """Return the samples of a link on a rank's clock."""
        start, end = clock.to_run(of.start_ns), clock.to_run(of.end_ns)
        return cls(replace(of, start_ns=start, end_ns=end), Row.of(start, end))

    @cached_property
    def top(self) -> float:
        """The value that fills the row: the link's peak, or the largest sample."""
        return 100.0 if self.of.unit == PERCENT else float(max(self.of.value.max(initial=0), 1))

    @property
    def label(self) -> str:
        """The counter and its scale: `NVLink, sent · to 100 %`."""
        name = self.of.name or _NAMES.get(self.of.link, self.of.link)
        way = _WAYS.get(self.of.direction, self.of.direction)
        return f"{name}, {way} · to {self._text(self.top)}"

    @cached_property
    def _integral(self) -> Float64:
        """The sum of value times length of the samples before each, float64[n + 1]."""
        integral = np.zeros(len(self.of.value) + 1)
        np.cumsum(self.of.value * (self.of.end_ns - self.of.start_ns), out=integral[1:])
        return integral

    def _until(self, times_ns: Int64) -> tuple[Float64, Int64]:
        """Return the integral, and the sampled time, up to each of some times."""
        started = self.row.started_before(times_ns)
        integral, sampled = self._integral[started], self.row.covered_before(times_ns, started)
        last = started - 1
        beyond = np.where(started > 0, np.maximum(self.of.end_ns[last] - times_ns, 0), 0)
        return integral - self.of.value[last] * beyond, sampled

    def view(self, start_ns: int, end_ns: int, columns: int) -> Viewport:
        """Return the mean in each column of a view, as a share of `top`.

        Args:
            start_ns: the first nanosecond in view.
            end_ns: one past the last.
            columns: of the screen.
        """
        borders = even_limits(start_ns, end_ns, columns)
        integral, sampled = self._until(borders)
        time = np.diff(sampled)
        mean = np.diff(integral) / np.maximum(time, 1)
        width = np.diff(borders)
        filled = np.round(np.minimum(mean / self.top, 1) * width).astype(np.int64)
        column = np.flatnonzero(time)
        count = np.diff(self.row.started_before(borders))
        return Viewport(borders, _NO_EVENTS, column, filled[column], count[column])

    def summary(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Describe the samples between two times in words.

        Returns:
            `count` of the samples and `said`: lines of text.
        """
        running, starting = self.row.in_view(start_ns, end_ns)
        inside = np.concatenate((running, np.arange(starting.start, starting.stop)))
        if len(inside) == 0:
            return {"count": 0, "num_names": 0, "names": [], "said": ["nothing was sampled here"]}
        integral, sampled = self._until(np.array([start_ns, end_ns]))
        mean = float(np.diff(integral)[0] / max(int(np.diff(sampled)[0]), 1))
        values = self.of.value[inside]
        least, most = self._text(float(values.min())), self._text(float(values.max()))
        said = [
            f"{self._text(mean)} in the mean",
            f"{counted(len(inside), 'sample')} of {least} to {most}",
        ]
        return {"count": len(inside), "num_names": 0, "names": [], "said": said}

    def _text(self, value: float) -> str:
        if self.of.unit == PERCENT:
            return f"{value:.3g} %"
        return f"{three_digits(value / _BYTES_PER_MS_A_GB_PER_S)} GB/s"
