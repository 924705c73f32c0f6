"""The number of process groups of a machine that communicate at once, by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.collectives import ProcessGroupsResult, Signature
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.remedies import MERGE
from traceprof.communication.messages import SMALL_BYTES, asynchronous_calls
from traceprof.intervals import Int64, Mask
from traceprof.run.opening import RunSummary
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS
from traceprof.trace.model.special_values import UNKNOWN
from traceprof.units import counted, duration, size_text


class MachineOperations(Record, frozen=True):
    """The operations of a machine on one clock; n of each column."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    rank: Int64  # int64[n], indices into the machine's ranks
    group: Int64  # int64[n], indices into `groups`; -1 if unknown
    signature: Int64  # int64[n], indices into `signatures`
    groups: Sequence[str]  # names of groups
    signatures: Sequence[Signature]  # kinds, sizes and numbers of ranks of operations


def on_one_clock(results: Sequence[tuple[ProcessGroupsResult, int]]) -> MachineOperations:
    """Put the operations of all ranks on one clock, given its time at 0 of each report."""
    groups: dict[str, int] = {}
    signatures: dict[Signature, int] = {}
    columns: list[tuple[Int64, ...]] = []
    for index, (result, start) in enumerate(results):
        group = [groups.setdefault(name, len(groups)) for name in result.groups]
        signature = [
            signatures.setdefault(operation, len(signatures)) for operation in result.signatures
        ]
        columns.append(
            (
                result.start_ns + start,
                result.end_ns + start,
                np.full(len(result.start_ns), index, np.int64),
                np.array([*group, UNKNOWN], np.int64)[result.group],  # the last if unknown
                np.array(signature, np.int64)[result.signature],
            )
        )
    start_ns, end_ns, rank, of_group, of_signature = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    return MachineOperations(
        start_ns, end_ns, rank, of_group, of_signature, tuple(groups), tuple(signatures)
    )


# `SMALL_BYTES` fits here, too: over Gloo's loopback an all-reduce of 64 KiB was measured to take as
# long as one of 400 bytes, one of 1 MiB nearly twice that. Larger ones share bandwidth, too.
def is_small(operations: MachineOperations) -> Mask:
    """Return which operations are too small for their size to matter, bool[n]."""
    small = [
        signature.operation == BARRIER or 0 <= signature.bytes <= SMALL_BYTES
        for signature in operations.signatures
    ]
    chosen: Mask = np.array(small, np.bool_)[operations.signature]
    chosen &= operations.group != UNKNOWN
    return chosen


def groups_at_once(operations: MachineOperations) -> Int64:
    """Return how many groups communicated during each operation, on average, rounded: int64[n].

    A group communicates while any of its ranks does.
    """
    start, end, group = operations.start_ns, operations.end_ns, operations.group
    busy_ns = np.zeros(len(start), np.int64)
    for number in range(len(operations.groups)):
        busy = intervals.union(start[group == number], end[group == number])
        busy_ns += intervals.covered_within(busy, start, end)
    return np.maximum(np.rint(busy_ns / np.maximum(end - start, 1)).astype(np.int64), 1)


ID = "process-group-scaling"

# Medians of fewer differ by a fifth on a machine that does something else, too.
MIN_OPERATIONS = 50
MIN_GROWTH = 1.2


class ProcessGroupScalingMetrics(f.Metrics):
    """Numbers of `process-group-scaling`."""

    num_groups: Annotated[f.Count, "the largest number of groups at once"]
    us_per_operation: Annotated[f.Number, "the median duration with that many groups, in µs"]
    growth: Annotated[
        f.Number,
        "how many times as long operations take with the most groups as with the fewest: a ratio of"
        " sums of medians, one for each kind of operation, weighted by the number of operations",
    ]
    least_groups: Annotated[f.Count, "the smallest number of groups at once"]
    us_per_operation_at_least: Annotated[
        f.Number, "the median duration with that many groups, in µs"
    ]
    num_operations: Annotated[f.Count, "the number of small operations"]
    operations_per_group: Annotated[f.Count, "the median number of small operations in a group"]
    num_processes: Annotated[
        f.Count,
        "the number of ranks on the machine that communicated at the same time"
        " as the rank that loses most",
    ]
    num_threads: Annotated[
        f.Count | None, "the number of threads seen in their processes; null if unknown"
    ]
    num_cores: Annotated[
        f.Count | None, "the number of logical processors of the machine; null if unknown"
    ]
    coverage: Annotated[f.Fraction, "the share of small operations that could be compared"]


FINDINGS = {ID: f.FindingKind(ProcessGroupScalingMetrics, part_of="exposed-communication")}


class Level(NamedTuple):
    """Operations of one signature while a number of groups communicated."""

    num_groups: int  # the number of groups at once, the operation's own among them
    num_operations: int  # operations of all ranks
    median_ns: int  # their median duration


class Loss(Record, frozen=True):
    """Time that one rank lost to slower small operations."""

    rank: int  # the rank's number
    # the time in small operations that nothing hides, times the share by which they take longer
    # than with the fewest groups
    impact_ns: int
    window_ns: int  # the length of its window
    small_ns: int  # the time in all its small operations that nothing hides
    num_processes: int  # ranks of the machine that communicated when this one did
    num_threads: int | None  # the threads of their processes; None if unknown for one of them
    longest: tuple[f.Evidence, ...]  # its longest operations with more than the fewest groups


class HostScaling(Record, frozen=True):
    """Cost of small operations on one machine."""

    # the numbers of its finding; None where none ran with different numbers of groups at once
    metrics: ProcessGroupScalingMetrics | None
    num_cores: int | None  # the machine's logical processors; None if unknown
    small_operations: frozenset[str]  # the names of its small operations
    levels: tuple[tuple[Level, ...], ...]  # of each signature, by the number of groups
    losses: tuple[Loss, ...]  # the loss of each rank, the largest share of its window first


def run(measured: MeasuredRun) -> tuple[HostScaling, ...]:
    """Compare the operations of all ranks of each machine."""
    run = measured.run
    hosts: dict[tuple[str | None, int], list[tuple[ProcessGroupsResult, int]]] = defaultdict(list)
    for result in measured.process_groups:
        session = run.reports[result.report].session
        start = 0 if session.is_utc else session.start_utc_ns
        if session.host is None or start is None:  # not to be compared with another report
            hosts[None, result.report].append((result, 0))
        else:
            hosts[session.host, -1].append((result, start))
    return tuple(_measure(run, results) for results in hosts.values())


def findings(result: tuple[HostScaling, ...]) -> list[f.Finding | f.NotApplicable]:
    """Judge each machine."""
    return [claim for machine in result for claim in _judge(machine)]


def _measure(run: RunSummary, results: Sequence[tuple[ProcessGroupsResult, int]]) -> HostScaling:
    operations = on_one_clock(results)
    at_once = groups_at_once(operations)
    small = np.flatnonzero(is_small(operations))
    levels, typical_ns, least_ns = _levels(operations, at_once, small)
    losses = [
        _loss(operations, at_once, (typical_ns, least_ns), small, results, index)
        for index in range(len(results))
    ]
    losses.sort(key=lambda loss: -f.share(loss.impact_ns, loss.window_ns))
    num_cores = run.reports[results[0][0].report].session.num_cores
    compared = [of_signature for of_signature in levels if len(of_signature) > 1]
    most_ns = sum(of[-1].num_operations * of[-1].median_ns for of in compared)
    fewest_ns = sum(of[-1].num_operations * of[0].median_ns for of in compared)
    metrics = None
    if fewest_ns:
        # The signature with most of the time, with the most groups.
        typical = max(compared, key=lambda of: of[-1].num_operations * of[-1].median_ns)
        per_group = np.bincount(operations.group[small])
        metrics = ProcessGroupScalingMetrics(
            num_groups=typical[-1].num_groups,
            us_per_operation=typical[-1].median_ns / 1000,
            growth=most_ns / fewest_ns,
            least_groups=typical[0].num_groups,
            us_per_operation_at_least=typical[0].median_ns / 1000,
            num_operations=len(small),
            operations_per_group=int(median_of(per_group[per_group > 0])),
            num_processes=losses[0].num_processes,
            num_threads=losses[0].num_threads,
            num_cores=num_cores,
            coverage=f.share(int((least_ns > 0).sum()), len(small)),
        )
    small_kinds = distinct_values(operations.signature[small]).tolist()
    return HostScaling(
        metrics=metrics,
        num_cores=num_cores,
        small_operations=frozenset(operations.signatures[kind].operation for kind in small_kinds),
        levels=levels,
        losses=tuple(losses),
    )


def _levels(
    operations: MachineOperations, at_once: Int64, small: Int64
) -> tuple[tuple[tuple[Level, ...], ...], Int64, Int64]:
    """Group small operations by signature and number of groups.

    Returns:
        The levels of each signature with many operations; and for each operation the median at its
        level and at the lowest level of its signature, int64[n], 0 if there is no comparison.
    """
    duration_ns = operations.end_ns - operations.start_ns
    typical_ns, least_ns = np.zeros((2, len(duration_ns)), np.int64)
    growths = []
    for signature in distinct_values(operations.signature[small]).tolist():
        alike = small[operations.signature[small] == signature]
        levels, members = [], []
        for number in distinct_values(at_once[alike]).tolist():
            chosen = alike[at_once[alike] == number]
            if len(chosen) >= MIN_OPERATIONS:
                members.append(chosen)
                levels.append(Level(number, len(chosen), int(median_of(duration_ns[chosen]))))
        if levels:
            growths.append(tuple(levels))
        if len(levels) > 1:
            for level, chosen in zip(levels, members, strict=True):
                typical_ns[chosen], least_ns[chosen] = level.median_ns, levels[0].median_ns
    return tuple(growths), typical_ns, least_ns


def _loss(
    operations: MachineOperations,
    at_once: Int64,
    medians: tuple[Int64, Int64],
    small: Int64,
    results: Sequence[tuple[ProcessGroupsResult, int]],
    index: int,
) -> Loss:
    (result, start), (typical_ns, least_ns) = results[index], medians
    chosen = np.flatnonzero((operations.rank == index) & (typical_ns > least_ns))
    extra = intervals.total(typical_ns[chosen]) - intervals.total(least_ns[chosen])
    exposed_ns = _exposed_ns(operations, chosen, result, start)
    duration_ns = operations.end_ns[chosen] - operations.start_ns[chosen]
    longest = chosen[intervals.largest(duration_ns, f.MAX_EVIDENCE)]
    threads = [results[member][0].num_threads for member in _beside(operations, index)]
    return Loss(
        rank=result.rank,
        impact_ns=round(exposed_ns * f.share(extra, intervals.total(typical_ns[chosen]))),
        window_ns=result.window_ns,
        small_ns=_exposed_ns(operations, small[operations.rank[small] == index], result, start),
        num_processes=len(threads),
        num_threads=None if None in threads else sum(thread or 0 for thread in threads),
        longest=tuple(
            f.Evidence(
                int(operations.start_ns[operation]) - start,
                int(operations.end_ns[operation]) - start,
                _name(operations, operation, int(at_once[operation])),
            )
            for operation in longest.tolist()
        ),
    )


def _beside(operations: MachineOperations, index: int) -> list[int]:
    of_rank = operations.rank == index
    if not of_rank.any():
        return [index]
    first, last = operations.start_ns[of_rank].min(), operations.end_ns[of_rank].max()
    overlaps = (operations.start_ns <= last) & (operations.end_ns >= first)
    return distinct_values(operations.rank[overlaps]).tolist()


def _exposed_ns(
    operations: MachineOperations, chosen: Int64, result: ProcessGroupsResult, start: int
) -> int:
    covered = intervals.union(
        operations.start_ns[chosen] - start, operations.end_ns[chosen] - start
    )
    return intervals.intersect(covered, result.exposed).measure_ns


def _name(operations: MachineOperations, index: int, at_once: int) -> str:
    signature = operations.signatures[int(operations.signature[index])]
    size = f" of {size_text(signature.bytes)}" if signature.bytes >= 0 else ""
    group = operations.groups[int(operations.group[index])]
    return f"{signature.operation}{size} on group {group}, {counted(at_once, 'group')} at once"


def _judge(host: HostScaling) -> list[f.Finding | f.NotApplicable]:
    metrics, worst = host.metrics, host.losses[0]
    if metrics is None:
        return _no_comparison(host)
    if metrics.growth < MIN_GROWTH:
        return []
    title = (
        f"Small operations take {duration(round(1000 * metrics.us_per_operation))} each while"
        f" {metrics.num_groups} process groups communicate at once, {metrics.growth:.1f} times as"
        f" long as with {metrics.least_groups}{_crowd(host, worst)}"
    )
    return f.costly(
        ID,
        worst.rank,
        worst.window_ns,
        title,
        worst.impact_ns,
        metrics,
        worst.longest,
        _advice(host.small_operations),
    )


def _crowd(host: HostScaling, loss: Loss) -> str:
    if host.num_cores is None:
        return ""
    num = loss.num_threads
    threads = "" if num is None else f" with {counted(num, 'thread')}"
    processes, cores = counted(loss.num_processes, "process"), counted(host.num_cores, "core")
    return f" ({processes}{threads} on {cores})"


def _no_comparison(host: HostScaling) -> list[f.Finding | f.NotApplicable]:
    """Return that fewer groups are missing to compare with, if small operations cost enough."""
    several = [level[-1] for level in host.levels if level[-1].num_groups > 1]
    worst = max(host.losses, key=lambda loss: f.share(loss.small_ns, loss.window_ns))
    if not several or f.severity_of_cost(f.share(worst.small_ns, worst.window_ns)) is None:
        return []
    most = max(several, key=lambda level: level.num_operations * level.median_ns)
    reason = (
        f"small operations take {duration(most.median_ns)} each while {most.num_groups} process"
        f" groups communicate at once{_crowd(host, worst)}, and too few ran with fewer groups to"
        " compare"
    )
    how = "record the same operations with fewer groups at once, and give both reports together"
    return [f.NotApplicable(ID, reason, how)]


_ADVICE = (
    (
        "Give each process one compute thread: OMP_NUM_THREADS=1, or torch.set_num_threads(1);"
        " torchrun sets it, torch.multiprocessing.spawn does not"
    ),
    (
        "Give each rank its own cores, including its group's threads: taskset or numactl"
        " --physcpubind"
    ),
    MERGE,
    "Start $calls, compute meanwhile, and wait for them late",
    "Run fewer processes on the machine, each with more work",
    (
        "On one machine let Gloo use the loopback device, GLOO_SOCKET_IFNAME=lo, and connect only"
        " ranks that talk to each other, TORCH_GLOO_LAZY_INIT=1"
    ),
    (
        "If messages must stay small: a backend over shared memory (MPI, UCC), or NCCL where there"
        " are GPUs"
    ),
)


def _advice(operations: Iterable[str]) -> tuple[str, ...]:
    calls = asynchronous_calls(operations)
    return tuple(text.replace("$calls", calls) for text in _ADVICE)


PAGE = {
    "small": size_text(SMALL_BYTES),
    "min_operations": str(MIN_OPERATIONS),
    "min_growth": str(MIN_GROWTH),
    "advice": f.bullets(_advice(OPERATIONS)),
}
