"""Transfers between devices: copies that go through the host, and sends against copy engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.links.link_usage import is_staged, is_to_host
from traceprof.analyses.peer_transfers import peer_findings
from traceprof.analyses.peer_transfers.peer_findings import (
    NcclP2pSlowerThanCopyMetrics,
    PeerComparison,
    PeerCopyThroughHostMetrics,
    PeerTransfersResult,
    StagedCopies,
)
from traceprof.communication.messages import RECEIVES, SENDS, messages
from traceprof.findings import share
from traceprof.run.steady_steps import share_per_step
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from traceprof.findings import Finding, NotApplicable
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.operations import RankKey


REQUIRES: tuple[Part, ...] = (Part.GPU_OPERATIONS,)
READS: tuple[str, ...] = ()
FINDINGS = peer_findings.FINDINGS

_SEND_RECV = "SendRecv"
# Smaller ones pay latency, which differs between a kernel and a copy engine for other reasons.
MIN_BYTES = 1 << 20
PAGE = {**peer_findings.PAGE, "min_mib": str(MIN_BYTES >> 20)}


def run(rank: Rank, window: Window) -> PeerTransfersResult:
    """Add up the peer transfers that start in the window."""
    copies, kernels = rank.operations.copies, rank.operations.kernels
    inside = window.holds_start(copies.start_ns)
    ids = [key for key, name in rank.communication_operations.items() if name == _SEND_RECV]
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns) & kernels.are_named(ids))
    num_peer_copies = int((inside & rank.is_peer_copy).sum())
    sized = _sized(rank, chosen) if len(chosen) and num_peer_copies else _nothing_sized()
    lacks_memory = len(copies) and bool((copies.source_memory == _NULL).all())
    return PeerTransfersResult(
        rank=rank.rank,
        how_to_collect=rank.trace.how_to_collect,
        window_ns=window.length_ns,
        staged=_staged(rank, window, inside),
        comparisons=tuple(_comparisons(rank, window, sized, inside, len(chosen))),
        num_send_recv=len(chosen),
        num_sized=len(sized.kernel),
        num_peer_copies=num_peer_copies,
        memory_is_known=not lacks_memory,
    )


def findings(result: PeerTransfersResult) -> list[Finding | NotApplicable]:
    """Judge the measurements."""
    return peer_findings.findings(result)


_NULL = int(np.iinfo(np.int64).min)


# -- through the host -----------------------------------------------------------------------------


def _staged(rank: Rank, window: Window, inside: Mask) -> StagedCopies | None:
    """Pair the legs by the call that made them: they share its correlation id."""
    copies = rank.operations.copies
    indices = np.flatnonzero(inside & is_staged(copies))
    if len(indices) == 0:
        return None
    outward = is_to_host(copies)[indices]
    first, second = indices[outward], indices[~outward]
    starts, ends, ids = [copies.start_ns[first]], [copies.end_ns[first]], []
    sent, received = copies.correlation[first], copies.correlation[second]
    has_first = np.zeros(len(second), np.bool_)
    receivers = []
    for key, other in rank.operations_of_process:
        if key == rank.key:
            continue
        staged = is_staged(other.copies)
        to_host = is_to_host(other.copies)
        of_others = other.copies.correlation
        has_first |= is_in(received, of_others[staged & to_host])
        landing = np.flatnonzero(staged & ~to_host & is_in(of_others, sent))
        if len(landing):
            starts.append(other.copies.start_ns[landing])
            ends.append(other.copies.end_ns[landing])
            ids.append(of_others[landing])
            receivers.append(key)
    # A second leg without a first one in the report stands for its copy.
    orphans = second[~has_first]
    counted = np.concatenate((first, orphans))
    if len(counted) == 0:
        return None
    starts.append(copies.start_ns[orphans])
    ends.append(copies.end_ns[orphans])
    start, end = np.concatenate(starts), np.concatenate(ends)
    covered = intervals.union(start, end)
    of_copy = np.concatenate((sent, *ids, received[~has_first]))
    waiting = intervals.clip(_underway(of_copy, start, end), window.start_ns, window.end_ns)
    for key in receivers or [rank.key]:
        waiting = intervals.subtract(waiting, _compute(rank, key))
    paired = is_in(sent, np.concatenate(ids)) if ids else np.zeros(len(first), np.bool_)
    size = intervals.total(np.maximum(copies.bytes[counted], 0))
    metrics = PeerCopyThroughHostMetrics(
        bytes=size,
        gb_per_s=share(size, covered.measure_ns),
        num_copies=len(counted),
        busy_ns=covered.measure_ns,
        exposed_ns=waiting.measure_ns,
        coverage=int(paired.sum()) / len(counted),
    )
    evidence = peer_findings.longest(waiting, "copy through the host")
    return StagedCopies(metrics, evidence, share_per_step(rank, window, waiting))


def _underway(copy: Int64, start_ns: Int64, end_ns: Int64) -> Intervals:
    """Return when copies were underway, from the start of a first leg to the end of the last."""
    order = np.argsort(copy, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(copy[order]) != 0))
    return intervals.union(
        np.minimum.reduceat(start_ns[order], first), np.maximum.reduceat(end_ns[order], first)
    )


def _compute(rank: Rank, key: RankKey) -> Intervals:
    if key == rank.key:
        return rank.compute
    of_device = rank.trace.operations[key]
    kernels, graphs = of_device.kernels, of_device.graphs
    computes = ~kernels.are_named(rank.communication_operations)
    return intervals.union(
        np.concatenate((kernels.start_ns[computes], graphs.start_ns)),
        np.concatenate((kernels.end_ns[computes], graphs.end_ns)),
    )


# -- NCCL against copy engines --------------------------------------------------------------------


class _Sized(Record, frozen=True):
    """Kernels whose transfer is known: index, bytes, peer's device, whether it sends; [n] each."""

    kernel: Int64
    bytes: Int64
    peer: Int64
    sends: Mask


def _nothing_sized() -> _Sized:
    nothing = np.empty(0, np.int64)
    return _Sized(nothing, nothing, nothing, np.empty(0, np.bool_))


def _sized(rank: Rank, chosen: Int64) -> _Sized:
    """Return those of the kernels whose bytes and one-way peer are in the report."""
    sent, devices = messages(rank), _devices_by_rank(rank)
    numbers = np.array(sorted(devices), np.int64)
    usable = is_in(sent.kernel, chosen) & (sent.bytes > 0)
    usable &= is_in(sent.peer, numbers) & is_in(sent.direction, (SENDS, RECEIVES))
    ordinals = np.array([devices[number] for number in numbers.tolist()], np.int64)
    return _Sized(
        kernel=sent.kernel[usable],
        bytes=sent.bytes[usable],
        peer=ordinals[np.searchsorted(numbers, sent.peer[usable])],
        sends=sent.direction[usable] == SENDS,
    )


def _devices_by_rank(rank: Rank) -> dict[int, int]:
    """Return the device ordinals of the report's ranks, by number, if the numbers are certain.

    Ranks have the numbers that they have in this report alone.
    """
    trace = rank.trace
    keys = sorted(trace.operations, key=lambda key: (trace.pid(key.process), key))
    place = keys.index(rank.key)
    ranks = [trace.global_rank(key.process) for key in keys]
    numbers = {
        number if number is not None else rank.rank + index - place: key.device
        for index, (number, key) in enumerate(zip(ranks, keys, strict=True))
    }
    # If each rank sees one device, all as ordinal 0, it is not known where a copy went.
    return numbers if len(set(numbers.values())) == len(keys) else {}


def _comparisons(
    rank: Rank, window: Window, sized: _Sized, inside: Mask, num_send_recv: int
) -> list[PeerComparison]:
    copies, kernels = rank.operations.copies, rank.operations.kernels
    durations = kernels.length_ns
    transfers = []
    for peer in distinct_values(sized.peer).tolist():
        for sends in (True, False):
            big = (sized.bytes >= MIN_BYTES) & (durations[sized.kernel] > 0)
            some = (sized.peer == peer) & (sized.sends == sends) & big
            source, destination = (rank.key.device, peer) if sends else (peer, rank.key.device)
            way = np.flatnonzero(
                inside
                & (copies.source_device == source)
                & (copies.destination_device == destination)
                & (copies.bytes >= MIN_BYTES)
            )
            span = intervals.union(copies.start_ns[way], copies.end_ns[way])
            if not some.any() or not span.measure_ns:
                continue
            which, size = sized.kernel[some], sized.bytes[some]
            rates = np.sort(size / durations[which])
            covered = intervals.union(kernels.start_ns[which], kernels.end_ns[which])
            covered = intervals.clip(covered, window.start_ns, window.end_ns)
            exposed = intervals.subtract(covered, rank.compute)
            nccl_rate = float(rates[len(rates) * 9 // 10])
            copy_rate = intervals.total(copies.bytes[way]) / span.measure_ns
            metrics = NcclP2pSlowerThanCopyMetrics(
                nccl_gb_per_s=nccl_rate,
                copy_gb_per_s=copy_rate,
                ratio=copy_rate / nccl_rate,
                peer=peer,
                direction="send" if sends else "recv",
                nccl_bytes=intervals.total(size),
                num_operations=len(which),
                num_copies=len(way),
                exposed_ns=exposed.measure_ns,
                coverage=len(which) / num_send_recv,
            )
            evidence = peer_findings.longest(exposed, "ncclDevKernel_SendRecv")
            in_step = share_per_step(rank, window, exposed)
            transfers.append(PeerComparison(metrics, evidence, in_step))
    return transfers
