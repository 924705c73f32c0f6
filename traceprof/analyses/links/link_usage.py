"""Traffic of memory copies: bytes, busy time and share of the peak, by direction and peer."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.links import link_findings
from traceprof.analyses.links.link_findings import LinkMetrics, Load
from traceprof.analyses.results import RankResult
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import DEVICE_MEMORY, CopyKind, MemoryKind
from traceprof.trace.model.operations import Copies, RankKey

_KINDS_BY_DIRECTION = {
    direction: np.array([kind for kind in CopyKind if kind.direction == direction], np.int64)
    for direction in ("h2d", "d2h", "d2d")
}


def copies_by_direction(rank: Rank, inside: Mask) -> dict[str, Int64]:
    """Return indices of copies by direction, `h2d`, `d2h`, `d2d`; no empty one, no peer copy."""
    kinds = rank.operations.copies.kind
    chosen = {
        direction: np.flatnonzero(inside & ~rank.is_peer_copy & is_in(kinds, of_direction))
        for direction, of_direction in _KINDS_BY_DIRECTION.items()
    }
    return {direction: path for direction, path in chosen.items() if len(path)}


def exposed_copies(rank: Rank, chosen: Int64, window: Window) -> Intervals:
    """Return when these copies ran in the window and no kernel did, nor another communication."""
    copies = rank.operations.copies
    covered = window.clip(intervals.union(copies.start_ns[chosen], copies.end_ns[chosen]))
    return intervals.subtract(intervals.subtract(covered, rank.compute), rank.communication)


def is_device_memory(memory: Int64) -> Mask:
    """Return which kinds of memory are the GPU's own, bool[n]."""
    return is_in(memory, np.array(DEVICE_MEMORY, np.int64))


def is_staged(copies: Copies) -> Mask:
    """Return which copies are a leg, to or from the host, of a copy between two devices.

    The trace says device on both sides of such a copy; only its kind shows the direction.
    """
    over_host = is_in(copies.kind, _KINDS_BY_DIRECTION["h2d"])
    over_host |= is_to_host(copies)
    staged: Mask = over_host & is_device_memory(copies.source_memory)
    return staged & is_device_memory(copies.destination_memory)


def is_to_host(copies: Copies) -> Mask:
    """Return which copies go to the host, bool[copies]."""
    return is_in(copies.kind, _KINDS_BY_DIRECTION["d2h"])


Link = Annotated[str, f.one_of("nvlink", "pcie", "network")]
Direction = Annotated[str, f.one_of("h2d", "d2h", "d2d", "p2p", "tx", "rx")]
Source = Annotated[str, f.one_of("copies", "gpu-metrics", "nic-metrics")]
# Boards whose host link is NVLink-C2C; every other GPU reaches the host over PCIe.
_C2C_BOARDS = ("GH200", "GB200", "GB300")
_OVER_HOST = ("h2d", "d2h")
# Below, latency weighs: a copy takes some 10 µs to begin, 4 MiB over PCIe 4 about 160 µs.
MIN_BIG_BYTES = 4 << 20


class LinkUse(Struct, frozen=True):
    """The traffic of one link in one direction."""

    link: Annotated[
        Link | None,
        "The kind of link; null where the path is not known (for peer copies, only `doctor`"
        " knows it), and for copies within the device.",
    ]
    direction: Annotated[Direction, "Direction: `tx` and `rx` for counters, the others for copies."]
    peer: Annotated[int | None, "Ordinal of the other device, for p2p."]
    bytes: Annotated[
        f.Count, "Bytes of the copies that start in the window, or by the samples in the window."
    ]
    busy_ns: Annotated[f.Count, "Time covered by these copies, or by the samples that saw traffic."]
    num_copies: Annotated[f.Count | None, "Number of copies; null for counters."] = None
    peak_gb_per_s: Annotated[f.Positive | None, "Peak rate in this direction; null if unknown."] = (
        None
    )
    is_peak_assumed: Annotated[bool, "True if the peak was derived from the GPU's name alone."] = (
        False
    )
    source: Source = "copies"
    name: Annotated[str | None, "Name of the NIC, for network."] = None
    peer_gpu_id: Annotated[
        str | None, "The other GPU's uuid, else its place on the bus, for p2p."
    ] = None

    @property
    def gb_per_s(self) -> float | None:
        """Bytes over busy time, in 1e9 bytes per second; None if no time passed."""
        return self.bytes / self.busy_ns if self.busy_ns else None

    @property
    def utilization(self) -> float | None:
        """The rate as a share of the peak; None if either is not known."""
        if self.gb_per_s is None or self.peak_gb_per_s is None:
            return None
        return self.gb_per_s / self.peak_gb_per_s


class LinkUsageResult(RankResult, frozen=True):
    """The copies of one rank, by direction and peer."""

    uses: tuple[LinkUse, ...]  # the traffic of each direction and peer
    # all copies of a direction while nothing hides them, if the peak is known
    loads: tuple[Load, ...] = ()
    # the large ones from and to pinned memory, if the peak is known
    big_loads: tuple[Load, ...] = ()
    unknown_peak_ns: int = 0  # exposed copies over a link whose peak is not known
    gpu: str | None = None  # the GPU's name


def run(rank: Rank, window: Window) -> LinkUsageResult:
    """Add up the copies that start in the window."""
    copies = rank.operations.copies
    inside = window.holds_start(copies.start_ns)
    by_way = copies_by_way(rank, inside)
    uses = [_use(rank, chosen, direction, peer) for (direction, peer), chosen in by_way.items()]
    over_host = {way: chosen for (way, _), chosen in by_way.items() if way in _OVER_HOST}
    loads, big_loads, unknown_ns = [], [], 0
    for direction, chosen in over_host.items():
        exposed_ns = exposed_copies(rank, chosen, window).measure_ns
        if f.severity_of_cost(f.share(exposed_ns, window.length_ns)) is None:
            continue  # nobody waits, so that a slow link costs nothing
        if link_of(rank, direction) is None:
            continue
        if rank.peaks.pcie is None:
            unknown_ns += exposed_ns
            continue
        loads.append(_load(rank, window, direction, chosen, len(chosen)))
        big = chosen[_is_big_and_pinned(rank, chosen, direction)]
        if len(big):
            big_loads.append(_load(rank, window, direction, big, len(chosen)))
    return LinkUsageResult(
        rank=rank.rank,
        uses=tuple(uses),
        loads=tuple(load for load in loads if load),
        big_loads=tuple(load for load in big_loads if load),
        unknown_peak_ns=unknown_ns,
        gpu=rank.gpu,
    )


def copies_by_way(rank: Rank, inside: Mask) -> dict[tuple[str, int | None], Int64]:
    """Return the indices of copies by direction and peer, as `LinkUse` has them."""
    copies = rank.operations.copies
    ways: dict[tuple[str, int | None], Int64] = {
        (direction, None): chosen for direction, chosen in copies_by_direction(rank, inside).items()
    }
    peers = np.where(
        copies.source_device == rank.device, copies.destination_device, copies.source_device
    )
    peers = np.where(peers == rank.device, -1, np.maximum(peers, -1))  # not known
    for peer in distinct_values(peers[inside & rank.is_peer_copy]).tolist():
        chosen = np.flatnonzero(inside & rank.is_peer_copy & (peers == peer))
        ways["p2p", peer if peer >= 0 else None] = chosen
    return ways


def link_of(rank: Rank, direction: str, peer: int | None = None) -> str | None:
    """Return the link that copies of a direction take, None if that is unknown."""
    if direction == "p2p":
        known = None if peer is None else rank.links.peers.get(peer)
        return None if known is None else known.link
    is_over_c2c = any(board in (rank.gpu or "") for board in _C2C_BOARDS)
    return "pcie" if direction in _OVER_HOST and not is_over_c2c else None


def findings(result: LinkUsageResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the rates against the peaks, where work waits for the link."""
    claims = [claim for load in result.loads for claim in link_findings.saturated(load)]
    for load in result.big_loads:
        claims += link_findings.underused(load)
    if result.unknown_peak_ns:
        gpu = result.gpu or "a GPU that the export does not name"
        claims += [
            f.NotApplicable(
                id_,
                f"the peak over PCIe of {gpu} is unknown, so its copies cannot be judged",
                "give the rate: --link-peak pcie=31.5 (GB/s, one direction)",
                result.rank,
            )
            for id_ in link_findings.FINDINGS
        ]
    return claims


def _use(rank: Rank, chosen: Int64, direction: str, peer: int | None) -> LinkUse:
    copies = rank.operations.copies
    link = link_of(rank, direction, peer)
    return LinkUse(
        link=link,
        direction=direction,
        peer=peer,
        bytes=intervals.total(np.maximum(copies.bytes[chosen], 0)),
        busy_ns=intervals.union(copies.start_ns[chosen], copies.end_ns[chosen]).measure_ns,
        num_copies=len(chosen),
        peak_gb_per_s=peak_of(rank, direction, peer),
        is_peak_assumed=direction != "p2p" and rank.peaks.is_assumed(link),
        peer_gpu_id=None if peer is None else rank.trace.gpu_id(RankKey(rank.process, peer)),
    )


def peak_of(rank: Rank, direction: str, peer: int | None) -> float | None:
    """Return the peak of the link that copies of a direction take, GB/s; None if unknown."""
    if direction == "p2p":  # of those NVLinks that lead to this very peer
        known = None if peer is None else rank.links.peers.get(peer)
        return None if known is None else known.peak_gb_per_s
    return rank.peaks.of(link_of(rank, direction))


def peaks_by_scope(rank: Rank) -> dict[str, float | None]:
    """Return the peak between GPUs of one machine, and of several, GB/s; None if not known."""
    # A ring goes over all of them.
    is_nvlink = rank.peaks.nvlink is not None and rank.links.is_all_nvlink is not False
    return {
        "intra-node": rank.peaks.nvlink if is_nvlink else rank.peaks.pcie,
        "inter-node": rank.peaks.network,
    }


def _load(
    rank: Rank, window: Window, direction: str, chosen: Int64, num_copies: int
) -> Load | None:
    exposed, use = exposed_copies(rank, chosen, window), _use(rank, chosen, direction, None)
    if use.gb_per_s is None or use.peak_gb_per_s is None:
        return None
    metrics = LinkMetrics(
        link="pcie",
        direction=direction,
        peer=None,
        gb_per_s=use.gb_per_s,
        peak_gb_per_s=use.peak_gb_per_s,
        utilization=use.gb_per_s / use.peak_gb_per_s,
        source="copies",
        is_peak_assumed=use.is_peak_assumed,
        exposed_ns=exposed.measure_ns,
        bytes=use.bytes,
        busy_ns=use.busy_ns,
        num_copies=len(chosen),
        coverage=len(chosen) / num_copies,
    )
    return Load.of(rank, window, exposed, "copies", metrics)


def _is_big_and_pinned(rank: Rank, chosen: Int64, direction: str) -> Mask:
    copies = rank.operations.copies
    source, destination = copies.source_memory[chosen], copies.destination_memory[chosen]
    host, device = (source, destination) if direction == "h2d" else (destination, source)
    judged: Mask = (host == MemoryKind.PINNED) & is_device_memory(device)
    return judged & (copies.bytes[chosen] >= MIN_BIG_BYTES)
