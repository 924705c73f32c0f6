"""The samples of one link inside one window: integrals and means, exact to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.structs import Record
from traceprof.trace.model.counters import PERCENT

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.counters import LinkSamples


AT_PEAK = 0.90
"""Of the peak: a sample from here on had no room left."""


class ClippedSamples(Record, frozen=True):
    """Samples clipped to a window: int64[n] each, and how many idle spikes were left out."""

    of: LinkSamples
    start_ns: Int64
    end_ns: Int64
    value: Int64
    num_idle_spikes: int

    @classmethod
    def within(cls, rank: Rank, samples: LinkSamples, window: Window) -> ClippedSamples | None:
        """Return the part of the samples in a window, or None if there is none."""
        start = np.maximum(samples.start_ns, window.start_ns)
        end = np.minimum(samples.end_ns, window.end_ns)
        keep = end > start
        spikes = 0
        if samples.link == "nvlink":
            high = samples.value >= 100 * AT_PEAK
            idle = intervals.covered_within(rank.busy, samples.start_ns, samples.end_ns) == 0
            spikes = int((keep & high & idle).sum())
            keep &= ~(high & idle)
        if not keep.any():
            return None
        return cls(samples, start[keep], end[keep], samples.value[keep], spikes)

    def integral(self, chosen: Mask | slice = slice(None)) -> int:
        """Return the sum of value × length over some samples, exactly."""
        return intervals.total(self.value[chosen] * self.length_ns[chosen])

    def full(self, peak: float | None) -> float | None:
        """Return the value that stands for the peak, None if that is unknown."""
        if self.of.unit == PERCENT:
            return 100.0
        return None if peak is None else 1e6 * peak  # 1 GB/s = 1e6 bytes/ms

    def utilization(self, chosen: Mask | slice, peak: float | None) -> float | None:
        """Return the mean of some samples as a share of the peak."""
        full, length = self.full(peak), int(self.length_ns[chosen].sum())
        return None if full is None or not length else self.integral(chosen) / length / full

    def bytes(self, peak: float | None) -> int | None:
        """Return the integral in bytes, None if the peak of a percentage is not known."""
        if self.of.unit != PERCENT:
            return round(self.integral() / 1e6)
        return None if peak is None else round(self.integral() * peak / 100)

    @property
    def source(self) -> str:
        """The source of these samples, as findings name it."""
        return "gpu-metrics" if self.of.unit == PERCENT else "nic-metrics"

    @property
    def length_ns(self) -> Int64:
        """The length of each sample."""
        return self.end_ns - self.start_ns

    def inside(self, covered: Intervals) -> Mask:
        """Return which samples lie wholly inside the covered time."""
        mask: Mask = intervals.covered_within(covered, self.start_ns, self.end_ns) == self.length_ns
        return mask
