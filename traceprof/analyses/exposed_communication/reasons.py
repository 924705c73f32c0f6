"""The reasons for exposed communication: each exposed nanosecond has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property

import numpy as np

from traceprof import intervals
from traceprof.analyses import remedies as shared
from traceprof.analyses.links import link_findings
from traceprof.communication.exposure import Exposure, Reason, exposure
from traceprof.communication.messages import (
    LARGE_BYTES,
    MAX_LATENCY_NS,
    Names,
    asynchronous_calls,
    messages,
    operation_names,
)
from traceprof.communication.readiness import FOLLOWS_NS
from traceprof.findings import MAX_EVIDENCE, Evidence, bullets
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.waits import RankWaits, Transfer
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record
from traceprof.trace.columns import Packed, pack
from traceprof.trace.grouping import sums
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.units import duration, percent, three_digits

PEER_COPY = "peer copy"
"""The name of a copy from one GPU to another, beside the operations of NCCL."""


class Waiting(Record, frozen=True):
    """The part of the exposed time of n operations in which their rank waited for others."""

    ns: Int64  # int64[n]
    last: Int64  # int64[n], the number of the rank that came last; -1 if it was not waited for


class LinkRate(Record, frozen=True):
    """How fast operations of one kind on one communicator move data once all ranks are there."""

    operation: str  # what they do
    busbw_gb_per_s: float  # as nccl-tests counts it
    peak_gb_per_s: float | None  # what their link can carry in one direction, None where not known
    # whether they carry enough each, and take longer than latency may, at their mean, for it to
    # tell of the link
    is_large: bool

    @property
    def utilization(self) -> float | None:
        """Its share of the peak; None where that is not known, or latency is most of the time."""
        if self.peak_gb_per_s is None or not self.is_large:
            return None
        return self.busbw_gb_per_s / self.peak_gb_per_s

    @property
    def is_slow(self) -> bool:
        """Whether the link could carry far more."""
        return self.utilization is not None and self.utilization < link_findings.UNDERUSED


class ExposedOperations(Record, frozen=True, dict=True):
    """The n operations that are exposed at least in part, by start, and the reasons."""

    packed: Packed[Exposure]  # the operations
    kind: Names  # what each does
    name: Names  # what each is called
    input: Names  # what its input came from
    next_compute: Names  # what computes next after it
    # the waits that the comparison of ranks found, or why nothing is known of them
    waiting: Packed[Waiting] | str
    root: int | None  # the late rank that itself waits least of those that wait for each other
    steady: Intervals | None  # the steady steps; None, and all time counts, if none begins in them
    has_others: bool  # whether the report shows other ranks that take part
    is_pipeline: bool  # whether sends or receives are known that have one other rank

    @property
    def exposure(self) -> Exposure:
        """The operations, unpacked at each use."""
        return self.packed.unpacked

    @property
    def waits(self) -> Waiting:
        """The waits, unpacked at each use; none if nothing is known of them."""
        if isinstance(self.waiting, str):
            nothing = np.zeros(len(self.exposure), np.int64)
            return Waiting(nothing, nothing - 1)
        return self.waiting.unpacked

    @cached_property
    def by_reason(self) -> Int64:
        """How much of each operation is exposed for each reason, int64[reasons, n]."""
        exposed = self.exposure
        by_reason = np.zeros((len(Reason), len(exposed)), np.int64)
        if not len(exposed):
            return by_reason
        left = exposed.exposed_ns.copy()
        capped = (
            (Reason.WAITING, self.waits.ns),
            (Reason.LATE_LAUNCH, exposed.late_launch_ns),
            (Reason.QUEUED, exposed.queued_ns),
        )
        for reason, most in capped:
            by_reason[reason] = np.minimum(left, most)
            left -= by_reason[reason]
        by_reason[exposed.rest, np.arange(len(exposed))] += left
        late_input = by_reason[Reason.LATE_INPUT]
        by_reason[Reason.TRANSFER] = late_input - _up_to(
            exposed.idle_compute_ns, late_input, exposed.line
        )
        late_input -= by_reason[Reason.TRANSFER]
        return by_reason

    @property
    def is_usual(self) -> Mask:
        """bool[n], whether each began in a steady step; all of them where none did."""
        starts = self.exposure.start_ns
        if self.steady is None:
            return np.ones(len(starts), np.bool_)
        return intervals.holder(self.steady.start_ns, self.steady.end_ns, starts) >= 0

    @property
    def usual(self) -> Int64:
        """The same of what steady steps hold, which advice is for, int64[reasons, n]."""
        return self.by_reason * self.is_usual

    @property
    def step_cause(self) -> Reason | None:
        """What makes most of it in steady steps, if what makes most of all matters little there."""
        in_all, in_steps = main_reasons(self.by_reason), main_reasons(self.usual)
        is_other = in_steps and in_all[0][0] not in dict(in_steps)
        return in_steps[0][0] if is_other else None

    def waiting_by(
        self, waits: RankWaits, ranks: tuple[int, ...], *, are_all: bool = True
    ) -> Packed[Waiting] | str:
        """Return how much of the exposed time the rank waited, or why that is not known.

        `are_all`: whether all ranks of its communicators were recorded.

        A wait that clocks cannot resolve is not counted; where such waits could be more than all
        that is counted, nothing is known.
        """
        exposed = self.exposure
        if len(waits) == 0:
            return ALONE if len(ranks) == 1 or not are_all else UNMATCHED
        at = np.minimum(np.searchsorted(waits.place, exposed.kernel), len(waits) - 1)
        is_matched = waits.place[at] == exposed.kernel
        wait, unsure = waits.wait_ns[at], waits.uncertainty_ns[at]
        is_certain = is_matched & (wait > unsure)
        pieces = Intervals(exposed.piece_start_ns, exposed.piece_end_ns)
        first = exposed.piece_start_ns[exposed.first_piece[:-1]]
        until = np.where(is_certain, np.maximum(exposed.start_ns + wait, first), first)
        ns = intervals.covered_before(pieces, until) - intervals.covered_before(pieces, first)
        uncertain = np.minimum(unsure, exposed.exposed_ns)[is_matched & ~is_certain]
        if int(uncertain.sum()) > int(ns.sum()):
            return CLOCKS
        last = np.where(ns > 0, np.array(ranks, np.int64)[waits.last[at]], -1)
        return Packed.of(Waiting(ns, last))


def _up_to(most: Int64, values: Int64, line: Int64) -> Int64:
    """Return the part of values with which their sum over a line, in order, reaches its most.

    `most` is the limit of each value's line, `line` the ascending number of the line.
    """
    order = np.argsort(line, kind="stable")
    sums = np.cumsum(values[order])
    num_before = np.flatnonzero(np.diff(line[order], prepend=-1))
    lengths = np.diff(np.append(num_before, len(order)))
    sums -= np.repeat(sums[num_before] - values[order[num_before]], lengths)
    part = np.empty_like(values)
    part[order] = np.clip(most[order] - (sums - values[order]), 0, values[order])
    return part


def link_rate(
    kind: str | None,
    transfers: Mapping[tuple[str, str | None], Transfer],
    peaks_gb_per_s: Mapping[str, float | None],
) -> LinkRate | None:
    """Return the rate of the operations of a kind on the communicator that takes most time."""
    of_kind = [transfer for (operation, _), transfer in transfers.items() if operation == kind]
    longest = max(of_kind, key=lambda transfer: transfer.transfer_ns, default=None)
    if kind is None or longest is None or longest.busbw_gb_per_s is None:
        return None
    total_bytes = (longest.algbw_gb_per_s or 0) * longest.transfer_ns
    return LinkRate(
        kind,
        longest.busbw_gb_per_s,
        None if longest.scope is None else peaks_gb_per_s.get(longest.scope),
        total_bytes >= LARGE_BYTES * longest.num_matched
        and longest.transfer_ns >= MAX_LATENCY_NS * longest.num_matched,
    )


ALONE = "only some of its ranks were given"
UNMATCHED = "its operations could not be matched with those of other ranks"
CLOCKS = "the clocks of the machines cannot be compared precisely enough"


def exposed_operations(rank: Rank, window: Window) -> ExposedOperations:
    """Return the exposed communication of a rank in a window, with reasons.

    Raises:
        TraceFormatError: the report is damaged.
    """
    exposed, (itself, source, after) = exposure(rank, window)
    sent = messages(rank)
    is_kernel, steps = exposed.kernel >= 0, steady_steps(rank, window)
    steady = Intervals(steps.start_ns, steps.end_ns)
    has_steady = (intervals.holder(steady.start_ns, steady.end_ns, exposed.start_ns) >= 0).any()
    kind = np.full(len(exposed), len(sent.operations), np.int64)
    kind[is_kernel] = sent.operation[exposed.kernel[is_kernel]]
    return ExposedOperations(
        packed=Packed.of(exposed),
        kind=Names(pack(kind), (*sent.operations, PEER_COPY)),
        name=operation_names(rank, itself),
        input=operation_names(rank, source),
        next_compute=operation_names(rank, after),
        waiting=ALONE,
        root=None,
        steady=steady if has_steady else None,
        has_others=bool(is_kernel.any()) and int(sent.world_size.max(initial=-1)) != 1,
        is_pipeline=bool(((sent.peer >= 0) | (sent.peer_in_communicator >= 0)).any()),
    )


MIN_SHARE = 0.1
"""Of the exposed time; a reason with less is neither named in the claim nor gets advice."""
_SAID = {
    Reason.WAITING: "waiting for {}",
    Reason.LATE_LAUNCH: "launched late by the host",
    Reason.QUEUED: "queued behind other communication",
    Reason.SAME_STREAM: "on the stream of the compute that follows",
    Reason.NEEDED_AT_ONCE: "needed at once by the next kernel",
    Reason.LATE_INPUT: "for input that came late",
    Reason.TRANSFER: "longer than the compute that could hide it",
    Reason.UNKNOWN: "for no known reason",
}
_NUM_NAMED = 3


def main_reasons(by_reason: Int64) -> list[tuple[Reason, int]]:
    """Return the reasons that matter with how much of the exposed time they make, largest first.

    `by_reason`: int64[reasons, n].
    """
    totals = by_reason.sum(axis=1).tolist()
    least = max(MIN_SHARE * sum(totals), 1)
    reasons = [(reason, totals[reason]) for reason in Reason if totals[reason] >= least]
    return sorted(reasons, key=lambda pair: -pair[1])


def late_ranks(operations: ExposedOperations, chosen: Mask | bool) -> dict[int, int]:
    """Return how long chosen operations waited for each late rank, the costliest first."""
    ranks, cost = sums(operations.waits.last, operations.waits.ns * chosen)
    order = np.argsort(-cost, kind="stable")
    pairs = zip(ranks[order].tolist(), cost[order].tolist(), strict=True)
    return {rank: ns for rank, ns in pairs if ns}


def root_of(operations: ExposedOperations, ranks: RankComparison, rank: int) -> int | None:
    """Return the rank to fix: that which was waited for most, or one for which that one waited.

    Each waits less itself in steady steps than the one before. `rank`: whose operations they are.
    """
    root = next(iter(late_ranks(operations, operations.is_usual)), None)
    if root is None:
        return None
    report, steady = ranks.reports[ranks.ranks.index(rank)], operations.steady
    if steady is not None:
        start, end = (ranks.clocks.to_run(report, ns) for ns in (steady.start_ns, steady.end_ns))
        steady = Intervals(start, end)

    def waited(late: int) -> tuple[int, int]:
        """Return how long a rank waited in all, and for which rank most."""
        waits = ranks.waits_of(late)
        counts = waits.wait_ns > waits.uncertainty_ns
        if steady is not None:  # the last rank comes at one time, whoever waits for it
            came_ns = waits.start_ns + waits.wait_ns
            counts &= intervals.holder(steady.start_ns, steady.end_ns, came_ns) >= 0
        last, ns = sums(waits.last, waits.wait_ns * counts)
        return int(ns.sum()), ranks.ranks[int(last[ns.argmax()])] if len(ns) else late

    own_ns, following = waited(root)
    while following != rank and (of_following := waited(following))[0] < own_ns:
        root, (own_ns, following) = following, of_following
    return root


def costliest(names: Names, ns: Int64) -> str | None:
    """Return the name with the most time; None if there is none."""
    cost = np.zeros(len(names.names) + 1, np.int64)
    np.add.at(cost, names.number, ns)  # what has no name counts as the last
    most = int(cost[:-1].argmax()) if len(cost) > 1 else 0
    return names.names[most] if len(cost) > 1 and cost[most] > 0 else None


def title(
    claim: str, operations: ExposedOperations, rate: LinkRate | None, *, has_compute: bool
) -> str:
    """Return the claim, with the reasons that matter, and the rate where the transfer is one."""
    parts, other, late = [], operations.step_cause, [*late_ranks(operations, True)]
    for reason, ns in main_reasons(operations.by_reason)[:_NUM_NAMED]:
        if reason is Reason.LATE_INPUT and not has_compute:
            continue  # earlier or later input would change nothing
        parts.append(f"{duration(ns)} {_SAID[reason].format(_who(late))}")
    text = f"{claim}: {', '.join(parts)}" if parts else claim
    if other is not None:
        text += f", but most in the mean step {_SAID[other].format('other ranks')}"
    explains = rate is not None and (
        rate.is_slow or Reason.TRANSFER in dict(main_reasons(operations.usual))
    )
    return f"{text}; {said(rate)}" if rate is not None and explains else text


def said(rate: LinkRate) -> str:
    """Return a rate in words, with its share of the peak where that tells of the link."""
    text = f"{rate.operation} moves {three_digits(rate.busbw_gb_per_s)} GB/s"
    share = rate.utilization
    return (
        text
        if share is None
        else f"{text}, {percent(share)} of its link's {rate.peak_gb_per_s:g} GB/s"
    )


def _who(ranks: list[int]) -> str:
    if not ranks:
        return "other ranks"
    others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}{others}"


def evidence(operations: ExposedOperations) -> tuple[Evidence, ...]:
    """Return the most exposed operations, and the main reason of each."""
    exposed, by_reason = operations.exposure, operations.by_reason
    spans = []
    for at in intervals.largest(exposed.exposed_ns, MAX_EVIDENCE).tolist():
        first, stop = exposed.first_piece[at : at + 2].tolist()
        reason = Reason(int(by_reason[:, at].argmax()))
        kind = operations.kind.of(at)
        name = operations.name.of(at) if kind == UNKNOWN_OPERATION else kind
        part, whole = int(by_reason[reason, at]), int(exposed.exposed_ns[at])
        spans.append(
            Evidence(
                int(exposed.piece_start_ns[first]),
                int(exposed.piece_end_ns[stop - 1]),
                f"{name}: {duration(part)} of {duration(whole)} {_why(operations, at, reason)}",
            )
        )
    return tuple(spans)


def _why(operations: ExposedOperations, at: int, reason: Reason) -> str:
    source, following = operations.input.of(at), operations.next_compute.of(at)
    if reason is Reason.WAITING:
        return f"waiting for rank {int(operations.waits.last[at])}"
    if reason is Reason.LATE_LAUNCH:
        return "launched late by the host" + (f", before {following}" if following else "")
    if reason is Reason.SAME_STREAM:
        return f"on the stream of {following}, which follows"
    if reason is Reason.NEEDED_AT_ONCE:
        return f"needed at once by {following or 'the next kernel'}"
    if reason is Reason.LATE_INPUT:
        return f"for input that came late{f', from {source}' if source else ''}"
    return _SAID[reason]


class Remedy(Enum):
    """What can be done about exposed communication; the value is the advice."""

    CHECK_LINK = (
        "Find out why $operation is far slower than its link: NCCL_DEBUG=INFO says which way it"
        " goes (P2P, not SHM or NET/Socket), nccl-tests what the machine can do alone"
    )
    HELP_LATE_RANK = "Fix $who first: overlap cannot hide the time that others wait for a late rank"
    LAUNCH_EARLIER = (
        "Launch it before the compute that can hide it: the GPU went on"
        " computing while the host had not launched it yet. See gpu-idle and"
        " host-sync for what holds the host up"
    )
    OWN_GROUPS = shared.OWN_GROUPS
    COMPUTE_MEANWHILE = (
        "Give the GPU something else to do meanwhile: start the operation earlier, or split the"
        " batch in two, so that one half computes while the other communicates"
    )
    ASYNC = (
        "Call collectives with async_op=True and wait() where the result is needed: from PyTorch"
        " 2.8 on, a synchronous collective runs on the current stream, where no kernel of that"
        " stream can run beside it"
    )
    EXCHANGES = (
        "Send and receive with isend and irecv, or at once to several peers with"
        " batch_isend_irecv: send and recv run on the current stream from PyTorch 2.8 on, where no"
        " kernel of that stream can run beside them. Give each pair of pipeline stages, and each"
        " direction, a process group of its own (torch.distributed.new_group), and call in the"
        " same order on both ranks"
    )
    LATE_INPUT = (
        "Move work that does not need it behind the launch, send less, or send it in parts as they"
        " become ready: once its input is ready, nothing else is left to compute"
    )
    SEND_LESS = (
        "Send less: fewer bytes (half precision), or the same less often; with all compute beside"
        " it the communication would still be longer"
    )
    SMALLER_BUCKETS = (
        "DDP: give all-reduces more compute to hide behind with smaller buckets (bucket_cap_mb),"
        " static_graph=True where the graph does not change, and no_sync() on all but the last"
        " micro-batch when accumulating gradients"
    )
    HALF_THE_BYTES = shared.HALF_THE_BYTES
    FEWER_REDUCTIONS = shared.FEWER_REDUCTIONS
    PREFETCH = (
        "FSDP2: prefetch with set_modules_to_forward_prefetch and set_modules_to_backward_prefetch"
    )
    MICRO_BATCHES = (
        "Pipelines: more micro-batches, or an interleaved schedule"
        " (torch.distributed.pipelining.ScheduleInterleaved1F1B, PyTorch 2.5 and later)"
    )

    def text(self, operation: str = "communication", who: str = "the late rank") -> str:
        """Return the advice, with an operation that is slow and a rank that is late."""
        return self.value.replace("$operation", operation).replace("$who", who)


SHORTER = {
    Remedy.CHECK_LINK,
    Remedy.LATE_INPUT,
    Remedy.SEND_LESS,
    Remedy.SMALLER_BUCKETS,
    Remedy.HALF_THE_BYTES,
    Remedy.FEWER_REDUCTIONS,
}
"""Remedies that make communication shorter, and do not only hide it."""
_GENERAL = {
    Reason.WAITING: Remedy.HELP_LATE_RANK,
    Reason.LATE_LAUNCH: Remedy.LAUNCH_EARLIER,
    Reason.QUEUED: Remedy.OWN_GROUPS,
    Reason.SAME_STREAM: Remedy.OWN_GROUPS,
    Reason.NEEDED_AT_ONCE: Remedy.COMPUTE_MEANWHILE,
    Reason.LATE_INPUT: Remedy.LATE_INPUT,
    Reason.TRANSFER: Remedy.SEND_LESS,
}
"""Remedies for any program, and operations of any kind."""
_ALL_REDUCE, _SHARDED = "AllReduce", ("AllGather", "ReduceScatter")
_EXCHANGE = ("SendRecv", "Send", "Recv")
_GIVE_ALL = (
    "Give the reports of all ranks together: part of this time may be waiting for a late one, which"
    " one rank alone does not show"
)
_NAME_RANKS = (
    "Record with python -m instrument, which names groups, senders and receivers: part of this time"
    " may be waiting for another rank, whose operations are not in this report"
)
_SYNCHRONIZE_CLOCKS = (
    "Synchronize the clocks of the machines (PTP, or chrony against one server) and record again:"
    " they cannot be compared precisely enough to measure waits for a late rank"
)
_CLOCKS_DISAGREE = (
    "Record again with a newer profiler or driver: operations start before the calls that launched"
    " them, or end after the host has read their results, so the report's clocks of GPU and host"
    " disagree"
)
_SLOWEST_FIRST = (
    "Look at the slowest ranks first: an operation ends only after the last"
    " of its ranks has arrived, so exposed time may be waiting for a"
    " straggler"
)


def cpu_remedies(operations: Iterable[str]) -> tuple[Remedy, ...]:
    """Return remedies for ranks without a GPU, for operations of these names."""
    return (Remedy.SMALLER_BUCKETS, Remedy.HALF_THE_BYTES) if _ALL_REDUCE in operations else ()


def cpu_advice(operations: Iterable[str]) -> tuple[str, ...]:
    """Return advice for ranks without a GPU, for operations of these names."""
    start = f"Start {asynchronous_calls(operations)}, compute meanwhile, and wait for them late"
    return (_SLOWEST_FIRST, start, *(remedy.text() for remedy in cpu_remedies(operations)))


def remedies(
    operations: ExposedOperations, rate: LinkRate | None, *, is_pytorch: bool, has_compute: bool
) -> tuple[Remedy, ...]:
    """Return what can be done about the reasons that matter, most promising first."""
    by_reason = operations.usual
    chosen = [Remedy.CHECK_LINK] if rate is not None and rate.is_slow else []
    for reason, _ in main_reasons(by_reason):
        if reason is Reason.LATE_INPUT and not has_compute:
            continue
        kind = costliest(operations.kind, by_reason[reason])
        of_pytorch = _of_pytorch(reason, kind, operations) if is_pytorch else ()
        chosen += of_pytorch or ([_GENERAL[reason]] if reason in _GENERAL else [])
    return tuple(dict.fromkeys(chosen))


def advice(
    operations: ExposedOperations,
    rate: LinkRate | None,
    chosen: Iterable[Remedy],
    how_to_collect: HowToCollect,
) -> tuple[str, ...]:
    """Return remedies in words, and what to record to know more."""
    operation = "" if rate is None else rate.operation
    late = late_ranks(operations, operations.is_usual)
    who = "late ranks" if operations.root is None else f"rank {operations.root}"
    if late and 2 * max(late.values()) <= sum(late.values()):
        most = next(iter(late))
        who = f"the {len(late)} ranks that are late at different times, rank {most} above all,"
    lines = [remedy.text(operation, who) for remedy in chosen]
    lines += _what_to_record(operations, how_to_collect)
    # What is long where waits are not known may be waiting: then no bytes help.
    is_long = [reason for reason, _ in main_reasons(operations.usual)[:1]] == [Reason.TRANSFER]
    first = {_GIVE_ALL, _NAME_RANKS} if is_long else set()
    return tuple(sorted(lines, key=lambda line: line not in first))


def _of_pytorch(
    reason: Reason, kind: str | None, operations: ExposedOperations
) -> tuple[Remedy, ...]:
    if reason is Reason.SAME_STREAM and kind != PEER_COPY:
        return (Remedy.EXCHANGES if kind in _EXCHANGE else Remedy.ASYNC,)
    if reason in {Reason.QUEUED, Reason.TRANSFER}:
        # Reductions in line share their links: only fewer bytes make the line shorter.
        is_of_gradients = kind == _ALL_REDUCE and not operations.is_pipeline
        return (Remedy.HALF_THE_BYTES, Remedy.FEWER_REDUCTIONS) if is_of_gradients else ()
    needs_time = reason in {Reason.LATE_INPUT, Reason.NEEDED_AT_ONCE}
    if needs_time and kind in _SHARDED:
        return (Remedy.PREFETCH,)
    # An all-to-all may be made of sends and receives, too.
    if needs_time and kind in _EXCHANGE and operations.is_pipeline:
        return (Remedy.MICRO_BATCHES, Remedy.EXCHANGES)
    if kind == _ALL_REDUCE and reason is Reason.LATE_INPUT:
        return (Remedy.SMALLER_BUCKETS, Remedy.HALF_THE_BYTES)
    return ()


def _what_to_record(operations: ExposedOperations, how_to_collect: HowToCollect) -> list[str]:
    exposed, texts = operations.exposure, []
    main = {reason for reason, _ in main_reasons(operations.usual)}
    if not exposed.is_judged:
        texts.append(_CLOCKS_DISAGREE)
    elif not exposed.has_events and {Reason.UNKNOWN, Reason.LATE_INPUT} & main:
        how = how_to_collect(Part.EVENT_RECORDS)
        texts.append(
            f"Record events, too ({how}): they show what operations waited for, which the order of"
            " launches alone does not show, and which kernels wait for them"
        )
    if operations.waiting == ALONE and operations.has_others:
        texts.append(_GIVE_ALL)
    elif operations.waiting == UNMATCHED and operations.has_others:
        texts.append(_NAME_RANKS)
    elif operations.waiting == CLOCKS:
        texts.append(_SYNCHRONIZE_CLOCKS)
    return texts


PAGE = {
    "advice": bullets(remedy.text() for remedy in Remedy),
    "cpu_advice": bullets(cpu_advice(OPERATIONS)),
    "large": str(LARGE_BYTES >> 20),
    "latency": f"{MAX_LATENCY_NS // 1000} µs",
    "follows": f"{FOLLOWS_NS // 1000} µs",
}
