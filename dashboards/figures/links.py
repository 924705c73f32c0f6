"""Links: the rate of each over time with its peak, and the copies between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.view import device_text
from dashboards.widgets.palette import BLUE, COMMUNICATION, ORANGE, PURPLE, SKY
from dashboards.widgets.plots import decimals_for, rounded
from traceprof.errors import one_line
from traceprof.units import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.time_axis import Clock
    from traceprof.analyses.links.link_rates import LinkRates
    from traceprof.analyses.links.link_usage import LinkUsageResult, LinkUse
    from traceprof.intervals import Int64

_COLORS = {
    "h2d": BLUE, "d2h": ORANGE, "d2d": PURPLE, "p2p": COMMUNICATION, "rx": BLUE, "tx": ORANGE,
}  # fmt: skip


def way_text(link: str | None, direction: str, peer: int | None, name: str | None) -> str:
    """Return the usual name of a link and direction: `PCIe, to the host`."""
    if direction == "p2p":
        return f"GPU {peer}, peer copies" if peer is not None else "peer copies"
    if direction == "d2d":
        return "within the device"
    what = {"nvlink": "NVLink", "pcie": "PCIe", "network": name or "network"}.get(
        link or "", "host"
    )
    return f"{what}, {_SIDES[direction]}"


_SIDES = {"h2d": "from the host", "d2h": "to the host", "tx": "sent", "rx": "received"}


def rates_over_time(
    links: Sequence[tuple[int, LinkRates]], limits: Sequence[Int64], clock: Clock
) -> dict[str, Any]:
    """Return the rate of each link and direction, a row for each, and the link's peak.

    Args:
        links: each with the number of its rank.
        limits: of the pieces of each, m + 1 for m rates, which are equally long, in the rank's
            report.
        clock: of the run.
    """
    rows = []
    for (rank, rates), edges in zip(links, limits, strict=True):
        start, end = clock.rank(rank).to_run(edges[[0, -1]]).tolist()
        way = way_text(rates.link, rates.direction, rates.peer, rates.name)
        top = max(rates.peak or 0.0, float(np.nanmax(rates.most, initial=0.0)))
        decimals = decimals_for(top)
        assumed = ", by the GPU's name" if rates.is_peak_assumed else ""
        rows.append(
            {
                "title": one_line(f"rank {rank} · {way} · {rates.source}"),
                "unit": rates.unit,
                "color": _COLORS.get(rates.direction, SKY),
                "start": start - clock.base_ns,
                "end": end - clock.base_ns,
                "mean": rounded(rates.mean, decimals),
                "most": rounded(rates.most, decimals),
                "most_name": "while copying" if rates.source == "copies" else "largest sample",
                "limit": rates.peak,
                "limit_text": f"peak {rates.peak:g} {rates.unit}{assumed}"
                if rates.peak is not None
                else None,
            }
        )
    return {"kind": "rates", "axis": clock.title, "base": str(clock.base_ns), "rows": rows}


def peer_matrix(
    results: Sequence[LinkUsageResult], devices: Sequence[int | None]
) -> dict[str, Any]:
    """Return the bytes that each rank copied to or from each other device."""
    uses = [{use.peer: use for use in result.uses if use.direction == "p2p"} for result in results]
    known = {device for device in devices if device is not None}
    peers = sorted(
        known | {peer for peers_of_rank in uses for peer in peers_of_rank if peer is not None}
    )
    # Copies whose other side is not known have a column of their own.
    columns: list[int | None] = [
        *peers,
        *([None] if any(None in by_peer for by_peer in uses) else []),
    ]
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
                "notes": [use and _copies_text(use) for use in cells],
            }
        )
    names = ["not known" if column is None else f"GPU {column}" for column in columns]
    return {
        "kind": "matrix",
        "axis": "the other device, as the rank counts them",
        "side": "",
        "color": BLUE,
        "high": max((use.bytes for by_peer in uses for use in by_peer.values()), default=0) or 1,
        "between": "and",
        "columns": [{"title": name, "name": name} for name in names],
        "rows": rows,
    }


def _copies_text(use: LinkUse) -> str:
    rate = f"{use.gb_per_s:.2f} GB/s" if use.gb_per_s is not None else "no time"
    return f"{use.bytes:,} bytes in {counted(use.num_copies or 0, 'copy')}, {rate} while copying"
