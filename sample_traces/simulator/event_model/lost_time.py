"""Lost time of simulated GPUs by cause, from the purposes in the program.

Plain Python over lists, on purpose: nothing here is shared with the analyses that it checks.
Times and durations are in ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from statistics import median
from typing import Any

from sample_traces.simulator.event_model.actions import (
    CommunicationWork,
    CopyWork,
    KernelWork,
    MemsetWork,
)
from sample_traces.simulator.event_model.answers import Interval, Ranks, class_of, covered, union
from sample_traces.simulator.event_model.gpu import Latencies, Operation
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import A100, PURPOSE

IDLE_CAUSES = (
    "launch_bound_ns", "turnaround_ns", "sync_ns", "data_loading_ns", "mpi_ns", "setup_ns",
    "allocation_ns", "waiting_ns", "host_code_ns", "stalled_ns", "unknown_ns",
)  # fmt: skip
_TURNAROUND_NS = 20_000
_LATENCIES = Latencies()
_REASONS = (
    "waiting_ns", "late_launch_ns", "queued_ns", "same_stream_ns", "needed_at_once_ns",
    "late_input_ns", "transfer_ns", "unknown_ns",
)  # fmt: skip
_COPY_KINDS = {1: "h2d_ns", 2: "d2h_ns", 8: "d2d_ns"}
_PAGEABLE = 0


def gaps(operations: Sequence[Operation]) -> Iterator[tuple[int, Operation]]:
    """Yield the start of each gap of the GPU, and the operation that ended it."""
    order = sorted(operations, key=lambda operation: operation.start_ns)
    reached = order[0].start_ns
    for operation in order:
        if operation.start_ns > reached:
            yield reached, operation
        reached = max(reached, operation.end_ns)


def idle(
    ranks: Ranks, rank: int, unwaited: Ranks | None = None, latencies: Latencies = _LATENCIES
) -> dict[str, Any]:
    """Return the metrics of `gpu-idle` of one rank, up to the end of its training.

    A gap before an operation that was already launched is the GPU's own turnaround, but for what
    the launch's latency adds to it; from 20 us on, `queued_ns`, which is left out if it is 0. Other
    gaps are divided by the program's purposes during them; the rest is due to a wait for the GPU,
    or to launching.

    Args:
        ranks: of the run.
        rank: by number.
        latencies: of the model of the GPU.
        unwaited: the same run if the host never waited: operations that are launched ahead there
            are late because of a wait. Without it, those launched after a wait in the gap.
    """
    process, _ = ranks.places[rank]
    purposes: dict[str, list[Interval]] = defaultdict(list)
    for range_ in ranks.result.ranges:
        if range_.action.domain == PURPOSE and range_.thread.process == process:
            purposes[range_.action.name].append((range_.start_ns, range_.end_ns))
    meant = [span for spans in purposes.values() for span in spans]
    returns = [
        call.end_ns
        for call in ranks.result.calls
        if call.thread.process == process
        and (call.action.until is not None or call.action.blocking)
        and not covered(call.start_ns, call.end_ns, meant)
    ]
    late = _launched_late(unwaited.operations[rank]) if unwaited else None
    causes = dict.fromkeys(IDLE_CAUSES, 0)
    _, end_ns = ranks.training(rank)
    for start, operation in gaps(ranks.operations[rank]):
        if start >= end_ns:
            break
        left = operation.start_ns - start
        if late is None:
            waited = any(start < time <= operation.call.start_ns for time in returns)
        else:
            waited = operation.call.correlation not in late
        launching = "sync_ns" if waited else "launch_bound_ns"
        if operation.call.end_ns <= start:
            if operation.start_ns == operation.call.end_ns + latencies.launch:
                added = max(left - latencies.stream_gap, 0)
                causes[launching] += added
                left -= added
            causes["turnaround_ns"] += min(left, _TURNAROUND_NS)
            if left > _TURNAROUND_NS:
                causes["queued_ns"] = causes.get("queued_ns", 0) + left - _TURNAROUND_NS
            continue
        for cause, spans in purposes.items():
            spent = covered(start, operation.start_ns, spans)
            causes[cause] += spent
            left -= spent
        causes[launching] += left
    return {"idle_ns": sum(causes.values()), **causes}


def _launched_late(operations: Sequence[Operation]) -> set[int]:
    """Return the calls that launched when the GPU had no work left."""
    return {
        operation.call.correlation
        for start, operation in gaps(operations)
        if operation.call.end_ns > start
    }


def others_wait_ns(ranks: Ranks, rank: int, purpose: str) -> int:
    """Return the median time that other ranks waited for one rank because of one of its purposes.

    Args:
        ranks: of the run; all of them take part in each communication, and compute nothing during
            it.
        rank: by number.
        purpose: in the program, such as `stalled_ns`.
    """
    process, _ = ranks.places[rank]
    spans = [
        (range_.start_ns, range_.end_ns)
        for range_ in ranks.result.ranges
        if range_.thread.process == process and range_.action.name == purpose
    ]
    sent = [
        sorted((op for op in of_rank if class_of(op) == "communication"), key=lambda op: op.end_ns)
        for of_rank in ranks.operations
    ]
    total, since = 0, 0
    for together in zip(*sent, strict=True):
        own = together[rank]
        if own.start_ns == own.last_arrival_ns:
            caused = covered(since, own.start_ns, spans)
            waits = [
                min(own.start_ns - other.start_ns, caused)
                for number, other in enumerate(together)
                if number != rank
            ]
            total += int(median(waits or [0]))
        since = own.end_ns
    return total


def exposed_copies(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the metrics of `exposed-copy` of one rank, whose copies run one after the other."""
    metrics = dict.fromkeys(
        ("exposed_ns", "h2d_ns", "d2h_ns", "d2d_ns", "memset_ns", "pageable_ns", "same_stream_ns",
         "bytes", "num_copies"), 0,
    )  # fmt: skip
    hidden = union(
        (operation.start_ns, operation.end_ns)
        for operation in operations
        if class_of(operation) != "copy"
    )
    kernels = [operation for operation in operations if class_of(operation) == "compute"]
    took = 0
    for operation in operations:
        work = operation.work
        if not isinstance(work, CopyWork | MemsetWork) or class_of(operation) != "copy":
            continue
        length = operation.end_ns - operation.start_ns
        took += length
        exposed = length - covered(operation.start_ns, operation.end_ns, hidden)
        if not exposed:
            continue
        kind = _COPY_KINDS[work.kind] if isinstance(work, CopyWork) else "memset_ns"
        later = [kernel for kernel in kernels if kernel.start_ns >= operation.end_ns]
        following = min(later, key=lambda kernel: kernel.start_ns, default=None)
        metrics["exposed_ns"] += exposed
        metrics[kind] += exposed
        metrics["bytes"] += work.bytes
        metrics["num_copies"] += 1
        if isinstance(work, CopyWork) and _PAGEABLE in (work.source_kind, work.destination_kind):
            metrics["pageable_ns"] += exposed
        if following is not None and following.stream == operation.stream:
            metrics["same_stream_ns"] += exposed
    return {**metrics, "fraction": metrics["exposed_ns"] / took}


def exposed_communication(operations: Sequence[Operation], reason: str) -> dict[str, Any]:
    """Return `exposed-communication` of one rank, whose communication runs one after the other."""
    computing = union(
        (operation.start_ns, operation.end_ns)
        for operation in operations
        if class_of(operation) == "compute"
    )
    metrics = dict.fromkeys(_REASONS, 0)
    took = 0
    for operation in operations:
        if isinstance(operation.work, CommunicationWork):
            start, end, last = operation.start_ns, operation.end_ns, operation.last_arrival_ns
            metrics["waiting_ns"] += last - start - covered(start, last, computing)
            metrics[reason] += end - last - covered(last, end, computing)
            took += end - start
    exposed = sum(metrics.values())
    possible = min(took, sum(end - start for start, end in computing))
    return {
        "exposed_ns": exposed,
        "fraction": exposed / took,
        "overlap_efficiency": (took - exposed) / possible,
        **metrics,
    }


def full_precision(operations: Sequence[Operation], slow: Collection[Kernel]) -> dict[str, Any]:
    """Return the metrics of `full-precision-matmul` of one rank, which computes on one stream."""
    lengths = {False: 0, True: 0}
    num_slow = 0
    for operation in operations:
        if isinstance(operation.work, KernelWork):
            is_slow = operation.work.kernel in slow
            num_slow += is_slow
            lengths[is_slow] += operation.end_ns - operation.start_ns
    return {
        "kernel_ns": lengths[True],
        "fraction": lengths[True] / sum(lengths.values()),
        "num_kernels": num_slow,
    }


def few_blocks(operations: Sequence[Operation], few: Kernel) -> dict[str, Any]:
    """Return the metrics of `few-blocks` of one rank, which computes on one stream."""
    lengths = {False: list[int](), True: list[int]()}
    for operation in operations:
        if isinstance(operation.work, KernelWork):
            is_few = operation.work.kernel == few
            lengths[is_few].append(operation.end_ns - operation.start_ns)
    kernel_ns = sum(lengths[True])
    return {
        "kernel_ns": kernel_ns,
        "fraction": kernel_ns / (kernel_ns + sum(lengths[False])),
        "num_kernels": len(lengths[True]),
        "num_sms": A100.num_multiprocessors,
        "num_blocks": few.grid_x * few.grid_y,
        "block_size": few.block_x,
    }


def unfused(
    operations: Sequence[Operation],
    chains: Sequence[Sequence[Kernel]],
    of_optimizer: Sequence[Kernel],
) -> dict[str, Any]:
    """Return the metrics of `unfused-kernels` of one rank, which computes on one stream."""
    kernels = [
        (operation.work.kernel, operation.end_ns - operation.start_ns)
        for operation in sorted(operations, key=lambda operation: operation.start_ns)
        if isinstance(operation.work, KernelWork)
    ]
    spent = dict.fromkeys((False, True), 0)
    num_kernels, num_chains, place = 0, 0, 0
    while place < len(kernels):
        chain = next(
            (
                chain
                for chain in chains
                if [kernel for kernel, _ in kernels[place : place + len(chain)]] == [*chain]
            ),
            None,
        )
        if chain is None:
            place += 1
            continue
        lengths = [length for _, length in kernels[place : place + len(chain)]]
        spent[chain is of_optimizer] += sum(lengths)
        num_kernels += len(chain)
        num_chains += 1
        place += len(chain)
    return {
        "kernel_ns": sum(spent.values()),
        "optimizer_ns": spent[True],
        "fraction": sum(spent.values()) / sum(length for _, length in kernels),
        "num_kernels": num_kernels,
        "num_chains": num_chains,
        "longest_chain": max(map(len, chains)),
    }
