"""Findings about transfers between devices: thresholds, texts and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from traceprof import findings as f
from traceprof.analyses.shape.results import RankResult
from traceprof.structs import Record
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

if TYPE_CHECKING:
    from traceprof.intervals import Intervals
    from traceprof.trace.model.parts import HowToCollect

# NCCL's kernels pay for protocol and synchronization: up to a quarter is usual.
MIN_RATIO = 1.25


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


class StagedCopies(Record, frozen=True):
    """The copies that a rank's device sent to others by way of the host.

    They are the first legs, to the host, that start in the window; and second legs whose first is
    not in the report.
    """

    # the numbers of the finding. Where the receiver is not known, `exposed_ns` is the time in
    # which the sender computes nothing
    metrics: PeerCopyThroughHostMetrics
    evidence: tuple[f.Evidence, ...]  # the longest stretches of `exposed_ns`
    # the share of it that the mean steady step holds; None without steps
    share_per_step: float | None


class PeerComparison(Record, frozen=True):
    """NCCL's sends and receives against a copy engine between the same two devices."""

    # the numbers of the finding, of kernels and copies of at least 1 MiB. `nccl_gb_per_s` is of
    # the fastest tenth: a kernel that waits is no measure of the path
    metrics: NcclP2pSlowerThanCopyMetrics
    evidence: tuple[f.Evidence, ...]  # the longest stretches of `exposed_ns`
    # the share of it that the mean steady step holds; None without steps
    share_per_step: float | None


class PeerTransfersResult(RankResult, frozen=True):
    """Transfers of a rank to and from other devices."""

    window_ns: int  # the window's length
    staged: StagedCopies | None  # copies through the host; None if there are none
    # by peer and direction, where both NCCL and copies were used
    comparisons: tuple[PeerComparison, ...]
    num_send_recv: int  # NCCL's point-to-point kernels that start in the window
    num_sized: int  # those of them whose bytes and peer are in the report
    num_peer_copies: int  # copies to or from another device, of any size
    memory_is_known: bool  # whether the export has the kinds of memory of copies
    how_to_collect: HowToCollect  # how to record parts that the trace may lack


def longest(covered: Intervals, label: str) -> tuple[f.Evidence, ...]:
    """Return the longest intervals as evidence, longest first."""
    return tuple(f.Evidence(start, end, label) for start, end in covered.longest(f.MAX_EVIDENCE))


def findings(result: PeerTransfersResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the transfers of a rank."""
    judged: list[f.Finding | f.NotApplicable | None] = [
        _through_host(result),
        _without_memory(result),
    ]
    worst = [_slower(result, comparison) for comparison in result.comparisons]
    claims = [claim for claim in worst if claim is not None]
    judged += sorted(claims, key=lambda claim: -claim.impact_ns)[:1]
    if not result.comparisons:
        judged.append(_not_compared(result))
    return [claim for claim in judged if claim is not None]


def _through_host(result: PeerTransfersResult) -> f.Finding | None:
    staged = result.staged
    if staged is None:
        return None
    metrics = staged.metrics
    fraction = metrics.exposed_ns / result.window_ns if result.window_ns else 0.0
    severity = f.severity_of_cost(fraction)
    if severity is None:
        return None
    title = (
        f"{counted(metrics.num_copies, 'copy')} to other GPUs went through host memory, at"
        f" {metrics.gb_per_s:.1f} GB/s; meanwhile the receiver computes nothing for"
        f" {duration(metrics.exposed_ns)}"
    )
    return f.Finding(
        "peer-copy-through-host",
        severity,
        result.rank,
        title,
        metrics.exposed_ns,
        fraction,
        metrics.by_name(),
        staged.evidence,
        _HOST_ADVICE,
        f.Saving.of_step(metrics.exposed_ns, staged.share_per_step),
    )


def _without_memory(result: PeerTransfersResult) -> f.NotApplicable | None:
    if result.memory_is_known:
        return None
    return f.NotApplicable(
        "peer-copy-through-host",
        "the export does not show the kinds of memory of copies",
        result.how_to_collect(Part.COPY_MEMORY),
        result.rank,
    )


def _slower(result: PeerTransfersResult, comparison: PeerComparison) -> f.Finding | None:
    metrics = comparison.metrics
    fraction = metrics.exposed_ns / result.window_ns if result.window_ns else 0.0
    severity = f.severity_of_cost(fraction)
    if severity is None or metrics.ratio < MIN_RATIO:
        return None
    way = "to" if metrics.direction == "send" else "from"
    title = (
        f"NCCL moves {metrics.nccl_gb_per_s:.1f} GB/s {way} device {metrics.peer}, a copy engine"
        f" {metrics.copy_gb_per_s:.1f} GB/s; {duration(metrics.exposed_ns)} of NCCL's transfers is"
        " not hidden"
    )
    return f.Finding(
        "nccl-p2p-slower-than-copy",
        severity,
        result.rank,
        title,
        metrics.exposed_ns,
        fraction,
        metrics.by_name(),
        comparison.evidence,
        _SLOWER_ADVICE,
        f.Saving.of_step(metrics.exposed_ns, comparison.share_per_step),
    )


def _not_compared(result: PeerTransfersResult) -> f.NotApplicable | None:
    if not result.num_send_recv:
        return None
    if not result.num_peer_copies:
        reason = "no copy between devices to compare NCCL's sends and receives with"
        how = "measure the pairs of GPUs with nvbandwidth or CUDA's p2pBandwidthLatencyTest"
    elif not result.num_sized:
        reason = "the bytes and peers of NCCL's sends and receives are not in this export"
        how = (
            f"{result.how_to_collect(Part.RANGES)} python -m instrument …, which names every call"
            " with its bytes and its peer"
        )
    else:
        reason = "no send or receive of 1 MiB or more goes the same way as a copy of that size"
        how = "measure the pairs of GPUs with nvbandwidth or CUDA's p2pBandwidthLatencyTest"
    return f.NotApplicable("nccl-p2p-slower-than-copy", reason, how, result.rank)


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
        "If it must go through the host: split the tensor and send the parts in turn on two"
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
PAGE = {"host_advice": f.bullets(_HOST_ADVICE), "slower_advice": f.bullets(_SLOWER_ADVICE)}
