"""Sampled counters of NVLink, PCIe and the network, above all while work waited for them."""

from __future__ import annotations

import numpy as np

from traceprof import intervals
from traceprof.analyses.links import link_findings, link_usage
from traceprof.analyses.links.link_findings import LinkMetrics, Load
from traceprof.analyses.links.link_usage import LinkUse, exposed_copies
from traceprof.analyses.results import CostResult, facts_of
from traceprof.findings import Finding, NotApplicable, severity_of_cost, share
from traceprof.hardware import Peaks
from traceprof.intervals import Float64, Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.model.operations import PERCENT, LinkSamples
from traceprof.trace.model.parts import Part

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
        return intervals.covered_within(covered, self.start_ns, self.end_ns) == self.length_ns


MIN_SAMPLES = 5  # the mean of fewer depends on when they were taken
OF_COPIES = {"rx": "h2d", "tx": "d2h"}  # what the GPU receives comes from the host


class CounterUse(Record, frozen=True):
    """Statistics of the samples of one link and direction."""

    link: str  # `nvlink`, `pcie` or `network`
    direction: str  # `tx` or `rx`, as the GPU or the NIC sees it
    name: str | None  # the NIC's, else None
    source: str  # `gpu-metrics` or `nic-metrics`
    num_samples: int  # that reach into the window
    sample_ns: int  # the usual length of one
    busy_ns: int  # how much of the window the samples with traffic cover
    bytes: int | None  # the integral over the window; None if the peak of a percentage is not known
    peak_gb_per_s: float | None  # None if that is unknown
    is_peak_assumed: bool  # whether the peak comes from the GPU's name
    utilization: float | None  # the mean over the samples; None without a peak
    # the share of the samples with 90 % of the peak or more; None without a peak
    share_at_peak: float | None
    # the mean over those that lie wholly in communication; None for fewer than five
    utilization_in_communication: float | None
    num_idle_spikes: int  # samples left out: idle NVLinks may read as if they were full


class LinkCountersResult(CostResult, frozen=True):
    """The sampled links of one rank's GPU; those of the machine's NICs for its first rank."""

    counters: tuple[CounterUse, ...]  # the statistics of each link and direction
    uses: tuple[LinkUse, ...]  # the same as rows beside those of copies, where the bytes are known
    loads: tuple[Load, ...]  # the rate of each link while copies or communication were exposed
    exposed_communication_ns: int  # how long communication had the GPU to itself
    has_gpu_samples: bool  # whether the report has GPU metrics
    is_gpu_known: bool  # whether it is known which of the sampled GPUs is this rank's
    unsampled_nics: tuple[str, ...]  # the machine's NICs, if none of them was sampled


def run(rank: Rank, window: Window) -> LinkCountersResult:
    """Integrate the samples over the window, and over its exposed time."""
    all_counters = rank.trace.counters
    communication = window.clip(rank.communication)
    exposed = window.clip(rank.exposed)
    series = sampled(rank, window)
    starts_inside = window.holds_start(rank.operations.copies.start_ns)
    copies = link_usage.copies_by_direction(rank, starts_inside)
    counters, loads = [], []
    for samples in series:
        counters.append(_counter_use(samples, communication, rank.peaks))
        waited_for = {"communication": exposed}
        direction = OF_COPIES.get(samples.of.direction, "")
        if samples.of.link == "pcie" and direction in copies:
            waited_for["copies"] = exposed_copies(rank, copies[direction], window)
        for what, waited in waited_for.items():
            load = _load(rank, window, samples, what, waited)
            loads += [load] if load else []
    return LinkCountersResult(
        **facts_of(rank, window),
        counters=tuple(counters),
        uses=tuple(
            LinkUse(
                link=counter.link,
                direction=counter.direction,
                peer=None,
                bytes=counter.bytes,
                busy_ns=counter.busy_ns,
                peak_gb_per_s=counter.peak_gb_per_s,
                is_peak_assumed=counter.is_peak_assumed,
                source=counter.source,
                name=counter.name,
            )
            for counter in counters
            if counter.bytes is not None
        ),
        loads=tuple(loads),
        exposed_communication_ns=exposed.measure_ns,
        has_gpu_samples=all_counters.has_gpu_samples,
        is_gpu_known=rank.key in all_counters.gpu_of_rank,
        unsampled_nics=() if all_counters.network else all_counters.nics,
    )


def sampled(rank: Rank, window: Window) -> list[ClippedSamples]:
    """Return the samples of a rank's links inside a window."""
    within = (ClippedSamples.within(rank, samples, window) for samples in link_samples(rank))
    return [series for series in within if series]


def link_samples(rank: Rank) -> list[LinkSamples]:
    """Return the samples of the links of a rank's GPU; of the machine's NICs for its first rank."""
    trace, counters = rank.trace, rank.trace.counters
    if rank.device is None:  # a rank with a GPU reports the NICs of the machine
        return []
    gpu = counters.gpu_of_rank.get(rank.key)
    samples = [] if gpu is None else list(counters.by_gpu.get(gpu, ()))
    first = min(trace.operations, key=lambda key: (trace.pid(key.process), key))
    return [*samples, *counters.network] if first == rank.key else samples


def findings(result: LinkCountersResult) -> list[Finding | NotApplicable]:
    """Judge the links while work waited for them."""
    by_link: dict[tuple[str, str, str | None], Finding | NotApplicable] = {}
    for load in sorted(result.loads, key=lambda load: -load.metrics.exposed_ns):
        # One claim of each link and direction, whatever waited.
        metrics = load.metrics
        for claim in link_findings.saturated(load):
            by_link.setdefault((metrics.link, metrics.direction, metrics.nic), claim)
    of_communication = [load for load in result.loads if load.what == "communication"]
    if not of_communication:
        return [*by_link.values(), *_not_applicable(result)]
    # The busiest: where another link is busier, that one may be what is waited for.
    busiest = max(
        of_communication,
        key=lambda load: (load.metrics.utilization, load.metrics.direction == "tx"),
    )
    return [*by_link.values(), *link_findings.underused(busiest, _beside(result))]


def _beside(result: LinkCountersResult) -> list[str]:
    """Name the NICs that were busy, too, whose peak is not known: they may be the limit."""
    return [
        f"{use.name} carried {use.gb_per_s:.1f} GB/s while it was busy: if that is all it can, the"
        " network is the limit (give its rate: --link-peak network=25)"
        for use in result.uses
        if use.link == "network" and use.peak_gb_per_s is None and use.gb_per_s is not None
    ][:1]


def _counter_use(series: ClippedSamples, communication: Intervals, peaks: Peaks) -> CounterUse:
    link = series.of.link
    peak = peaks.of(link)
    full = series.full(peak)
    inside = series.inside(communication)
    enough = int(inside.sum()) >= MIN_SAMPLES
    return CounterUse(
        link=link,
        direction=series.of.direction,
        name=series.of.name,
        source=series.source,
        num_samples=len(series.value),
        sample_ns=int(np.sort(series.length_ns)[len(series.value) // 2]),
        busy_ns=int(series.length_ns[series.value > 0].sum()),
        bytes=series.bytes(peak),
        peak_gb_per_s=peak,
        is_peak_assumed=peaks.is_assumed(link),
        utilization=series.utilization(slice(None), peak),
        share_at_peak=None if full is None else float((series.value >= AT_PEAK * full).mean()),
        utilization_in_communication=series.utilization(inside, peak) if enough else None,
        num_idle_spikes=series.num_idle_spikes,
    )


def _load(
    rank: Rank, window: Window, series: ClippedSamples, what: str, waited: Intervals
) -> Load | None:
    waited_ns, peak = waited.measure_ns, rank.peaks.of(series.of.link)
    if severity_of_cost(share(waited_ns, window.length_ns)) is None or peak is None:
        return None
    inside = series.inside(waited)
    utilization = series.utilization(inside, peak)
    if inside.sum() < MIN_SAMPLES or utilization is None:
        return None
    rate = utilization * peak
    metrics = LinkMetrics(
        link=series.of.link,
        direction=series.of.direction,
        peer=None,
        gb_per_s=rate,
        peak_gb_per_s=peak,
        utilization=rate / peak,
        source=series.source,
        is_peak_assumed=rank.peaks.is_assumed(series.of.link),
        exposed_ns=waited_ns,
        nic=series.of.name or None,
        num_samples=int(inside.sum()),
        coverage=min(1.0, int(series.length_ns[inside].sum()) / waited_ns),
    )
    return Load.of(rank, window, waited, what, metrics)


def _not_applicable(result: LinkCountersResult) -> list[NotApplicable]:
    if severity_of_cost(share(result.exposed_communication_ns, result.window_ns)) is None:
        return []
    nics = ", ".join(result.unsampled_nics)
    beside = f"; nor are there samples of the machine's NICs ({nics})" if nics else ""
    known = any(counter.peak_gb_per_s is not None for counter in result.counters)
    if not result.has_gpu_samples:
        reason = f"no GPU metrics: this export does not show the traffic on NVLink and PCIe{beside}"
        part = Part.NETWORK_COUNTERS if nics else Part.LINK_COUNTERS
        how = result.how_to_collect(part)
    elif not result.is_gpu_known:
        reason = "the export does not show which of the sampled GPUs is this rank's"
        how = result.how_to_collect(Part.COUNTED_GPUS)
    elif not known:
        reason = "the peak rates of the sampled links are unknown"
        how = "give the rates: --link-peak nvlink=300 --link-peak pcie=31.5 (GB/s, one direction)"
    else:
        reason = (
            f"fewer than {MIN_SAMPLES} samples of a link lie in exposed communication: its"
            " operations are shorter than the time between samples"
        )
        how = result.how_to_collect(Part.DENSE_COUNTERS)
    return [NotApplicable(finding, reason, how, result.rank) for finding in link_findings.FINDINGS]


class LinkRates(Record, frozen=True):
    """Rates of one link in one direction, in m pieces of time."""

    link: str | None  # `nvlink`, `pcie` or `network`; None for a path that is not known
    direction: str  # `h2d`, `d2h`, `d2d` or `p2p` for copies, `tx` or `rx` for counters
    peer: int | None  # the other device's ordinal, for `p2p`
    name: str | None  # the NIC's, for `network`
    source: str  # `copies`, `gpu-metrics` or `nic-metrics`
    unit: str  # `GB/s`; `%` of the peak for samples of a link whose peak is not known
    # float64[m], over the whole piece for copies, over what was sampled for counters; NaN where
    # nothing was
    mean: Float64
    most: Float64  # float64[m], while copies ran, or the largest sample; NaN where there was none
    peak: float | None  # of the link in this direction, in the same unit; None if that is unknown
    is_peak_assumed: bool  # whether the peak comes from the GPU's name


def link_rates(rank: Rank, window: Window, limits_ns: Int64) -> list[LinkRates]:
    """Return the rates of all links of a rank in a window.

    `limits_ns`: strictly ascending int64[m + 1]; piece j is [limits[j], limits[j + 1]).
    """
    copies = rank.operations.copies
    reaching = (copies.end_ns >= window.start_ns) & (copies.start_ns <= window.end_ns)
    by_way = link_usage.copies_by_way(rank, reaching)
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
    link = link_usage.link_of(rank, direction, peer)
    return LinkRates(
        link=link,
        direction=direction,
        peer=peer,
        name=None,
        source="copies",
        unit="GB/s",
        mean=carried / np.diff(limits),
        most=_divided(carried, busy),
        peak=link_usage.peak_of(rank, direction, peer),
        is_peak_assumed=direction != "p2p" and rank.peaks.is_assumed(link),
    )


def _of_samples(rank: Rank, series: ClippedSamples, limits: Int64) -> LinkRates:
    link = series.of.link
    peak = rank.peaks.of(link)
    full = series.full(peak)
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
        is_peak_assumed=rank.peaks.is_assumed(link),
    )


def _divided(part: Float64 | Int64, whole: Float64 | Int64) -> Float64:
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
