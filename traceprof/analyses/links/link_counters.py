"""Sampled counters of NVLink, PCIe and the network, above all while work waited for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from traceprof import hardware, intervals
from traceprof.analyses.links import link_findings
from traceprof.analyses.links.copy_paths import copies_by_direction, exposed_copies
from traceprof.analyses.links.link_findings import LinkMetrics, Load
from traceprof.analyses.links.link_series import AT_PEAK, ClippedSamples
from traceprof.analyses.links.link_usage import LinkUse
from traceprof.analyses.shape.results import RankResult
from traceprof.findings import Finding, NotApplicable, severity_of_cost
from traceprof.run.steady_steps import share_per_step
from traceprof.structs import Record
from traceprof.trace.model.parts import HowToCollect, Part

if TYPE_CHECKING:
    from traceprof.hardware import Peaks
    from traceprof.intervals import Intervals
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.counters import LinkSamples

MIN_SAMPLES = 5  # the mean of fewer depends on when they were taken
_DIRECTIONS = {"rx": "h2d", "tx": "d2h"}  # what the GPU receives comes from the host


class CounterUse(Record, frozen=True):
    """Statistics of the samples of one link and direction.

    Attributes:
        link: `nvlink`, `pcie` or `network`.
        direction: `tx` or `rx`, as the GPU or the NIC sees it.
        name: the NIC's, else None.
        source: `gpu-metrics` or `nic-metrics`.
        num_samples: that reach into the window.
        sample_ns: the usual length of one.
        busy_ns: how much of the window the samples with traffic cover.
        bytes: the integral over the window; None if the peak of a percentage is not known.
        peak_gb_per_s: None if that is unknown.
        is_peak_assumed: whether the peak comes from the GPU's name.
        utilization: the mean over the samples; None without a peak.
        share_at_peak: the share of the samples with 90 % of the peak or more; None without a peak.
        utilization_in_communication: the mean over those that lie wholly in communication; None
            for fewer than five.
        num_idle_spikes: samples left out: idle NVLinks may read as if they were full.
    """

    link: str
    direction: str
    name: str | None
    source: str
    num_samples: int
    sample_ns: int
    busy_ns: int
    bytes: int | None
    peak_gb_per_s: float | None
    is_peak_assumed: bool
    utilization: float | None
    share_at_peak: float | None
    utilization_in_communication: float | None
    num_idle_spikes: int


class LinkCountersResult(RankResult, frozen=True):
    """The sampled links of one rank's GPU; those of the machine's NICs for its first rank.

    Attributes:
        counters: the statistics of each link and direction.
        uses: the same as rows beside those of copies, where the bytes are known.
        loads: the rate of each link while copies or communication were exposed.
        window_ns: the window's length.
        exposed_communication_ns: how long communication had the GPU to itself.
        has_gpu_samples: whether the report has GPU metrics.
        is_gpu_known: whether it is known which of the sampled GPUs is this rank's.
        unsampled_nics: the machine's NICs, if none of them was sampled.
        how_to_collect: how to record parts that the trace may lack.
    """

    counters: tuple[CounterUse, ...]
    uses: tuple[LinkUse, ...]
    loads: tuple[Load, ...]
    window_ns: int
    exposed_communication_ns: int
    has_gpu_samples: bool
    is_gpu_known: bool
    unsampled_nics: tuple[str, ...]
    how_to_collect: HowToCollect


def run(rank: Rank, window: Window) -> LinkCountersResult:
    """Integrate the samples over the window, and over its exposed time."""
    all_counters = rank.trace.counters
    peaks = hardware.peaks(rank.gpu, rank.peak_overrides)
    communication = intervals.clip(rank.communication, window.start_ns, window.end_ns)
    exposed = intervals.clip(rank.exposed, window.start_ns, window.end_ns)
    series = sampled(rank, window)
    copies = copies_by_direction(rank, window.holds_start(rank.operations.copies.start_ns))
    counters, loads = [], []
    for samples in series:
        counters.append(_counter_use(samples, communication, peaks))
        waited_for = {"communication": exposed}
        direction = _DIRECTIONS.get(samples.of.direction, "")
        if samples.of.link == "pcie" and direction in copies:
            waited_for["copies"] = exposed_copies(rank, copies[direction], window)
        for what, waited in waited_for.items():
            load = _load(rank, samples, what, waited, peaks, window)
            loads += [load] if load else []
    return LinkCountersResult(
        rank=rank.rank,
        how_to_collect=rank.trace.how_to_collect,
        counters=tuple(counters),
        uses=tuple(_link_use(counter) for counter in counters if counter.bytes is not None),
        loads=tuple(loads),
        window_ns=window.length_ns,
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
    counters = rank.trace.counters
    gpu = None if rank.device is None else counters.gpu_of_rank.get(rank.key)
    samples = [] if gpu is None else list(counters.by_gpu.get(gpu, ()))
    if counters.network and _is_first(rank):
        samples += counters.network
    return samples


def findings(result: LinkCountersResult) -> list[Finding | NotApplicable]:
    """Judge the links while work waited for them."""
    by_link: dict[tuple[str, str, str | None], Finding] = {}
    for load in sorted(result.loads, key=lambda load: -load.metrics.exposed_ns):
        finding = link_findings.saturated(result.rank, load, result.window_ns)
        if finding is not None:  # one claim of each link and direction, whatever waited
            metrics = load.metrics
            by_link.setdefault((metrics.link, metrics.direction, metrics.nic), finding)
    judged: list[Finding | NotApplicable | None] = [*by_link.values()]
    of_communication = [load for load in result.loads if load.what == "communication"]
    if of_communication:
        # The busiest: where another link is busier, that one may be what is waited for.
        busiest = max(
            of_communication,
            key=lambda load: (load.metrics.utilization, load.metrics.direction == "tx"),
        )
        finding = link_findings.underused(result.rank, busiest, result.window_ns)
        if finding is not None:
            advice = (*finding.advice, *_beside(result))
            finding = structs.replace(finding, advice=advice)
        judged.append(finding)
    else:
        judged += _not_applicable(result)
    return [claim for claim in judged if claim is not None]


def _beside(result: LinkCountersResult) -> list[str]:
    """Name the NICs that were busy, too, whose peak is not known: they may be the limit."""
    return [
        f"{use.name} carried {use.gb_per_s:.1f} GB/s while it was busy: if that is all it can, the"
        " network is the limit (give its rate: --link-peak network=25)"
        for use in result.uses
        if use.link == "network" and use.peak_gb_per_s is None and use.gb_per_s is not None
    ][:1]


# -- numbers --------------------------------------------------------------------------------------


def _is_first(rank: Rank) -> bool:
    """Say whether the rank is the first of its report, beside which the machine's NICs stand."""
    trace = rank.trace
    if rank.device is None:  # a rank with a GPU reports the NICs of the machine
        return False
    first = min(trace.operations, key=lambda key: (trace.pid(key.process), key))
    return first == rank.key


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


def _link_use(use: CounterUse) -> LinkUse:
    return LinkUse(
        link=use.link,
        direction=use.direction,
        peer=None,
        bytes=use.bytes or 0,
        busy_ns=use.busy_ns,
        peak_gb_per_s=use.peak_gb_per_s,
        is_peak_assumed=use.is_peak_assumed,
        source=use.source,
        name=use.name,
    )


def _load(
    rank: Rank, series: ClippedSamples, what: str, waited: Intervals, peaks: Peaks, window: Window
) -> Load | None:
    """Return the rate of the link while work waited for it; None if that is unknown."""
    waited_ns, peak = waited.measure_ns, peaks.of(series.of.link)
    fraction = waited_ns / window.length_ns if window.length_ns else 0.0
    if severity_of_cost(fraction) is None or peak is None:
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
        is_peak_assumed=peaks.is_assumed(series.of.link),
        exposed_ns=waited_ns,
        nic=series.of.name or None,
        num_samples=int(inside.sum()),
        coverage=min(1.0, int(series.length_ns[inside].sum()) / waited_ns),
    )
    in_step = share_per_step(rank, window, waited)
    return Load(metrics, what, link_findings.longest(rank, waited, what), in_step)


# -- what is missing ------------------------------------------------------------------------------


def _not_applicable(result: LinkCountersResult) -> list[NotApplicable]:
    """Return why no link was judged, if communication was exposed."""
    fraction = result.exposed_communication_ns / result.window_ns if result.window_ns else 0.0
    if severity_of_cost(fraction) is None:
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
