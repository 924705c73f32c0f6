"""The reasons for exposed communication: each exposed nanosecond has one."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.links.link_findings import UNDERUSED
from traceprof.communication.exposure import Exposure, PackedExposure, Rest, exposure
from traceprof.communication.latency import LARGE_BYTES
from traceprof.communication.messages import Names, messages, operation_names
from traceprof.structs import Record
from traceprof.trace.columns import Column, pack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64
    from traceprof.ranks.transfers import Transfer
    from traceprof.ranks.waits import RankWaits
    from traceprof.run.rank import Rank, Window

PEER_COPY = "peer copy"
"""The name of a copy from one GPU to another, beside the operations of NCCL."""


class Reason(IntEnum):
    """The reasons for exposed communication, in the order in which they are tried."""

    WAITING = 0
    LATE_LAUNCH = 1
    QUEUED = 2
    SAME_STREAM = 3
    NEEDED_AT_ONCE = 4
    LATE_INPUT = 5
    TRANSFER = 6
    UNKNOWN = 7

    @property
    def metric(self) -> str:
        """The name of its metric."""
        return f"{self.name.lower()}_ns"


_REST = {
    Rest.LATE_LAUNCH: Reason.LATE_LAUNCH,
    Rest.SAME_STREAM: Reason.SAME_STREAM,
    Rest.NEEDED_AT_ONCE: Reason.NEEDED_AT_ONCE,
    Rest.LATE_INPUT: Reason.LATE_INPUT,
    Rest.UNKNOWN: Reason.UNKNOWN,
}


class Waiting(Record, frozen=True):
    """The part of the exposed time of operations in which their rank waited for others."""

    packed_ns: Column  # n
    packed_last: Column  # n numbers of the rank that came last; -1 if it was not waited for
    why_unknown: str | None  # why nothing is known of it, None if it is; then all of it is 0

    @property
    def ns(self) -> Int64:
        """The waits, int64[n]."""
        return self.packed_ns.values

    @property
    def last(self) -> Int64:
        """The rank that came last, int64[n]."""
        return self.packed_last.values


class LinkRate(Record, frozen=True):
    """How fast operations of one kind on one communicator move data once all ranks are there."""

    operation: str  # what they do
    busbw_gb_per_s: float  # as nccl-tests counts it
    peak_gb_per_s: float | None  # what their link can carry in one direction, None where not known
    is_large: bool  # whether they carry enough each, at their mean, for it to tell of the link

    @property
    def utilization(self) -> float | None:
        """Its share of the peak; None where that is not known, or latency is most of the time."""
        if self.peak_gb_per_s is None or not self.is_large:
            return None
        return self.busbw_gb_per_s / self.peak_gb_per_s

    @property
    def is_slow(self) -> bool:
        """Whether the link could carry far more."""
        return self.utilization is not None and self.utilization < UNDERUSED


class ExposedOperations(Record, frozen=True):
    """The n operations that are exposed at least in part, by start, and the reasons."""

    packed: PackedExposure  # the operations
    kind: Names  # what each does
    name: Names  # what each is called
    input: Names  # what its input came from
    next_compute: Names  # what computes next after it
    waiting: Waiting  # the waits that the comparison of ranks found
    has_others: bool  # whether other ranks take part, as far as the report shows
    is_pipeline: bool  # whether sends or receives are known that have one other rank

    @property
    def exposure(self) -> Exposure:
        """The operations, unpacked at each use."""
        return self.packed.unpacked

    def by_reason(self) -> Int64:
        """Return how much of each operation is exposed for each reason, int64[reasons, n]."""
        exposed = self.exposure
        by_reason = np.zeros((len(Reason), len(exposed)), np.int64)
        left = exposed.exposed_ns.copy()
        capped = (
            (Reason.WAITING, self.waiting.ns),
            (Reason.LATE_LAUNCH, exposed.late_launch_ns),
            (Reason.QUEUED, exposed.queued_ns),
        )
        for reason, most in capped:
            by_reason[reason] = np.minimum(left, most)
            left -= by_reason[reason]
        rest = np.array([_REST[rest] for rest in Rest], np.int64)[exposed.rest]
        by_reason[rest, np.arange(len(rest))] += left
        late_input = by_reason[Reason.LATE_INPUT]
        by_reason[Reason.TRANSFER] = late_input - _up_to(
            exposed.idle_compute_ns, late_input, exposed.line
        )
        late_input -= by_reason[Reason.TRANSFER]
        return by_reason

    def waiting_by(self, waits: RankWaits, ranks: tuple[int, ...]) -> Waiting:
        """Return how much of the exposed time the rank waited.

        A wait that clocks cannot resolve is not counted; where such waits could be more than all
        that is counted, nothing is known.

        Args:
            waits: of the rank.
            ranks: the numbers of the run's ranks.
        """
        exposed = self.exposure
        if len(waits) == 0:
            return nothing_known(len(exposed), ALONE if len(ranks) == 1 else UNMATCHED)
        at = np.minimum(np.searchsorted(waits.place, exposed.kernel), len(waits) - 1)
        is_matched = waits.place[at] == exposed.kernel
        wait, unsure = waits.wait_ns[at], waits.uncertainty_ns[at]
        is_certain = is_matched & (wait > unsure)
        pieces = intervals.Intervals(exposed.piece_start_ns, exposed.piece_end_ns)
        first = exposed.piece_start_ns[exposed.first_piece[:-1]]
        until = np.where(is_certain, np.maximum(exposed.start_ns + wait, first), first)
        ns = intervals.covered_before(pieces, until) - intervals.covered_before(pieces, first)
        uncertain = np.minimum(unsure, exposed.exposed_ns)[is_matched & ~is_certain]
        if int(uncertain.sum()) > int(ns.sum()):
            return nothing_known(len(exposed), CLOCKS)
        last = np.where(ns > 0, np.array(ranks, np.int64)[waits.last[at]], -1)
        return Waiting(pack(ns), pack(last), None)


def _up_to(most: Int64, values: Int64, line: Int64) -> Int64:
    """Return the part of values with which their sum over a line, in order, reaches its most.

    Args:
        most: int64[n], of each value's line.
        values: int64[n], not negative.
        line: int64[n], the number of each one's line.
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
    """Return the rate of the operations of a kind on the communicator that takes most time.

    Args:
        kind: what they do, None for nothing.
        transfers: of a rank, by operation and communicator.
        peaks_gb_per_s: by scope.
    """
    of_kind = [transfer for (operation, _), transfer in transfers.items() if operation == kind]
    longest = max(of_kind, key=lambda transfer: transfer.transfer_ns, default=None)
    if kind is None or longest is None or longest.busbw_gb_per_s is None:
        return None
    total_bytes = (longest.algbw_gb_per_s or 0) * longest.transfer_ns
    return LinkRate(
        kind,
        longest.busbw_gb_per_s,
        None if longest.scope is None else peaks_gb_per_s.get(longest.scope),
        total_bytes >= LARGE_BYTES * longest.num_matched,
    )


ALONE = "only one rank was given"
UNMATCHED = "its operations could not be matched with those of other ranks"
CLOCKS = "the clocks of the machines cannot be compared precisely enough"


def nothing_known(num: int, why: str) -> Waiting:
    """Return that nothing is known of the waits of so many operations, and why."""
    nobody = pack(np.full(num, -1, np.int64))
    return Waiting(pack(np.zeros(num, np.int64)), nobody, why)


def exposed_operations(rank: Rank, window: Window) -> ExposedOperations:
    """Return the exposed communication of a rank in a window, with reasons.

    Args:
        rank: with a GPU.
        window: that counts.

    Raises:
        TraceFormatError: the report is damaged.
    """
    exposed, neighbours = exposure(rank, window)
    sent = messages(rank)
    is_kernel = exposed.kernel >= 0
    kind = np.full(len(exposed), len(sent.operations), np.int64)
    kind[is_kernel] = sent.operation[exposed.kernel[is_kernel]]
    return ExposedOperations(
        packed=PackedExposure.of(exposed),
        kind=Names(pack(kind), (*sent.operations, PEER_COPY)),
        name=operation_names(rank, neighbours.itself),
        input=operation_names(rank, neighbours.input),
        next_compute=operation_names(rank, neighbours.next_compute),
        waiting=nothing_known(len(exposed), ALONE),
        has_others=bool(is_kernel.any()) and int(sent.world_size.max(initial=-1)) != 1,
        is_pipeline=bool(((sent.peer >= 0) | (sent.peer_in_communicator >= 0)).any()),
    )
