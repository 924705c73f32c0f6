"""Findings about transfers between devices: thresholds, texts and advice."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.links.link_usage import is_staged, is_to_host
from traceprof.analyses.results import CostResult, RankResult, facts_of
from traceprof.communication.messages import RECEIVES, SENDS, messages
from traceprof.findings import share
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.special_values import NULL
from traceprof.units import counted, duration

# NCCL's kernels pay for protocol and synchronization: up to a quarter is usual.
MIN_RATIO = 1.25
# Smaller ones pay latency, which differs between a kernel and a copy engine for other reasons.
MIN_BYTES = 1 << 20


class PeerCopyThroughHostMetrics(f.Metrics):
    """Numbers of `peer-copy-through-host`."""

    bytes: Annotated[f.Count, "bytes sent, each counted once"]
    gb_per_s: Annotated[f.Number, "`bytes` divided by `busy_ns`"]
    num_copies: Annotated[f.Count, "the number of copies"]
    busy_ns: Annotated[f.Ns, "the time in which either leg ran"]
    exposed_ns: Annotated[
        f.Ns,
        "how long the receiving GPU computes nothing between the start of a"
        " copy's first leg and the end of its second: the impact",
    ]
    coverage: Annotated[f.Fraction, "the share of the copies with both legs in the report"]


class NcclP2pSlowerThanCopyMetrics(f.Metrics):
    """Numbers of `nccl-p2p-slower-than-copy`."""

    nccl_gb_per_s: Annotated[f.Number, "the rate of NCCL"]
    copy_gb_per_s: Annotated[f.Number, "the rate of the copy engine"]
    ratio: Annotated[
        f.Number, f"the second rate divided by the first; at least {MIN_RATIO} for a finding"
    ]
    peer: Annotated[int, "the other device's ordinal"]
    direction: Annotated[str, f.one_of("send", "recv"), "`send` or `recv`"]
    nccl_bytes: Annotated[f.Count, "bytes that NCCL carried"]
    num_operations: Annotated[f.Count, "the number of NCCL kernels that carried them"]
    num_copies: Annotated[f.Count, "the number of copies that they are compared with"]
    exposed_ns: Annotated[f.Ns, "the part of the kernels' time that no compute hides: the impact"]
    coverage: Annotated[f.Fraction, "the share of NCCL's point-to-point kernels that were compared"]


FINDINGS = {
    "peer-copy-through-host": f.FindingKind(PeerCopyThroughHostMetrics, needs=f.Sight.OPERATIONS),
    "nccl-p2p-slower-than-copy": f.FindingKind(
        NcclP2pSlowerThanCopyMetrics, part_of="exposed-communication", needs=f.Sight.COMMUNICATION
    ),
}


class StagedCopies(CostResult, frozen=True):
    """Copies of a rank to another device through the host."""

    metrics: PeerCopyThroughHostMetrics  # the numbers of their finding


class ComparedTransfers(CostResult, frozen=True):
    """Transfers of a rank to or from another device, both by NCCL and by copies."""

    metrics: NcclP2pSlowerThanCopyMetrics  # the numbers of their finding


class PeerTransfersResult(RankResult, frozen=True):
    """Transfers of a rank to and from other devices."""

    # copies through the host whose first leg starts in the window; None if there are none. Where
    # the receiver is not known, `exposed_ns` is the time in which the sender computes nothing
    staged: StagedCopies | None
    # by peer and direction, where both NCCL and copies were used, of at least 1 MiB.
    # `nccl_gb_per_s` is of the fastest tenth: a kernel that waits is no measure of the path
    comparisons: tuple[ComparedTransfers, ...]
    num_send_recv: int  # NCCL's point-to-point kernels that start in the window
    num_sized: int  # those of them whose bytes and peer are in the report
    num_peer_copies: int  # copies to or from another device, of any size
    memory_is_known: bool  # whether the export has the kinds of memory of copies
    how_to_collect: HowToCollect  # how to record parts that the trace may lack


def findings(result: PeerTransfersResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the transfers of a rank."""
    judged: list[f.Finding | f.NotApplicable] = []
    if result.staged is not None:
        staged = result.staged.metrics
        title = (
            f"{counted(staged.num_copies, 'copy')} to other GPUs went through host memory, at"
            f" {staged.gb_per_s:.1f} GB/s; meanwhile the receiver computes nothing for"
            f" {duration(staged.exposed_ns)}"
        )
        id_ = "peer-copy-through-host"
        judged += result.staged.finding(id_, title, staged.exposed_ns, staged, _HOST_ADVICE)
    if not result.memory_is_known:
        why = "the export does not show the kinds of memory of copies"
        how = result.how_to_collect(Part.COPY_MEMORY)
        judged.append(f.NotApplicable("peer-copy-through-host", why, how, result.rank))
    if not result.comparisons:
        return [*judged, *_not_compared(result)]
    slower = [one for one in result.comparisons if one.metrics.ratio >= MIN_RATIO]
    slowest = max(slower, key=lambda one: one.metrics.exposed_ns, default=None)
    if slowest is None:
        return judged
    metrics = slowest.metrics
    way = "to" if metrics.direction == "send" else "from"
    title = (
        f"NCCL moves {metrics.nccl_gb_per_s:.1f} GB/s {way} device {metrics.peer}, a copy engine"
        f" {metrics.copy_gb_per_s:.1f} GB/s; {duration(metrics.exposed_ns)} of NCCL's transfers is"
        " not hidden"
    )
    id_ = "nccl-p2p-slower-than-copy"
    return [*judged, *slowest.finding(id_, title, metrics.exposed_ns, metrics, _SLOWER_ADVICE)]


def _not_compared(result: PeerTransfersResult) -> list[f.NotApplicable]:
    if not result.num_send_recv:
        return []
    how = "measure the pairs of GPUs with nvbandwidth or CUDA's p2pBandwidthLatencyTest"
    if not result.num_peer_copies:
        reason = "no copy between devices to compare NCCL's sends and receives with"
    elif not result.num_sized:
        reason = "the bytes and peers of NCCL's sends and receives are not in this export"
        how = (
            f"{result.how_to_collect(Part.RANGES)} python -m instrument …, which names every call"
            " with its bytes and its peer"
        )
    else:
        reason = "no send or receive of 1 MiB or more goes the same way as a copy of that size"
    return [f.NotApplicable("nccl-p2p-slower-than-copy", reason, how, result.rank)]


_HOST_ADVICE = (
    (
        "Check whether the GPUs can access each other: `nvidia-smi topo -p2p rw`, and"
        " torch.cuda.can_device_access_peer(0, 1); PyTorch enables access by itself where it is"
        " possible"
    ),
    (
        "On servers turn PCIe ACS and the IOMMU off (bare metal), or put the two GPUs under one"
        " switch: both keep peers apart"
    ),
    (
        "GeForce boards have no peer access over PCIe: exchange over an NVLink bridge (`nvidia-smi"
        " topo -m` shows NV#), and put the stages that communicate most on bridged pairs"
    ),
    (
        "If it must go through the host: split the tensor and send the parts alternately on two"
        " streams, so that the legs of one overlap those of the next"
    ),
)
_SLOWER_ADVICE = (
    (
        "Within one machine, send by copy engine instead: tensor.copy_(…, non_blocking=True) to the"
        " peer's memory (one process with several GPUs, CUDA IPC, or"
        " torch.distributed._symmetric_memory from PyTorch 2.5 on) also leaves the SMs to compute"
    ),
    (
        "Find out why: NCCL_DEBUG=INFO says P2P or SHM for each channel; SHM goes through host"
        " memory with kernels on both sides. Allow P2P with NCCL_P2P_LEVEL=SYS (or PHB) where the"
        " GPUs may reach each other (`nvidia-smi topo -p2p rw`)"
    ),
    "Have NCCL use the copy engines: NCCL_P2P_USE_CUDA_MEMCPY=1 (undocumented; measure it)",
    (
        "Give neighbouring stages GPUs with NVLink between them (`nvidia-smi topo -m`): reorder"
        " ranks or CUDA_VISIBLE_DEVICES"
    ),
)
PAGE = {
    "host_advice": f.bullets(_HOST_ADVICE),
    "slower_advice": f.bullets(_SLOWER_ADVICE),
    "min_mib": str(MIN_BYTES >> 20),
}


_SEND_RECV = "SendRecv"


def run(rank: Rank, window: Window) -> PeerTransfersResult:
    """Add up the peer transfers that start in the window."""
    copies, kernels = rank.operations.copies, rank.operations.kernels
    inside = window.holds_start(copies.start_ns)
    ids = [key for key, name in rank.communication_operations.items() if name == _SEND_RECV]
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns) & kernels.are_named(ids))
    num_peer_copies = int((inside & rank.is_peer_copy).sum())
    sized = _sized(rank, chosen)
    lacks_memory = len(copies) and bool((copies.source_memory == NULL).all())
    return PeerTransfersResult(
        rank=rank.rank,
        how_to_collect=rank.trace.how_to_collect,
        staged=_staged(rank, window, inside),
        comparisons=tuple(_comparisons(rank, window, sized, inside, len(chosen))),
        num_send_recv=len(chosen),
        num_sized=len(sized.kernel),
        num_peer_copies=num_peer_copies,
        memory_is_known=not lacks_memory,
    )


def _evidence(exposed: Intervals, label: str) -> tuple[f.Evidence, ...]:
    return tuple(f.Evidence(*span, label) for span in exposed.longest(f.MAX_EVIDENCE))


def _staged(rank: Rank, window: Window, inside: Mask) -> StagedCopies | None:
    """Pair the legs by the call that made them: they share its correlation id."""
    copies = rank.operations.copies
    first = np.flatnonzero(inside & is_staged(copies) & is_to_host(copies))
    if len(first) == 0:
        return None
    sent, receivers = copies.correlation[first], []
    starts, ends, ids = [copies.start_ns[first]], [copies.end_ns[first]], [sent]
    for key, operations in rank.operations_of_process:
        of = operations.copies
        landing = np.flatnonzero(is_staged(of) & ~is_to_host(of) & is_in(of.correlation, sent))
        if key != rank.key and len(landing):
            starts.append(of.start_ns[landing])
            ends.append(of.end_ns[landing])
            ids.append(of.correlation[landing])
            receivers.append(key)
    start, end = np.concatenate(starts), np.concatenate(ends)
    covered = intervals.union(start, end)
    waiting = window.clip(_underway(np.concatenate(ids), start, end))
    for key in receivers or [rank.key]:
        waiting = intervals.subtract(waiting, _compute(rank, key))
    size = intervals.total(np.maximum(copies.bytes[first], 0))
    metrics = PeerCopyThroughHostMetrics(
        bytes=size,
        gb_per_s=share(size, covered.measure_ns),
        num_copies=len(first),
        busy_ns=covered.measure_ns,
        exposed_ns=waiting.measure_ns,
        coverage=float(is_in(sent, np.concatenate([sent[:0], *ids[1:]])).mean()),
    )
    evidence = _evidence(waiting, "copy through the host")
    return StagedCopies(**facts_of(rank, window, waiting), metrics=metrics, evidence=evidence)


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


class _Sized(Record, frozen=True):
    """Kernels whose transfer is known: index, bytes, peer's device, whether it sends; [n] each."""

    kernel: Int64
    bytes: Int64
    peer: Int64
    sends: Mask


def _sized(rank: Rank, chosen: Int64) -> _Sized:
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
) -> list[ComparedTransfers]:
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
            exposed = intervals.subtract(window.clip(covered), rank.compute)
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
            evidence = _evidence(exposed, "ncclDevKernel_SendRecv")
            facts = facts_of(rank, window, exposed)
            transfers.append(ComparedTransfers(**facts, metrics=metrics, evidence=evidence))
    return transfers
