"""Advice on exposed communication, by reason and for the program that ran."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from traceprof.analyses.exposed_communication.reasons import ALONE, CLOCKS, PEER_COPY, Reason
from traceprof.analyses.exposed_communication.text import costliest, late_ranks, main_reasons
from traceprof.communication.latency import LARGE_BYTES
from traceprof.communication.messages import asynchronous_calls
from traceprof.communication.readiness import FOLLOWS_NS
from traceprof.findings import bullets
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.parts import HowToCollect, Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.exposed_communication.reasons import ExposedOperations, LinkRate


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
    OWN_COMMUNICATORS = (
        "Give operations that do not depend on each other streams and communicators of their own:"
        " see nccl-serialization"
    )
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
    OWN_STREAM = (
        "Put communication on a stream of its own, and let the compute stream wait for its event"
        " only where the result is needed: kernels of one stream never overlap"
    )
    LATE_INPUT = (
        "Nothing is left to compute once its input is ready: move work that"
        " does not need it behind the launch, send less, or send it in parts as"
        " they become ready"
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
    HALF_THE_BYTES = (
        "Send half the bytes: torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
        ".bf16_compress_hook"
    )
    FEWER_REDUCTIONS = (
        "Reduce gradients less often: accumulate those of several micro-batches under DDP's"
        " no_sync()"
    )
    PREFETCH = (
        "FSDP2: prefetch with set_modules_to_forward_prefetch and set_modules_to_backward_prefetch"
    )
    MICRO_BATCHES = (
        "Pipelines: more micro-batches, or an interleaved schedule"
        " (torch.distributed.pipelining.ScheduleInterleaved1F1B, PyTorch 2.5 and later)"
    )

    @property
    def makes_shorter(self) -> bool:
        """Whether it makes communication shorter, and does not only hide it."""
        return self in _SHORTER

    def text(self, operation: str = "communication", who: str = "the late rank") -> str:
        """Return the advice, with an operation that is slow and a rank that is late."""
        return self.value.replace("$operation", operation).replace("$who", who)


_SHORTER = {
    Remedy.CHECK_LINK,
    Remedy.LATE_INPUT,
    Remedy.SEND_LESS,
    Remedy.SMALLER_BUCKETS,
    Remedy.HALF_THE_BYTES,
    Remedy.FEWER_REDUCTIONS,
}
_GENERAL = {
    Reason.WAITING: Remedy.HELP_LATE_RANK,
    Reason.LATE_LAUNCH: Remedy.LAUNCH_EARLIER,
    Reason.QUEUED: Remedy.OWN_COMMUNICATORS,
    Reason.SAME_STREAM: Remedy.OWN_STREAM,
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
_SYNCHRONIZE_CLOCKS = (
    "Waiting for a late rank cannot be measured: the clocks of the machines"
    " cannot be compared precisely enough. Synchronize them (PTP, or chrony"
    " against one server) before recording again"
)
_CLOCKS_DISAGREE = (
    "The reasons are unknown: operations start before the calls that"
    " launched them, or end after the host has read their results, so the"
    " report's clocks of GPU and host disagree."
    " Record again with a newer profiler or driver"
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
    """Return what can be done about the reasons that matter, most promising first.

    Args:
        operations: what is exposed, and why.
        rate: of the operations with most of it.
        is_pytorch: whether the program is known to use PyTorch.
        has_compute: whether anything could hide it.
    """
    by_reason = operations.by_reason()
    chosen = [Remedy.CHECK_LINK] if rate is not None and rate.is_slow else []
    for reason, _ in main_reasons(operations):
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
    """Return remedies in words, and what to record to know more.

    Args:
        operations: what is exposed, and why.
        rate: of the operations with most of it.
        chosen: the remedies.
        how_to_collect: what the trace may lack.
    """
    ranks, operation = late_ranks(operations), "" if rate is None else rate.operation
    who = f"rank {ranks[0]}" if ranks else "late ranks"
    return (
        *(remedy.text(operation, who) for remedy in chosen),
        *_what_to_record(operations, how_to_collect),
    )


def _of_pytorch(
    reason: Reason, kind: str | None, operations: ExposedOperations
) -> tuple[Remedy, ...]:
    """Return what fits the operations that make most of a reason; empty if nothing does better."""
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
    main = {reason for reason, _ in main_reasons(operations)}
    if not exposed.is_judged:
        texts.append(_CLOCKS_DISAGREE)
    elif not exposed.has_events and {Reason.UNKNOWN, Reason.LATE_INPUT} & main:
        how = how_to_collect(Part.EVENT_RECORDS)
        texts.append(
            "What operations waited for was inferred from the order of launches alone. Event"
            f" records show it, and which kernels wait for them: record with {how}"
        )
    why = operations.waiting.why_unknown
    if why == ALONE and operations.has_others:
        texts.append(_GIVE_ALL)
    elif why == CLOCKS:
        texts.append(_SYNCHRONIZE_CLOCKS)
    return texts


PAGE = {
    "advice": bullets(remedy.text() for remedy in Remedy),
    "cpu_advice": bullets(cpu_advice(OPERATIONS)),
    "large": str(LARGE_BYTES >> 20),
    "follows": f"{FOLLOWS_NS // 1000} µs",
}
