"""The host's clock and the GPU's: whether their times can be compared, and how they are joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from traceprof.intervals import Int64
from traceprof.run.guard import optional
from traceprof.run.rank import Rank
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import MemoryKind
from traceprof.trace.model.operations import Operations

# Profilers align both clocks to some microseconds. If effects come before their causes by more than
# this, times of host and GPU cannot be compared (seen: 0.8 s).
_TOLERANCE_NS = 1_000_000
_FEW = 0.01  # of the operations may be matched with a wrong call, where correlation ids repeat
_MAX_DRIFT_NS = 20_000
_PARTS, _ENDS, _MIN_OF_PART = 8, 3, 16  # of a recording; at each end; operations
# Between the call and the start of an operation at least, and from the end of a copy to the return
# of the call that made it (5.4 to 7.2 us, 6.3 to 8.4 us, on A100 with exports of 2021 and 2022).
_LATENCY_NS = 7_000
_MAX_BOTH_NS = 4 * _LATENCY_NS  # from a call to its start, and from an end to the return
_NUM_FIRST = 4_096  # calls, and operations of a kind
_FAR_NS = 1 << 60


def clocks_disagree(rank: Rank) -> bool:
    """Whether operations start before their launch, or end after the host read them."""
    return rank.cache.get(_disagree, rank)


def _disagree(rank: Rank) -> bool:
    calls = rank.calls
    assert calls is not None  # noqa: S101
    unread = _since_read_ns(rank, calls) > _TOLERANCE_NS
    return many_are_early(rank, calls, _TOLERANCE_NS) or int(unread.sum()) > _FEW * len(unread)


def many_are_early(rank: Rank, calls: ApiCalls, by_ns: int = 0) -> bool:
    """Whether over 1 % of the operations start earlier than their launch, by more than a time."""
    early, launched = 0, 0
    for group, call in zip(rank.operations.groups, rank.launched_by, strict=True):
        known = np.flatnonzero(call >= 0)
        ahead = calls.start_ns.take(call.take(known)) - group.start_ns.take(known)
        early += int((ahead > by_ns).sum())
        launched += len(ahead)
    return early > _FEW * launched


@optional("host-clock", otherwise=lambda ranks: [*ranks])
def aligned(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks of a report with the times of each GPU on the clock of its host.

    They are moved by a constant, if it is known of all: ranks are compared with each other.
    """
    late_ns = {}
    for index, rank in enumerate(ranks):
        if not _agrees(rank):
            constant = _constant_ns(rank)
            rank.release()
            if constant is None:
                return [*ranks]
            late_ns[index] = constant
    of_host = [*ranks]
    for index, constant in late_ns.items():
        rank = ranks[index]
        rank.trace.move_operations(rank.key, -constant)
        of_host[index] = replace(rank, operations=rank.trace.operations[rank.key])
    return of_host


def _constant_ns(rank: Rank) -> int | None:
    if rank.calls is None or not clocks_disagree(rank):
        return None
    late_ns = _late_ns(rank, rank.calls)
    if late_ns is None:
        return None
    moved = replace(rank, operations=rank.operations.moved(-late_ns))
    return None if clocks_disagree(moved) else late_ns


def _agrees(rank: Rank) -> bool:
    if rank.device is None:
        return True
    calls, since = rank.calls, []
    if calls is None or not rank.has_calls:
        return False
    ids = _first_ids(calls)
    for group in rank.operations.groups:
        wanted = _first_ids(group)
        call = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        known = np.flatnonzero(ids[call] == wanted)
        since.append(group.starts.at(known) - calls.starts.at(call[known]))
    return _are_quick(np.concatenate(since))


def _are_quick(since_ns: Int64) -> bool:
    """Whether one of some operations starts soon after its launch, and none before it."""
    return abs(int(since_ns.min(initial=_FAR_NS))) <= _TOLERANCE_NS


def _first_ids(spans: ApiCalls | Operations) -> Int64:
    """Correlation ids of the first calls or operations, without reading the others."""
    number = min(len(spans), _NUM_FIRST)
    return spans.packed_ahead.at(slice(0, number)) + np.arange(number)


def _late_ns(rank: Rank, calls: ApiCalls) -> int | None:
    """How late operations are on the host's clock, None if that is no constant.

    It is the middle between the quickest launch and the quickest return after a copy that the host
    reads, off by less than 10 us where that was measured.
    """
    start, since = [], []
    for group, call in zip(rank.operations.groups, rank.launched_by, strict=True):
        known = call >= 0
        start.append(group.start_ns[known])
        since.append(start[-1] - calls.start_ns[call[known]])
    order = np.argsort(np.concatenate(start), kind="stable")
    parts = np.array_split(np.concatenate(since)[order], _PARTS)
    if min(map(len, parts)) < _MIN_OF_PART:
        return None
    of_part = np.array([part.min() for part in parts])
    least_ns = int(of_part.min())
    # All that a part launched may have waited: it says nothing.
    quick = np.flatnonzero(of_part - least_ns <= _MAX_DRIFT_NS)
    if quick[0] >= _ENDS or quick[-1] < _PARTS - _ENDS:
        return None
    before_ns = int(_since_read_ns(rank, calls).max(initial=-_FAR_NS))
    if least_ns - before_ns > _MAX_BOTH_NS:  # no call returned soon after its copy
        before_ns = least_ns - 2 * _LATENCY_NS
    return (least_ns + before_ns) // 2 if before_ns <= least_ns else None


def _since_read_ns(rank: Rank, calls: ApiCalls) -> Int64:
    """Time from the return of their call to the end of copies that the host reads, int64[n]."""
    copies, call = rank.operations.copies, rank.launched_by[1]
    is_read = copies.destination_memory == MemoryKind.PAGEABLE
    reads = np.flatnonzero(is_read & (call >= 0))
    return copies.ends(reads) - calls.ends(call[reads])
