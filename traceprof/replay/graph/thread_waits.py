"""Waits between the threads of a process: for the driver's lock, and for another thread's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.replay.graph.columns import COMPUTE
from traceprof.replay.graph.hidden_host_waits import numbered
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.replay.graph.host_waits import HostWaits
    from traceprof.replay.graph.loader_queues import QueueWaits
    from traceprof.replay.graph.longest_path import Float64
    from traceprof.run.opening import Mask

# Autograd's hand-over: a thread that made no call for longer than this waited for the other one.
MIN_HAND_OVER_NS = 50_000
MIN_LOCKED_NS = 50_000
MIN_OF_A_PLACE = 6
"""Of fewer silences it is not known what varies less."""
# The time from the return of the call that held the driver's lock to the return of the one that
# waited (measured: 4 to 90 us, seldom more).
MAX_UNLOCKING_NS = 250_000


class LockWaits(Record, frozen=True):
    """The m waits of calls for the driver's lock, which a call of another thread holds.

    Attributes:
        call: int64[m], outer calls, indices into `HostCalls`.
        after: int64[m], the other thread's call.
    """

    call: Int64
    after: Int64


class HandOvers(Record, frozen=True):
    """The m places at which a thread goes on when a call of another thread has returned.

    Attributes:
        call: int64[m], the call that the thread makes then, an index into `HostCalls`; ascending.
        after: int64[m], the other thread's call.
        gap_ns: int64[m], how long after that one's return.
        own_ns: int64[m], and at least how long after that of its own call before; -1 if nothing
            shows that it waited for both.
        is_sure: bool[m], whether it waited for the other one; else it may have.
        own: int64[k], calls before which a thread slept or worked by itself: another thread's call
            returned meanwhile, and was not what it waited for.
        queues: of a loader.
    """

    call: Int64
    after: Int64
    gap_ns: Int64
    own_ns: Int64
    is_sure: Mask
    own: Int64
    queues: QueueWaits


def hand_overs(
    calls: HostCalls, work: GpuWork, begin_ns: int, name: Int64, queues: QueueWaits
) -> HandOvers:
    """Return where threads that launch wait for each other.

    A thread that sleeps or works by itself takes as long whenever another one's call returns
    meanwhile: of a place where the time since the thread's own call varies less than that since the
    other one's return, none is a hand-over.

    Args:
        calls: of the process.
        work: of all its ranks.
        begin_ns: when what is replayed begins: a thread that makes its first call later waited as
            one does that made a call before.
        name: int64[calls], a number for what each is.
        queues: what the threads of a loader wait for, and others for them.
    """
    call, after, own = _by_silence(calls, work, begin_ns, name, queues.threads)
    is_other = ~np.isin(call, queues.call)
    call, after = call[is_other], after[is_other]
    num, gap_ns = len(call), calls.start_ns[call] - calls.end_ns[after]
    call = np.append(queues.call, call)
    order = np.argsort(call, kind="stable")
    return HandOvers(
        call=call[order],
        after=np.append(queues.after, after)[order],
        gap_ns=np.append(queues.gap_ns, gap_ns)[order],
        own_ns=np.append(queues.own_ns, np.full(num, -1))[order],
        is_sure=np.append(queues.is_sure, np.ones(num, np.bool_))[order],
        own=own,
        queues=queues,
    )


def _by_silence(
    calls: HostCalls, work: GpuWork, begin_ns: int, name: Int64, known: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return calls after silences, the others' calls that ended these, and those after own ones.

    Args:
        calls: of the process.
        work: of all its ranks.
        begin_ns: as in `hand_overs`.
        name: as there.
        known: int64[t], threads of which it is known what they wait for.
    """
    launches = np.setdiff1d(calls.thread[work.call[work.call >= 0]], known)
    chosen = np.flatnonzero(np.isin(calls.thread, launches) & calls.is_outer)
    nothing = np.empty(0, np.int64)
    if len(launches) < 2:
        return nothing, nothing, nothing
    is_first = np.append(True, calls.thread[chosen[1:]] != calls.thread[chosen[:-1]])
    since_ns = np.where(is_first, begin_ns, np.append(0, calls.end_ns[chosen[:-1]]))
    is_long = calls.start_ns[chosen] - since_ns > MIN_HAND_OVER_NS
    after, since_ns = chosen[is_long], since_ns[is_long]
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    last = np.searchsorted(calls.end_ns[by_end], calls.start_ns[after], side="right") - 1
    other = by_end[np.maximum(last, 0)]
    is_other = (last >= 0) & (calls.thread[other] != calls.thread[after])
    is_other &= calls.end_ns[other] > since_ns
    before = np.append(chosen[:1], chosen[:-1])[is_long]
    place = numbered(
        calls.thread[after], np.where(is_first[is_long], -1, name[before]), name[after]
    )
    rows = np.flatnonzero(is_other)
    own_ns = (calls.start_ns[after] - since_ns)[rows]
    handed_ns = (calls.start_ns[after] - calls.end_ns[other])[rows]
    is_own = _variance(handed_ns, place[rows]) > _variance(own_ns, place[rows])
    return after[rows[~is_own]], other[rows[~is_own]], after[rows[is_own]]


def _variance(values: Int64, place: Int64) -> Float64:
    """Return by how much values of the same place vary, float64[n]; 0 where there are too few.

    What disturbs both times alike is in both variances.
    """
    if not len(values):
        return values.astype(np.float64)
    num = np.bincount(place)
    mean = np.bincount(place, values) / np.maximum(num, 1)
    square = np.bincount(place, (values - mean[place]) ** 2) / np.maximum(num, 1)
    of_places = np.where(num >= MIN_OF_A_PLACE, square, 0.0)
    return of_places[place]


def training_threads(calls: HostCalls, work: GpuWork) -> Int64:
    """Return the threads that launch to the stream which computes most: a loader's do not.

    Args:
        calls: of the process.
        work: of all its ranks.
    """
    computes = (work.kind == COMPUTE) & (work.call >= 0)
    if not computes.any():
        return np.unique(calls.thread)
    spent = np.bincount(work.chain[computes], work.length_ns[computes])
    busiest = computes & (work.chain == int(np.argmax(spent)))
    return np.unique(calls.thread[work.call[busiest]])


def lock_waits(calls: HostCalls, work: GpuWork, waits: HostWaits) -> LockWaits:
    """Return which calls waited until another thread's long call had returned.

    CUDA's driver lets one thread at a time change a context. Seen on A100: a loader's thread enters
    `cudaMemcpyAsync` while the main thread's copy of four bytes to pageable memory waits for the
    step to be over, and returns 10 to 60 us after it.

    Args:
        calls: of the process.
        work: of all its ranks.
        waits: for the GPU, which are left out.
    """
    launches = np.unique(calls.thread[work.call[work.call >= 0]])
    is_long = calls.end_ns - calls.start_ns > MIN_LOCKED_NS
    chosen = np.flatnonzero(is_long & calls.is_outer & np.isin(calls.thread, launches))
    nothing = np.empty(0, np.int64)
    if len(launches) < 2 or len(chosen) < 2:
        return LockWaits(nothing, nothing)
    by_end = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    call = np.setdiff1d(chosen, waits.call)
    at = np.searchsorted(calls.end_ns[by_end], calls.end_ns[call], side="left") - 1
    holder = by_end[np.maximum(at, 0)]
    waited = (at >= 0) & (calls.thread[holder] != calls.thread[call])
    waited &= calls.start_ns[holder] < calls.start_ns[call]
    waited &= calls.end_ns[holder] > calls.start_ns[call]
    waited &= calls.end_ns[call] - calls.end_ns[holder] <= MAX_UNLOCKING_NS
    return LockWaits(call[waited], holder[waited])
