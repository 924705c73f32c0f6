"""Communication of a rank without a GPU, by operation, process group and peer.

Durations are of the host: from the call to the end of the operation, waiting for the others
included, so that rates of collectives are lower bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses.collectives import OperationUse, by_cost, rates, with_transfer
from traceprof.communication.messages import ONE_SIDED
from traceprof.run.rank import CpuRank
from traceprof.structs import Record
from traceprof.trace.grouping import median_of
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Intervals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.cpu_rank import CpuOperations
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.communication_calls import CallLabel

Value = TypeVar("Value")


class Signature(NamedTuple):
    """The properties that operations share if they may be compared."""

    operation: str  # as NCCL names it, or `Barrier`
    bytes: int  # of one rank's message; -1 if unknown, as is the number of ranks
    num_ranks: int  # of the group


class _Row(NamedTuple):
    operation: str
    group: str | None
    peer: int | None


class ProcessGroupsResult(Record, frozen=True):
    """The communication operations of one rank that begin in the window, by start."""

    rank: int  # the rank's number
    report: int  # index of its report
    uses: tuple[OperationUse, ...]  # by operation, group and peer, the longest-running first
    start_ns: Int64  # int64[n], when each was called, in the report's time
    end_ns: Int64  # int64[n], when it was over, as far as that is known
    group: Int64  # int64[n], indices into `groups`; -1 if unknown
    signature: Int64  # int64[n], indices into `signatures`
    groups: tuple[str, ...]  # names of process groups
    signatures: tuple[Signature, ...]  # what is communicated
    exposed: Intervals  # when the rank communicated and did not compute
    num_threads: int | None  # of the process; None if the report does not say
    window_ns: int  # the length of the window


def run(rank: Rank, window: Window) -> ProcessGroupsResult:
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
    communication = intervals.clip(rank.communication, window.start_ns, window.end_ns)
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


def refined(result: ProcessGroupsResult, ranks: RankComparison) -> ProcessGroupsResult:
    """Return the same with rates of transfers, as `collectives.refined` does."""
    transfers = ranks.transfers_of(result.rank)
    uses = tuple(
        with_transfer(use, transfers.get((use.operation, use.communicator)), {})
        for use in result.uses
    )
    return replace(result, uses=uses)


def _row(call: CallLabel) -> _Row:
    peer = call.fields.peer if call.operation in ONE_SIDED and call.fields.peer >= 0 else None
    return _Row(call.operation, call.fields.communicator, peer)


def _uses(
    operations: CpuOperations, inside: Int64, calls: Sequence[CallLabel | None]
) -> tuple[OperationUse, ...]:
    kind, duration = operations.kind, operations.end_ns - operations.start_ns
    row, rows = _numbered([call and _row(call) for call in calls])
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
        sizes, has_rate = size[chosen], operation not in ONE_SIDED
        algbw, busbw = rates(operation, sizes, num_ranks[chosen], duration[chosen])
        has_rate &= bool(operations.is_over[chosen].all())
        uses.append(
            OperationUse(
                operation=operation,
                communicator=None if group is None else f"group {group}",
                peer=peer,
                count=len(chosen),
                bytes=intervals.total(sizes) if (sizes != UNKNOWN).all() else None,
                total_ns=intervals.total(duration[chosen]),
                median_ns=int(median_of(duration[chosen])),
                algbw_gb_per_s=algbw if has_rate else None,
                busbw_gb_per_s=busbw if has_rate else None,
                peak_gb_per_s=None,
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
