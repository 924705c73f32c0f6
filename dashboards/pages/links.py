"""Links: bytes and rates on PCIe, NVLink and the network, and between which GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import html
from dash.development.base_component import Component

from dashboards.clock import Clock
from dashboards.view import View, device_text
from dashboards.widgets import charts
from dashboards.widgets.components import card, missing, nothing, page, time_note, worst_first
from dashboards.widgets.tables import IDENTIFIER, Column, record, table
from traceprof.analyses import links, pageable_copy, peer_transfers
from traceprof.analyses.links.link_counters import (
    CounterUse,
    LinkCountersResult,
    LinkRates,
    link_rates,
)
from traceprof.analyses.links.link_findings import WAYS
from traceprof.analyses.links.link_usage import LinkUsageResult, LinkUse
from traceprof.errors import one_line
from traceprof.intervals import Int64, even_limits
from traceprof.run.opening import Window
from traceprof.trace.model.parts import Part
from traceprof.units import counted, size_text

PATH = "/links"
TITLE = "Links"

_MAX_ROWS = 6
_PIECES = 800
_MAX_RANKS = 64  # of the matrix
_MIN_SHARE = 0.01  # of the peak that a link reaches, to be drawn

_USES = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("way", "link and direction"),
    Column("source", "source", None, 120, "copies, or sampled counters of the GPU or the NIC"),
    Column("bytes", "bytes", 0, 140),
    Column(
        "busy_ns", "busy (ms)", 3, 120, "the union of the copies, or of the samples with traffic"
    ),
    Column("gb_per_s", "rate while busy (GB/s)", 3, 130),
    Column("peak_gb_per_s", "peak (GB/s)", 1, 110, "of the link in this direction"),
    Column("utilization", "of the peak (%)", 1, 120),
    Column("num_copies", "copies", 0, 100),
)
_COUNTERS = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("way", "link and direction"),
    Column("num_samples", "samples", 0, 100),
    Column("sample_ns", "period (µs)", 1, 110),
    Column("utilization", "mean of the peak (%)", 1, 130),
    Column("share_at_peak", "samples at the peak (%)", 1, 140, "with 90 % of it or more"),
    Column("utilization_in_communication", "while communicating (%)", 1, 150, "mean of the peak"),
    Column("num_idle_spikes", "samples left out", 0, 120, "idle NVLinks may read as if full"),
)


def layout(view: View) -> Component:
    """Return the page."""
    results = view.of(links)
    used: tuple[LinkUsageResult, ...] = tuple(result.copies for result in results)
    counted: tuple[LinkCountersResult, ...] = tuple(result.counters for result in results)
    lead = (
        "Rates come from the sizes and times of copies, and from sampled counters, which include"
        " NCCL's traffic. Peaks are of one direction; 1 GB = 1e9 bytes."
    )
    rows = [
        (result.rank, use) for source in (used, counted) for result in source for use in result.uses
    ]
    counters = [(result.rank, use) for result in counted for use in result.counters]
    return page(
        TITLE,
        lead,
        _rates(view, used),
        _peers(view, used),
        _listed("What each link carried", "link-uses", _USES, rows),
        _listed("Sampled counters", "link-counters", _COUNTERS, counters),
        missing(view.missing(*links.FINDINGS, *peer_transfers.FINDINGS, *pageable_copy.FINDINGS)),
    )


def _rates(view: View, used: Sequence[LinkUsageResult]) -> Component:
    title = "Rates over time"
    links: list[tuple[int, LinkRates, Int64]] = []
    num_idle = 0
    for number in (result.rank for result in used):
        rank = view.rank(number)
        start, end = view.window(number, rank.window.start_ns, rank.window.end_ns)
        pieces = even_limits(start, end, _PIECES)
        for rates in link_rates(rank, Window(start, end), pieces):
            if rates.direction == "d2d":  # takes no link; the table has it
                continue
            if rates.peak is not None and _most(rates) < _MIN_SHARE * rates.peak:
                num_idle += 1
                continue
            links.append((number, rates, pieces))
    if not links:
        why = "No link reached 1 % of its peak: the table says what each carried."
        how = "" if num_idle else view.analysis.run.how_to_collect(Part.LINK_COUNTERS)
        return card(
            title, nothing(why if num_idle else "No copy ran, and no counter was sampled.", how)
        )
    note = f"the mean filled, dotted while it was busy; {time_note(view.address)}"
    split = worst_first(links, lambda link: _share_of_peak(link[1]), _MAX_ROWS)
    worst = split.drawn
    if split.others:
        note += f"; the {len(worst)} of {len(links)} links that come closest to their peak"
    label = "the rate of each link over time against its peak, by rank and direction"
    chart = charts.plots("link-rates", _rates_over_time(worst, view.clock), label)
    idle = f"Not drawn, but in the table: {counted(num_idle, 'link')} below 1 % of the peak."
    below = html.P(idle, className="note") if num_idle else None
    return card(title, chart, below, note=note)


def _most(rates: LinkRates) -> float:
    return float(np.nanmax(rates.most, initial=0.0))


def _share_of_peak(rates: LinkRates) -> tuple[float, float]:
    """Return how close a link comes to its peak, and how much it carries on average."""
    mean = float(np.nanmean(rates.mean)) if len(rates.mean) else 0.0
    return (_most(rates) / rates.peak if rates.peak else 0.0), mean


def _peers(view: View, used: Sequence[LinkUsageResult]) -> Component:
    title = "Copies between GPUs"
    if not any(use.direction == "p2p" for result in used for use in result.uses):
        return card(
            title,
            nothing(
                "No copy from one GPU to another was recorded. What NCCL's kernels send is not"
                " recorded as copies; sampled counters of NVLink and PCIe show it."
            ),
        )
    shown = used[:_MAX_RANKS]
    chart = charts.plots(
        "peer-matrix",
        _peer_matrix(shown, [view.rank(result.rank).device for result in shown]),
        "how much each rank copied to or from each other device",
    )
    note = "both directions, from the copies of each rank"
    if len(used) > len(shown):
        note += f"; the first {len(shown)} of {len(used)} ranks: choose others above"
    return card(title, chart, note=note)


def _listed(
    title: str,
    name: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[int, LinkUse | CounterUse]],
) -> Component | None:
    entries = [
        record(
            columns,
            use,
            rank=rank,
            way=one_line(_way_text(use.link, use.direction, getattr(use, "peer", None), use.name)),
        )
        for rank, use in rows
    ]
    return card(title, table(name, columns, entries, f"{name}.csv")) if entries else None


_COLORS = {
    "h2d": charts.BLUE,
    "d2h": charts.ORANGE,
    "d2d": charts.PURPLE,
    "p2p": charts.COMMUNICATION,
    "rx": charts.BLUE,
    "tx": charts.ORANGE,
}


def _way_text(link: str | None, direction: str, peer: int | None, name: str | None) -> str:
    """Return the usual name of a link and direction: `PCIe, to the host`."""
    if direction == "p2p":
        return f"GPU {peer}, peer copies" if peer is not None else "peer copies"
    if direction == "d2d":
        return "within the device"
    what = {"nvlink": "NVLink", "pcie": "PCIe", "network": name or "network"}.get(
        link or "", "host"
    )
    return f"{what}, {WAYS[direction]}"


def _rates_over_time(links: Sequence[tuple[int, LinkRates, Int64]], clock: Clock) -> dict[str, Any]:
    """Return the rate of each link and direction of a rank over time, against the link's peak.

    With each stand the limits of its pieces of time, which are equally long.
    """
    rows = []
    for rank, rates, edges in links:
        start, end = clock.rank(rank).to_run(edges[[0, -1]]).tolist()
        way = _way_text(rates.link, rates.direction, rates.peer, rates.name)
        decimals = charts.decimals_for(max(rates.peak or 0.0, _most(rates)))
        assumed = ", by the GPU's name" if rates.is_peak_assumed else ""
        rows.append(
            {
                "title": one_line(f"rank {rank} · {way} · {rates.source}"),
                "unit": rates.unit,
                "color": _COLORS.get(rates.direction, charts.SKY),
                "start": start - clock.base_ns,
                "end": end - clock.base_ns,
                "mean": charts.rounded(rates.mean, decimals),
                "most": charts.rounded(rates.most, decimals),
                "most_name": "while copying" if rates.source == "copies" else "largest sample",
                "limit": rates.peak,
                "limit_text": f"peak {rates.peak:g} {rates.unit}{assumed}"
                if rates.peak is not None
                else None,
            }
        )
    return {"kind": "rates", "axis": clock.title, "base": str(clock.base_ns), "rows": rows}


def _peer_matrix(
    results: Sequence[LinkUsageResult], devices: Sequence[int | None]
) -> dict[str, Any]:
    """Return the bytes that each rank copied to or from each other device."""
    uses = [{use.peer: use for use in result.uses if use.direction == "p2p"} for result in results]
    known = {device for device in devices if device is not None}
    # Copies whose other side is not known have a column of their own, the last one.
    columns = sorted(known.union(*uses), key=lambda device: (device is None, device or 0))
    rows = []
    for result, device, by_peer in zip(results, devices, uses, strict=True):
        cells = [by_peer.get(column) for column in columns]
        name = f"rank {result.rank} ({device_text(device, None)})"
        rows.append(
            {
                "title": name,
                "name": name,
                "values": [use and use.bytes for use in cells],
                "texts": [use and size_text(use.bytes) for use in cells],
                "notes": [use and _copied(use) for use in cells],
            }
        )
    names = ["not known" if column is None else f"GPU {column}" for column in columns]
    return {
        "kind": "matrix",
        "axis": "the other device, as the rank counts them",
        "side": "",
        "color": charts.BLUE,
        "high": max((use.bytes for by_peer in uses for use in by_peer.values()), default=0) or 1,
        "between": "and",
        "columns": [{"title": name, "name": name} for name in names],
        "rows": rows,
    }


def _copied(use: LinkUse) -> str:
    rate = f"{use.gb_per_s:.2f} GB/s" if use.gb_per_s is not None else "no time"
    return f"{use.bytes:,} bytes in {counted(use.num_copies or 0, 'copy')}, {rate} while copying"
