"""Communication kernels by operation and communicator: how many, how long, how much, how fast.

Rates of one rank alone are lower bounds: a kernel runs from its rank's arrival to the end, so that
its duration holds the time it waited for the others as well as the transfer. Where the other ranks
are there to be compared, `refined` puts the rates of the transfers in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, structs
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.links.link_usage import peaks_by_scope
from traceprof.analyses.remedies import MERGE
from traceprof.analyses.results import CostResult, facts_of
from traceprof.communication.messages import (
    DISTINCT_SIZES,
    LARGE_BYTES,
    MAX_LATENCY_NS,
    ONE_SIDED,
    SMALL_BYTES,
    Messages,
    SmallMessages,
    messages,
    small_messages,
)
from traceprof.host.idle_causes import around_ns
from traceprof.intervals import Int64, Intervals
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.waits import counted_bytes, rate
from traceprof.run.cpu_rank import CpuOperations
from traceprof.run.rank import CpuRank, Rank, Window
from traceprof.run.steady_steps import only_step
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.trace.model.communication_calls import CallLabel
from traceprof.trace.model.parts import Part
from traceprof.trace.model.special_values import UNKNOWN
from traceprof.units import counted, duration, size_text

ID = "small-collectives"


class SmallCollectivesMetrics(f.Metrics):
    """Numbers of `small-collectives`."""

    num_operations: Annotated[f.Count, "kernels that spend at least half of their time on latency"]
    median_bytes: Annotated[f.Number, "their median size, as NCCL counts messages"]
    latency_share: Annotated[
        f.Fraction,
        "the latency of all messages of known size as a share of their own time without waiting",
    ]
    coverage: Annotated[f.Fraction, "the share of communication kernels whose size is known"]


FINDINGS = {
    ID: f.FindingKind(
        SmallCollectivesMetrics, part_of="exposed-communication", needs=f.Sight.COMMUNICATION
    )
}

# Fewer are not worth merging.
MIN_OPERATIONS = 20


Scope = Annotated[str, f.one_of("intra-node", "inter-node")]


class OperationUse(Struct, frozen=True):
    """The communication of one kind on one communicator of a rank.

    Kernels; of a rank without a GPU, the operations in its labels (see `process_groups`).
    """

    operation: Annotated[f.Text, "Operation, by the kernel's name; send and receive share one."]
    communicator: Annotated[
        str | None, "NCCL's id, equal on all ranks; if unknown, PyTorch's group."
    ]
    peer: Annotated[
        f.Count | None,
        "The other rank (in the world) of sends and receives; null if unknown or several.",
    ]
    count: Annotated[f.Count, "Kernels that start in the window."]
    bytes: Annotated[
        f.Count | None,
        "Sum of the message sizes, as NCCL counts them (what one rank sends in an AllGather,"
        " receives in a ReduceScatter); null unless all sizes are known.",
    ]
    total_ns: Annotated[
        f.Count,
        "Sum of the durations of the kernels (without a GPU, of the operations), including time"
        " spent waiting for other ranks.",
    ]
    median_ns: Annotated[f.Count, "Median of the durations."]
    algbw_gb_per_s: Annotated[
        f.Number | None,
        "Algorithm bandwidth as in nccl-tests: bytes divided by durations, for kernels of known"
        " size; null if no size is known.",
    ]
    busbw_gb_per_s: Annotated[
        f.Number | None,
        "Bus bandwidth as in nccl-tests: `algbw_gb_per_s` times a factor for the operation and"
        " the number of ranks; comparable with a link's peak in one direction.",
    ]
    peak_gb_per_s: Annotated[
        f.Positive | None,
        "Peak rate in one direction: on one machine of NVLink, or else PCIe, by the GPU's name;"
        " between machines the user's rate; null if it or the machines are unknown.",
    ]
    is_lower_bound: Annotated[
        bool,
        "True if the rates are based on durations, which include waiting for other ranks; false"
        " if they are based on the time in which all ranks were inside.",
    ] = True
    num_matched: Annotated[f.Count, "Kernels with known counterparts on the other ranks."] = 0
    wait_ns: Annotated[
        f.Count | None,
        "Time until the last rank arrived, summed over the matched kernels; null where the"
        " clocks are too coarse for most of them.",
    ] = None
    transfer_ns: Annotated[
        f.Count | None, "Time with all ranks inside, summed over the matched kernels."
    ] = None
    latency_ns: Annotated[
        f.Count | None, "Latency in the model time = latency + size / rate; null if undetermined."
    ] = None
    latency_uncertainty_ns: Annotated[
        f.Count | None, "Half the width of the 95 % interval of the latency."
    ] = None
    rate_gb_per_s: Annotated[
        f.Number | None, "Rate in the same model, with sizes as in algorithm bandwidth."
    ] = None
    scope: Annotated[Scope | None, "Whether the ranks are on one machine."] = None
    description: Annotated[
        str | None, "The user's name for the process group (`group_desc`), where known."
    ] = None

    @property
    def communicator_text(self) -> str | None:
        """The communicator, and what the user calls it; None if that is unknown."""
        if self.communicator is None or self.description is None:
            return self.communicator
        return f"{self.communicator} ({self.description})"

    @property
    def utilization(self) -> float | None:
        """The bus bandwidth as a share of the peak, a lower bound; None if either is unknown."""
        if self.busbw_gb_per_s is None or self.peak_gb_per_s is None:
            return None
        return self.busbw_gb_per_s / self.peak_gb_per_s


class CollectivesResult(CostResult, frozen=True):
    """The communication kernels of one rank, the longest-running operation first."""

    uses: tuple[OperationUse, ...]  # by operation and communicator
    num_operations: int  # communication kernels that start in it
    num_with_call: int  # those whose call on the host was found
    num_sized: int  # those of known size
    small: SmallMessages  # the small operations, by their sizes
    # by scope, of the links in a machine and of the network; None for one that is not known
    peaks_gb_per_s: Mapping[str, float | None]


def run(rank: Rank, window: Window) -> CollectivesResult:
    """Add up the communication kernels that start in the window."""
    sent, kernels = messages(rank), rank.operations.kernels
    start, end = kernels.start_ns[sent.kernel], kernels.ends(sent.kernel)
    inside, row = window.holds_start(start), _rows(sent)
    uses, peaks_gb_per_s = [], peaks_by_scope(rank)
    in_machine = peaks_gb_per_s["intra-node"]
    for number in distinct_values(row[inside]).tolist():
        chosen = np.flatnonzero(inside & (row == number))
        num_ranks = sent.world_size[chosen]
        share_the_report = ((num_ranks > 1) & (num_ranks <= len(rank.trace.operations))).all()
        operation, first = sent.operations[int(sent.operation[chosen[0]])], int(chosen[0])
        peers = distinct_values(sent.peer[chosen])
        uses.append(
            structs.replace(
                _use(operation, sent.bytes[chosen], num_ranks, (end - start)[chosen]),
                communicator=sent.communicator_name(first),
                peer=int(peers[0]) if len(peers) == 1 and peers[0] != UNKNOWN else None,
                peak_gb_per_s=in_machine if share_the_report else None,
                description=sent.description(first),
            )
        )
    uses.sort(key=by_cost)
    sized = inside & (sent.bytes != UNKNOWN)
    small, of_small, waiting_ns = small_messages(rank, window, sent, np.flatnonzero(sized), row)
    if small.num_operations >= MIN_OPERATIONS:
        most_ns = small.most_ns + around_ns(rank, window, of_small, waiting_ns)
        small = structs.replace(small, most_ns=most_ns)
    ran = intervals.union(kernels.start_ns[of_small], kernels.ends(of_small))
    return CollectivesResult(
        **facts_of(rank, window),
        uses=tuple(uses),
        num_operations=int(inside.sum()),
        num_with_call=int((inside & sent.has_call).sum()),
        num_sized=int(sized.sum()),
        small=small,
        only_step=only_step(rank, window, ran),
        peaks_gb_per_s=peaks_gb_per_s,
    )


OfUses = TypeVar("OfUses", "CollectivesResult", "ProcessGroupsResult")


def refined(result: OfUses, ranks: RankComparison) -> OfUses:
    """Return the same with rates of transfers, where operations were matched with other ranks'."""
    transfers, uses = ranks.transfers.get(result.rank, {}), []
    for use in result.uses:
        transfer = transfers.get((use.operation, use.communicator))
        facts: dict[str, Any] = {}
        if transfer is not None:
            is_known = transfer.algbw_gb_per_s is not None
            facts = {**structs.asdict(transfer), "is_lower_bound": not is_known}
            facts["peak_gb_per_s"] = result.peaks_gb_per_s.get(transfer.scope or "")
            if not is_known:
                facts |= {
                    "algbw_gb_per_s": use.algbw_gb_per_s,
                    "busbw_gb_per_s": use.busbw_gb_per_s,
                }
        uses.append(structs.replace(use, **facts))
    return replace(result, uses=tuple(uses))


def findings(result: CollectivesResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the measurements: a long collective may have waited, but a small one pays latency."""
    if not result.num_operations:
        return []
    if not result.num_sized:
        part = Part.MESSAGE_SIZES if result.num_with_call else Part.COMMUNICATION_CALLS
        why = _NO_SIZES if result.num_with_call else _NO_CALLS
        return [f.NotApplicable(ID, why, result.how_to_collect(part), result.rank)]
    small = result.small
    if small.num_operations < MIN_OPERATIONS:
        return []
    metrics = SmallCollectivesMetrics(
        num_operations=small.num_operations,
        median_bytes=small.median_bytes or 0,
        latency_share=small.latency_share or 0.0,
        coverage=result.num_sized / result.num_operations,
    )
    title = (
        f"{counted(small.num_operations, 'small communication operation')} (median"
        f" {size_text(small.median_bytes)}) lost {duration(small.avoidable_ns)} to latency that is"
        " not hidden"
    )
    return result.finding(
        ID,
        title,
        small.avoidable_ns,
        metrics,
        _ADVICE,
        evidence=small.stretches,
        saving=f.Saving.at_most(small.most_ns),
    )


def _rows(sent: Messages) -> Int64:
    group = np.where(sent.group >= 0, len(sent.communicators) + sent.group, UNKNOWN)
    communicator = np.where(sent.communicator >= 0, sent.communicator, group)
    return sent.operation * (len(sent.communicators) + len(sent.groups) + 1) + communicator + 1


def _use(
    operation: str, size: Int64, num_ranks: Int64, durations: Int64, *, has_rate: bool = True
) -> OperationUse:
    """Add operations up, with rates as nccl-tests counts them; sizes and ranks -1 if unknown."""
    total_bytes, bus_bytes = counted_bytes(operation, size, num_ranks)
    return OperationUse(
        operation=operation,
        communicator=None,
        peer=None,
        count=len(size),
        bytes=intervals.total(size) if (size != UNKNOWN).all() else None,
        total_ns=intervals.total(durations),
        median_ns=int(median_of(durations)),
        algbw_gb_per_s=rate(total_bytes, durations) if has_rate else None,
        busbw_gb_per_s=rate(bus_bytes, durations) if has_rate else None,
        peak_gb_per_s=None,
    )


def by_cost(use: OperationUse) -> tuple[int, str, str, int]:
    """Return the sort key of uses: longest-running first, then by name."""
    peer = -1 if use.peer is None else use.peer
    return -use.total_ns, use.operation, use.communicator or "", peer


_NO_SIZES = "the export has NCCL's calls, but not their sizes"
_NO_CALLS = (
    "the export does not show how much each communication kernel carried: it has no NCCL call that"
    " launched one"
)
_ADVICE = (
    MERGE,
    (
        "DDP: larger buckets (bucket_cap_mb, 25 by default); broadcast_buffers=False if batch"
        " norm's statistics need no broadcast in every forward"
    ),
    (
        "FSDP2: apply fully_shard to larger blocks, so that each all-gather carries a layer instead"
        " of a tensor"
    ),
    "Reduce metrics once per log line instead of once per step: keep them on the GPU until then",
    (
        "If operations must stay small, NCCL 2.27's symmetric kernels (registered symmetric"
        " windows) or PyTorch's symmetric memory have less latency"
    ),
)

PAGE = {
    "large": str(LARGE_BYTES >> 20),
    "small": str(SMALL_BYTES >> 10),
    "distinct": str(DISTINCT_SIZES),
    "max_latency": f"{MAX_LATENCY_NS // 1000} µs",
    "min_operations": str(MIN_OPERATIONS),
    "advice": f.bullets(_ADVICE),
}


Value = TypeVar("Value")


class Signature(NamedTuple):
    """The properties that operations share if they may be compared."""

    operation: str  # as NCCL names it, or `Barrier`
    bytes: int  # of one rank's message; -1 if unknown, as is the number of ranks
    num_ranks: int  # of the group


class ProcessGroupsResult(Record, frozen=True):
    """The communication operations of one rank that begin in the window, by start."""

    rank: int  # the rank's number
    report: int  # index of its report
    uses: tuple[OperationUse, ...]  # by operation, group and peer, the longest-running first
    start_ns: Int64  # int64[n], when each was called, in the report's time
    end_ns: Int64  # int64[n], when it was over, or the last time known of the process
    group: Int64  # int64[n], indices into `groups`; -1 if unknown
    signature: Int64  # int64[n], indices into `signatures`
    groups: tuple[str, ...]  # names of process groups
    signatures: tuple[Signature, ...]  # what is communicated
    exposed: Intervals  # when the rank communicated and did not compute
    num_threads: int | None  # of the process; None if the report does not say
    window_ns: int  # the length of the window
    peaks_gb_per_s: Mapping[str, float | None] = {}  # none is known


def process_groups(rank: Rank, window: Window) -> ProcessGroupsResult:
    """Add up the operations that begin in the window.

    Raises:
        TypeError: a rank with a GPU, whose operations are its kernels.
    """
    if not isinstance(rank, CpuRank):
        raise TypeError(f"rank {rank.rank} has a GPU")
    operations, calls = rank.work.operations, rank.work.calls
    inside = np.flatnonzero(window.holds_start(operations.start_ns))
    kind = operations.kind[inside]
    group, groups = _numbered([call and call.fields.communicator for call in calls])
    signature, signatures = _numbered(
        [
            call and Signature(call.operation, call.fields.bytes, call.fields.world_size)
            for call in calls
        ]
    )
    communication = window.clip(rank.communication)
    return ProcessGroupsResult(
        rank=rank.rank,
        report=rank.report,
        uses=_uses(operations, inside, calls),
        start_ns=operations.start_ns[inside],
        end_ns=operations.end_ns[inside],
        group=group[kind],
        signature=signature[kind],
        groups=groups,
        signatures=signatures,
        exposed=intervals.subtract(communication, rank.compute),
        num_threads=rank.trace.num_threads(rank.process),
        window_ns=window.length_ns,
    )


def _uses(
    operations: CpuOperations, inside: Int64, calls: Sequence[CallLabel | None]
) -> tuple[OperationUse, ...]:
    kind, duration = operations.kind, operations.end_ns - operations.start_ns
    row, rows = _numbered(
        [
            call
            and (
                call.operation,
                call.fields.communicator,
                call.fields.peer if call.operation in ONE_SIDED and call.fields.peer >= 0 else None,
            )
            for call in calls
        ]
    )
    size, num_ranks = (
        np.array([UNKNOWN if call is None else getattr(call.fields, name) for call in calls])[kind]
        for name in ("bytes", "world_size")
    )
    descriptions = {
        call.fields.communicator: call.fields.description for call in calls if call is not None
    }
    uses = []
    for number, (operation, group, peer) in enumerate(rows):
        chosen = inside[row[kind[inside]] == number]
        if len(chosen) == 0:
            continue
        # A socket takes bytes before they are asked for, and keeps those that come early: how long
        # a call of one side lasted is not how long they travelled.
        has_rate = operation not in ONE_SIDED and bool(operations.is_over[chosen].all())
        use = _use(operation, size[chosen], num_ranks[chosen], duration[chosen], has_rate=has_rate)
        uses.append(
            structs.replace(
                use,
                communicator=None if group is None else f"group {group}",
                peer=peer,
                description=descriptions.get(group),
            )
        )
    return tuple(sorted(uses, key=by_cost))


def _numbered(values: Sequence[Value | None]) -> tuple[Int64, tuple[Value, ...]]:
    """Return for each value the number of the first that is equal, -1 for None, and the values."""
    numbers: dict[Value, int] = {}
    codes = [
        UNKNOWN if value is None else numbers.setdefault(value, len(numbers)) for value in values
    ]
    return np.array(codes, np.int64), tuple(numbers)
