"""Advice on exposed communication, by reason and for the program that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.exposed_communication.reasons import ALONE, CLOCKS, PEER_COPY, Reason
from traceprof.analyses.exposed_communication.text import costliest, late_ranks, main_reasons
from traceprof.communication.asynchronous import asynchronous_calls
from traceprof.communication.latency import LARGE_BYTES
from traceprof.communication.readiness import FOLLOWS_NS
from traceprof.findings import bullets
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.parts import HowToCollect, Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.exposed_communication.reasons import ExposedOperations, LinkRate

_GENERAL = {
    Reason.LATE_LAUNCH: (
        "Launch it before the compute that can hide it: the GPU went on"
        " computing while the host had not launched it yet. See gpu-idle and"
        " host-sync for what holds the host up"
    ),
    Reason.QUEUED: (
        "Give operations that do not depend on each other streams and communicators of their own:"
        " see nccl-serialization"
    ),
    Reason.NEEDED_AT_ONCE: (
        "Give the GPU something else to do meanwhile: start the operation earlier, or split the"
        " batch in two, so that one half computes while the other communicates"
    ),
}
_SEND_LESS = (
    "Send less: fewer bytes (half precision), or the same less often; with all compute beside it"
    " the communication would still be longer"
)
_SLOW_LINK = (
    "Find out why $operation is far slower than its link: NCCL_DEBUG=INFO says which way it goes"
    " (P2P, not SHM or NET/Socket), nccl-tests what the machine can do alone"
)
_BY_KIND = {Reason.LATE_INPUT, Reason.NEEDED_AT_ONCE, Reason.QUEUED, Reason.TRANSFER}
_STREAM = (
    "Put communication on a stream of its own, and let the compute stream wait for its event only"
    " where the result is needed: kernels of one stream never overlap"
)
_ASYNC = (
    "Call collectives with async_op=True and wait() where the result is needed: from PyTorch 2.8"
    " on, a synchronous collective runs on the current stream, where no kernel of that stream can"
    " run beside it"
)
_EXCHANGES = (
    "Send and receive with isend and irecv, or at once to several peers with batch_isend_irecv:"
    " send and recv run on the current stream from PyTorch 2.8 on, where no kernel of that stream"
    " can run beside them. Give each pair of pipeline stages, and each direction, a process group"
    " of its own (torch.distributed.new_group), and call in the same order on both ranks"
)
_LATE_INPUT = (
    "Nothing is left to compute once its input is ready: move work that"
    " does not need it behind the launch, send less, or send it in parts as"
    " they become ready"
)
_SMALLER_BUCKETS = (
    "DDP: give all-reduces more compute to hide behind with smaller buckets (bucket_cap_mb),"
    " static_graph=True where the graph does not change, and no_sync() on all but the last"
    " micro-batch when accumulating gradients"
)
_HALF_THE_BYTES = (
    "Send half the bytes: torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    ".bf16_compress_hook"
)
_FEWER_REDUCTIONS = (
    "Reduce gradients less often: accumulate those of several micro-batches under DDP's no_sync()"
)
_PREFETCH = (
    "FSDP2: prefetch with set_modules_to_forward_prefetch and set_modules_to_backward_prefetch"
)
_MICRO_BATCHES = (
    "Pipelines: more micro-batches, or an interleaved schedule"
    " (torch.distributed.pipelining.ScheduleInterleaved1F1B, PyTorch 2.5 and later)"
)
_ALL_REDUCE, _SHARDED = "AllReduce", ("AllGather", "ReduceScatter")
_EXCHANGE = ("SendRecv", "Send", "Recv")
_WAITING = "Fix $who first: overlap cannot hide the time that others wait for a late rank"
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
    " launched them, so the report's clocks of GPU and host disagree."
    " Record again with a newer profiler or driver"
)
_SLOWEST_FIRST = (
    "Look at the slowest ranks first: an operation ends only after the last"
    " of its ranks has arrived, so exposed time may be waiting for a"
    " straggler"
)


_SHORTER = (_SEND_LESS, _LATE_INPUT, _SMALLER_BUCKETS, _HALF_THE_BYTES, _FEWER_REDUCTIONS)


def makes_shorter(advice: Iterable[str]) -> bool:
    """Return whether any advice makes communication shorter, and does not only hide it."""
    slow_link = _SLOW_LINK.partition("$")[0]
    return any(text in _SHORTER or text.startswith(slow_link) for text in advice)


def cpu_advice(operations: Iterable[str]) -> tuple[str, ...]:
    """Return advice for ranks without a GPU, for operations of these names."""
    start = f"Start {asynchronous_calls(operations)}, compute meanwhile, and wait for them late"
    has_all_reduce = _ALL_REDUCE in operations
    of_ddp = (_SMALLER_BUCKETS, _HALF_THE_BYTES) if has_all_reduce else ()
    return (_SLOWEST_FIRST, start, *of_ddp)


def advice(
    operations: ExposedOperations,
    rate: LinkRate | None,
    how_to_collect: HowToCollect,
    *,
    is_pytorch: bool,
    has_compute: bool,
) -> tuple[str, ...]:
    """Return advice on the reasons that matter, and on what to record to know more.

    Args:
        operations: what is exposed, and why.
        rate: of the operations with most of it.
        how_to_collect: what the trace may lack.
        is_pytorch: whether the program is known to use PyTorch.
        has_compute: whether anything could hide it.
    """
    by_reason = operations.by_reason()
    texts: list[str] = []
    if rate is not None and rate.is_slow:
        texts.append(_SLOW_LINK.replace("$operation", rate.operation))
    main = [reason for reason, _ in main_reasons(operations)]
    for reason in main:
        kind = costliest(operations.kind, by_reason[reason])
        if reason is Reason.WAITING:
            ranks = late_ranks(operations)
            texts.append(_WAITING.replace("$who", f"rank {ranks[0]}" if ranks else "late ranks"))
        elif reason is Reason.SAME_STREAM:
            texts.append(_of_stream(kind) if is_pytorch else _STREAM)
        elif reason is Reason.LATE_INPUT and not has_compute:
            continue
        elif reason in _BY_KIND:
            texts += _of_kind(reason, kind, operations, is_pytorch=is_pytorch)
        elif reason in _GENERAL:
            texts.append(_GENERAL[reason])
    texts += _what_to_record(operations, how_to_collect, main)
    return tuple(dict.fromkeys(texts))


def _of_stream(kind: str | None) -> str:
    """Return what brings operations of PyTorch of a kind off the stream of the compute."""
    return _STREAM if kind == PEER_COPY else _EXCHANGES if kind in _EXCHANGE else _ASYNC


def _of_kind(
    reason: Reason, kind: str | None, operations: ExposedOperations, *, is_pytorch: bool
) -> list[str]:
    """Return what fits the operations that make most of a reason."""
    if reason in {Reason.QUEUED, Reason.TRANSFER}:
        # Reductions in line share their links: only fewer bytes make the line shorter.
        is_of_gradients = is_pytorch and kind == _ALL_REDUCE and not operations.is_pipeline
        others = [_GENERAL.get(reason, _SEND_LESS)]
        return [_HALF_THE_BYTES, _FEWER_REDUCTIONS] if is_of_gradients else others
    if is_pytorch and kind in _SHARDED:
        return [_PREFETCH]
    # An all-to-all may be made of sends and receives, too.
    if is_pytorch and kind in _EXCHANGE and operations.is_pipeline:
        return [_MICRO_BATCHES, _EXCHANGES]
    if is_pytorch and kind == _ALL_REDUCE and reason is Reason.LATE_INPUT:
        return [_SMALLER_BUCKETS, _HALF_THE_BYTES]
    return [_GENERAL.get(reason, _LATE_INPUT)]


def _what_to_record(
    operations: ExposedOperations, how_to_collect: HowToCollect, main: list[Reason]
) -> list[str]:
    exposed, texts = operations.exposure, []
    if not exposed.is_judged:
        texts.append(_CLOCKS_DISAGREE)
    elif not exposed.has_events and {Reason.UNKNOWN, Reason.LATE_INPUT} & {*main}:
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


_ALL = (
    _SLOW_LINK.replace("$operation", "communication"),
    _WAITING.replace("$who", "the late rank"),
    *_GENERAL.values(),
    _ASYNC,
    _EXCHANGES,
    _STREAM,
    _LATE_INPUT,
    _SEND_LESS,
    _SMALLER_BUCKETS,
    _HALF_THE_BYTES,
    _FEWER_REDUCTIONS,
    _PREFETCH,
    _MICRO_BATCHES,
)
PAGE = {
    "advice": bullets(_ALL),
    "cpu_advice": bullets(cpu_advice(OPERATIONS)),
    "large": str(LARGE_BYTES >> 20),
    "follows": f"{FOLLOWS_NS // 1000} µs",
}
