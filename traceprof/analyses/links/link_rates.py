"""Rates of links over time, for charts: from copies and from counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import hardware, intervals
from traceprof.analyses.links.link_counters import sampled
from traceprof.analyses.links.link_usage import copies_by_way, link_of, peak_of
from traceprof.structs import Record
from traceprof.trace.model.counters import PERCENT

if TYPE_CHECKING:
    from traceprof.analyses.links.link_series import ClippedSamples
    from traceprof.intervals import Float64, Int64
    from traceprof.run.opening import Rank, Window


class LinkRates(Record, frozen=True):
    """Rates of one link in one direction, in m pieces of time.

    Attributes:
        link: `nvlink`, `pcie` or `network`; None for a path that is not known.
        direction: `h2d`, `d2h`, `d2d` or `p2p` for copies, `tx` or `rx` for counters.
        peer: the other device's ordinal, for `p2p`.
        name: the NIC's, for `network`.
        source: `copies`, `gpu-metrics` or `nic-metrics`.
        unit: `GB/s`; `%` of the peak for samples of a link whose peak is not known.
        mean: float64[m], over the whole piece for copies, over what was sampled for counters; NaN
            where nothing was.
        most: float64[m], while copies ran, or the largest sample; NaN where there was none.
        peak: of the link in this direction, in the same unit; None if that is unknown.
        is_peak_assumed: whether the peak comes from the GPU's name.
    """

    link: str | None
    direction: str
    peer: int | None
    name: str | None
    source: str
    unit: str
    mean: Float64
    most: Float64
    peak: float | None
    is_peak_assumed: bool


def link_rates(rank: Rank, window: Window, limits_ns: Int64) -> list[LinkRates]:
    """Return the rates of all links of a rank.

    Args:
        rank: the rank.
        window: samples and copies in it count.
        limits_ns: int64[m + 1], strictly ascending: piece j is [limits[j], limits[j + 1]).
    """
    copies = rank.operations.copies
    reaching = (copies.end_ns >= window.start_ns) & (copies.start_ns <= window.end_ns)
    by_way = copies_by_way(rank, reaching)
    rates = [
        _of_copies(rank, chosen, direction, peer, limits_ns)
        for (direction, peer), chosen in by_way.items()
    ]
    return rates + [_of_samples(rank, series, limits_ns) for series in sampled(rank, window)]


def _of_copies(
    rank: Rank, chosen: Int64, direction: str, peer: int | None, limits: Int64
) -> LinkRates:
    """Spread the bytes of each copy evenly over its time."""
    copies = rank.operations.copies
    start, end = copies.start_ns[chosen], copies.end_ns[chosen]
    size = np.maximum(copies.bytes[chosen], 0)
    which, piece, length = intervals.pieces(start, end, limits)
    took = (end - start)[which]
    share = np.where(took > 0, length / np.maximum(took, 1), 1.0)
    carried = np.bincount(piece, weights=size[which] * share, minlength=len(limits) - 1)
    covered = intervals.union(start, end)
    busy = intervals.covered_within(covered, limits[:-1], limits[1:])
    peaks, link = hardware.peaks(rank.gpu, rank.peak_overrides), link_of(rank, direction, peer)
    return LinkRates(
        link=link,
        direction=direction,
        peer=peer,
        name=None,
        source="copies",
        unit="GB/s",
        mean=carried / np.diff(limits),
        most=_divided(carried, busy),
        peak=peak_of(rank, peaks, direction, peer),
        is_peak_assumed=direction != "p2p" and peaks.is_assumed(link),
    )


def _of_samples(rank: Rank, series: ClippedSamples, limits: Int64) -> LinkRates:
    peaks, link = hardware.peaks(rank.gpu, rank.peak_overrides), series.of.link
    peak, full = peaks.of(link), series.full(peaks.of(link))
    in_percent = series.of.unit == PERCENT and peak is None
    # From the samples' unit, percent or bytes per millisecond, to GB/s.
    scale = 1.0 if in_percent else 1e-6 if peak is None or full is None else peak / full
    which, piece, length = intervals.pieces(series.start_ns, series.end_ns, limits)
    num = len(limits) - 1
    total = np.bincount(piece, weights=series.value[which] * length, minlength=num)
    most = np.full(num, -np.inf)
    np.maximum.at(most, piece, series.value[which])
    most[np.isneginf(most)] = np.nan
    return LinkRates(
        link=link,
        direction=series.of.direction,
        peer=None,
        name=series.of.name,
        source=series.source,
        unit="%" if in_percent else "GB/s",
        mean=scale * _divided(total, np.bincount(piece, weights=length, minlength=num)),
        most=scale * most,
        peak=100.0 if in_percent else peak,
        is_peak_assumed=peaks.is_assumed(link),
    )


def _divided(part: Float64 | Int64, whole: Float64 | Int64) -> Float64:
    """Return the part divided by the whole; NaN if the whole is 0."""
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
