"""Arrivals of a rank at communication operations, and how it spent the time before each.

Operations are kernels and calls of MPI, or, for a rank without a GPU, the ranges that `instrument`
put around calls.

The columns are all that is needed to compare a rank with the others, and they are small. This
module makes no findings: analyses of the whole run do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import (
    BETWEEN_TWO,
    EXCHANGE,
    ONE_SIDED,
    ROOTED,
    Communicators,
    are_one_of,
    messages,
)
from traceprof.host.host_code import innermost_code
from traceprof.host.host_waits import MAX_STAGED_BYTES, SyncIdle
from traceprof.host.idle_causes import IdleCause, IdleCauses, idle_causes, why_unknown
from traceprof.host.rank_stalls import garbage_collection
from traceprof.intervals import Int64, Mask
from traceprof.run.rank import CpuRank, Rank, Window
from traceprof.run.windows import shown_window
from traceprof.trace.grouping import is_in
from traceprof.trace.model.communication_calls import (
    BARRIER,
    NO_MPI_CALLS,
    NOTHING,
    OPERATIONS,
    CallLabel,
)
from traceprof.trace.model.special_values import UNKNOWN

TIME_CATEGORIES = (
    "compute",
    "communication",
    "copy",
    "launch",
    "sync",
    "blocking copy",
    "data loading",
    "waiting",
    "host code",
    "set-up",
    "other",
)
"""Categories of a rank's time: computing, else communicating, else copying, else idle by cause.

Idle time in which nothing was launched, for no known reason, counts as `launch`, MPI as `waiting`,
allocation as `set-up`; `other` is idle time before operations that were launched in time, or whose
launch is not known. Without a GPU ranges give the categories, and `other` is the time outside."""
_CATEGORIES = {
    IdleCause.LAUNCH_BOUND: "launch",
    IdleCause.UNKNOWN: "launch",
    IdleCause.DATA_LOADING: "data loading",
    IdleCause.WAITING: "waiting",
    IdleCause.MPI: "waiting",
    IdleCause.HOST_CODE: "host code",
    IdleCause.SETUP: "set-up",
    IdleCause.ALLOCATION: "set-up",
    IdleCause.STALLED: "host code",
}


_HOST_OPERATIONS = (*OPERATIONS, BARRIER)
_UNKNOWN_CALL = CallLabel("Unknown", False, NOTHING)


class Arrivals(Communicators, frozen=True):
    """The n communication operations of one rank; -1 if unknown.

    Kernels come first, by start, then calls of MPI, by start.
    """

    rank: int  # the rank's number
    report: int  # index of its report
    device: int | None  # the CUDA ordinal as the process sees it; None without a GPU
    start_ns: Int64  # int64[n], in the report's time, as are all times
    end_ns: Int64
    # int64[n], when the rank could do nothing else any more: the start, or, of what MPI does
    # beside other work, that of the `MPI_Wait` for it
    blocked_ns: Int64
    is_inside: Mask  # bool[n], whether it starts in the part of the rank that is shown
    is_judged: Mask  # bool[n], whether it starts in the part that findings are about
    operation: Int64  # int64[n], indices into `operations`
    bytes: Int64  # int64[n], as `messages.Messages` counts them
    stream: Int64  # int64[n], the CUDA stream, 0 without a GPU; of calls of MPI the tag
    sequence: Int64  # int64[n], the call's number in its group, from labels
    peer: Int64  # int64[n], the only other rank of a send or receive, in the world
    root: Int64  # int64[n], the rank in the world that all others send to or receive from
    peer_in_communicator: Int64  # int64[n], the other rank of a send or receive in the communicator
    direction: Int64  # int64[n], 1 sends, 2 receives, 3 both
    world_size: Int64  # int64[n], the number of ranks that take part
    called_ns: Int64  # int64[n], when the launching call began, -1 if nothing was launched
    launch_ns: Int64  # int64[n], when that call returned, -1 if nothing was launched
    # int64[n, 11], `TIME_CATEGORIES` from the rank's first operation to its start
    cumulative_ns_at_start: Int64
    spent_inside_ns: Int64  # int64[n, 11], the same from its start to its end
    kernels_at_start: Int64  # int64[n], compute kernels that had started when it started
    kernels_at_end: Int64  # int64[n], the same when it ended
    window_ns: int  # the length of the part that findings are about
    operations: tuple[str, ...]  # names
    num_kernels: int  # the number of kernels
    # without a GPU, operators and collections in the judged part, ns by name
    host_code: Mapping[str, int] = {}

    @property
    def is_mpi(self) -> Mask:
        """Mask of the calls of MPI, bool[n]."""
        is_mpi: Mask = np.arange(len(self)) >= self.num_kernels
        return is_mpi & (self.device is not None)

    @property
    def is_exchange(self) -> Mask:
        """Mask of the sends and receives, bool[n]."""
        return are_one_of(self.operation, self.operations, BETWEEN_TWO)

    def unhidden_ns(self) -> Int64:
        """Return for how long each operation ran while the rank did not compute, int64[n]."""
        return self.end_ns - self.start_ns - self.spent_inside_ns[:, 0]


def run(rank: Rank, window: Window) -> Arrivals:
    """Communication operations of a rank that has a GPU."""
    if isinstance(rank, CpuRank):
        return _of_host(rank, window)
    sent, kernels = messages(rank), rank.operations.kernels
    # With several GPUs in a process, it is unknown for which of them it calls MPI.
    calls = rank.trace.mpi_calls(rank.process) if rank.num_devices == 1 else NO_MPI_CALLS
    start = np.concatenate((kernels.start_ns[sent.kernel], calls.start_ns))
    end = np.concatenate((kernels.ends(sent.kernel), calls.end_ns))
    unknown = np.full(len(calls), UNKNOWN, np.int64)
    causes = idle_causes(rank) if len(start) and why_unknown(rank) is None else None
    times = np.concatenate((start, end))
    communicating = kernels.start_ns[rank.is_communication_kernel]
    num_kernels = np.searchsorted(kernels.start_ns, times, side="left")
    num_kernels -= np.searchsorted(communicating, times, side="left")
    spent, num = _spent(rank, causes, times), len(start)
    names = tuple(dict.fromkeys((*sent.operations, BARRIER)))
    number = np.array([names.index(name) for name in _HOST_OPERATIONS], np.int64)
    communicator = calls.communicator + np.where(calls.communicator < 0, 0, len(sent.communicators))
    direction = np.select(
        [calls.operation == _HOST_OPERATIONS.index(name) for name in (*ONE_SIDED, EXCHANGE)],
        [1, 2, 3],
        UNKNOWN,
    )
    operation = number[calls.operation]
    operation[direction > 0] = names.index(EXCHANGE)
    return Arrivals(
        rank=rank.rank,
        report=rank.report,
        device=rank.device,
        start_ns=start,
        end_ns=end,
        blocked_ns=np.concatenate((start[: len(sent)], calls.blocked_ns)),
        is_inside=shown_window(rank, window).holds_start(start),
        is_judged=window.holds_start(start),
        operation=np.concatenate((sent.operation, operation)),
        bytes=np.concatenate((sent.bytes, calls.bytes)),
        communicator=np.concatenate((sent.communicator, communicator)),
        group=np.concatenate((sent.group, unknown)),
        stream=np.concatenate((kernels.packed_stream.at(sent.kernel), calls.tag)),
        sequence=np.concatenate((sent.sequence, unknown)),
        peer=np.concatenate((sent.peer, calls.peer)),
        root=np.concatenate((sent.root, calls.root)),
        peer_in_communicator=np.concatenate((sent.peer_in_communicator, unknown)),
        direction=np.concatenate((sent.direction, direction)),
        world_size=np.concatenate((sent.world_size, calls.world_size)),
        called_ns=np.concatenate((sent.called_ns, unknown)),
        launch_ns=np.concatenate((sent.launch_ns, unknown)),
        cumulative_ns_at_start=spent[:num],
        spent_inside_ns=spent[num:] - spent[:num],
        kernels_at_start=num_kernels[:num],
        kernels_at_end=num_kernels[num:],
        window_ns=window.length_ns,
        operations=names,
        communicators=(*sent.communicators, *calls.communicators),
        groups=sent.groups,
        num_kernels=len(sent),
    )


def _of_host(rank: CpuRank, window: Window) -> Arrivals:
    work = rank.work
    known = np.flatnonzero(work.operations.is_over)
    start, end = work.operations.start_ns[known], work.operations.end_ns[known]
    calls = [_UNKNOWN_CALL if call is None else call for call in work.calls]
    kind = work.operations.kind[known]
    groups = sorted({call.fields.communicator for call in calls if call.fields.communicator})

    def of_calls(values: Iterable[int]) -> Int64:
        return np.fromiter(values, np.int64, len(calls))[kind]

    operation = of_calls(_HOST_OPERATIONS.index(call.operation) for call in calls)
    peer = of_calls(call.fields.peer for call in calls)
    direction = np.select(
        [operation == _HOST_OPERATIONS.index(name) for name in ONE_SIDED], [1, 2], UNKNOWN
    )
    is_rooted = are_one_of(operation, _HOST_OPERATIONS, ROOTED)
    # Both sides are one operation, as NCCL's kernels are named.
    operation = np.where(direction > 0, _HOST_OPERATIONS.index(EXCHANGE), operation)
    unknown, none = np.full(len(known), UNKNOWN, np.int64), np.zeros(len(known), np.int64)
    spent = _spent_on_host(rank, np.concatenate((start, end)))
    return Arrivals(
        rank=rank.rank,
        report=rank.report,
        device=None,
        start_ns=start,
        end_ns=end,
        blocked_ns=start,
        is_inside=shown_window(rank, window).holds_start(start),
        is_judged=window.holds_start(start),
        operation=operation,
        bytes=of_calls(call.fields.bytes for call in calls),
        communicator=unknown,
        group=of_calls(
            UNKNOWN if call.fields.communicator is None else groups.index(call.fields.communicator)
            for call in calls
        ),
        stream=none,
        sequence=work.operations.sequence[known],
        peer=np.where(direction > 0, peer, UNKNOWN),
        root=np.where(is_rooted, peer, UNKNOWN),
        peer_in_communicator=unknown,
        direction=direction,
        world_size=of_calls(call.fields.world_size for call in calls),
        called_ns=unknown,
        launch_ns=unknown,
        cumulative_ns_at_start=spent[: len(start)],
        spent_inside_ns=spent[len(start) :] - spent[: len(start)],
        kernels_at_start=none,
        kernels_at_end=none,
        window_ns=window.length_ns,
        operations=_HOST_OPERATIONS,
        communicators=(),
        groups=tuple(groups),
        num_kernels=0,
        host_code=innermost_code(
            rank.trace,
            rank.process,
            intervals.clip(rank.compute, window.start_ns, window.end_ns),
            garbage_collection(rank),
        ),
    )


def _spent_on_host(rank: CpuRank, times: Int64) -> Int64:
    """Time in each of `TIME_CATEGORIES` until these times, int64[n, 11]."""
    spent = np.zeros((len(times), len(TIME_CATEGORIES)), np.int64)
    computing = rank.compute
    communicating = intervals.merge(computing, rank.communication)
    accounted = intervals.merge(communicating, rank.work.loading)
    spent[:, 0] = intervals.covered_before(computing, times)
    spent[:, 1] = intervals.covered_before(communicating, times) - spent[:, 0]
    loading = intervals.covered_before(accounted, times) - spent[:, 0] - spent[:, 1]
    spent[:, TIME_CATEGORIES.index("data loading")] = loading
    spent[:, -1] = times - rank.window.start_ns - spent.sum(axis=1)
    return spent


def _spent(rank: Rank, causes: IdleCauses | None, times: Int64) -> Int64:
    """Time in each of `TIME_CATEGORIES` until these times, int64[n, 11]."""
    spent = np.zeros((len(times), len(TIME_CATEGORIES)), np.int64)
    spent[:, 0] = intervals.covered_before(rank.compute, times)
    spent[:, 1] = intervals.covered_before(rank.communication, times)
    spent[:, 1] -= intervals.covered_before(rank.overlapped, times)
    busy = intervals.covered_before(rank.busy, times)
    spent[:, 2] = busy - spent[:, 0] - spent[:, 1]
    if causes is not None:
        sync = _waits_in_their_gaps(rank, causes)
        for cause, category in _CATEGORIES.items():
            idle = causes.of(cause)
            if cause in causes.before_sync:
                idle = intervals.subtract(causes.before_sync[cause], sync.covered)
            spent[:, TIME_CATEGORIES.index(category)] += intervals.covered_before(idle, times)
        _add_waits(rank, causes, sync, times, spent)
    spent[:, -1] = times - rank.window.start_ns - spent.sum(axis=1)
    return spent


def _waits_in_their_gaps(rank: Rank, causes: IdleCauses) -> SyncIdle:
    """Idle time caused by host waits, in gaps that began before the wait returned.

    At the end of a step all ranks wait. A rank whose wait was over when its gap began did something
    in the gap that the other ranks did not do.
    """
    gaps, attributable, calls = causes.gaps.gaps, causes.attributable, rank.calls
    if calls is None or not len(attributable.spans):
        return causes.sync
    gap = np.searchsorted(gaps.start_ns, attributable.spans.start_ns, side="right") - 1
    returned = calls.ends(attributable.costs.call)
    return attributable.attributed_in_gaps(gaps.start_ns[gap], gaps.end_ns[gap], returned)


def _add_waits(rank: Rank, causes: IdleCauses, sync: SyncIdle, times: Int64, spent: Int64) -> None:
    """Add the idle time attributed to waits: for large copies, and others."""
    # A wait for a small copy, as in `loss.item()`, waits for the work before the copy.
    copies = rank.launched_by[1][rank.operations.copies.bytes > MAX_STAGED_BYTES]
    is_copy = is_in(causes.attributable.costs.call[sync.wait], copies[copies >= 0])
    for category, chosen in (("sync", ~is_copy), ("blocking copy", is_copy)):
        waiting = intervals.union(sync.start_ns[chosen], sync.end_ns[chosen])
        number = TIME_CATEGORIES.index(category)
        spent[:, number] += intervals.covered_before(waiting, times)
