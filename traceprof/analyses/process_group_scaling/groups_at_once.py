"""The number of process groups of a machine that communicate at once, by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.latency import SMALL_BYTES
from traceprof.structs import Record
from traceprof.trace.model.communication_calls import BARRIER
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.measurements.process_groups import ProcessGroupsResult, Signature
    from traceprof.intervals import Int64, Mask


class MachineOperations(Record, frozen=True):
    """The operations of a machine on one clock; n of each column.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        rank: int64[n], indices into the machine's ranks.
        group: int64[n], indices into `groups`; -1 if unknown.
        signature: int64[n], indices into `signatures`.
        groups: names of groups.
        signatures: kinds, sizes and numbers of ranks of operations.
    """

    start_ns: Int64
    end_ns: Int64
    rank: Int64
    group: Int64
    signature: Int64
    groups: Sequence[str]
    signatures: Sequence[Signature]


def on_one_clock(results: Sequence[tuple[ProcessGroupsResult, int]]) -> MachineOperations:
    """Put the operations of all ranks on the machine's clock.

    Args:
        results: the results of each rank, with the clock's time at time 0 of its report.
    """
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
    busy = [
        intervals.union(start[group == number], end[group == number])
        for number in range(len(operations.groups))
    ]
    if not any(map(len, busy)):  # without any length
        return np.ones(len(start), np.int64)
    time = np.concatenate(
        [*(busy_group.start_ns for busy_group in busy), *(busy_group.end_ns for busy_group in busy)]
    )
    order = np.argsort(time, kind="stable")
    time, num_busy = time[order], np.cumsum(np.where(order < len(time) // 2, 1, -1))
    area = np.concatenate((np.zeros(1, np.int64), np.cumsum(num_busy[:-1] * np.diff(time))))

    def area_before(times: Int64) -> Int64:
        at = np.maximum(np.searchsorted(time, times, side="right") - 1, 0)
        before: Int64 = area[at] + num_busy[at] * np.maximum(times - time[at], 0)
        return before

    average = (area_before(end) - area_before(start)) / np.maximum(end - start, 1)
    rounded: Int64 = np.maximum(np.rint(average).astype(np.int64), 1)
    return rounded
