"""Columns of one process: calls by thread, GPU operations by stream.

All times are on the run's clock, in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host.host_waits import MIN_BLOCKING_NS
from traceprof.host.thread_evidence import HostEvidence, ThreadEvidence, host_evidence
from traceprof.intervals import Int64, Mask
from traceprof.run.opening import Rank
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in, reached_before
from traceprof.trace.model.host import ApiCalls, EventRecords, Synchronizations
from traceprof.trace.model.kinds import ApiCallKind, CopyKind, api_call_kind

COMPUTE, COMMUNICATION, COPY = range(3)
"""Kinds of operations, as in a breakdown; memory sets are copies."""


class HostCalls(Rows, frozen=True):
    """The API calls of a process by thread, then in the order in which they began."""

    index: Int64  # int64[n], indices into the process's `ApiCalls`
    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    thread: Int64  # int64[n], threads numbered from 0
    is_outer: Mask  # bool[n], whether the call lies in no other one of its thread
    outer: Int64  # int64[n], the call itself, or the one that it lies in; indices into these calls
    in_time: Int64  # int64[n], place of each in the order of all threads' starts
    num_all: int  # how many the process made; all are here if not some of its steps are replayed

    @property
    def length_ns(self) -> Int64:
        """The length of each, int64[n]."""
        return self.end_ns - self.start_ns

    def silences(self, threads: Int64) -> tuple[Int64, Int64]:
        """Return outer calls of threads that follow others, and when those returned, int64[k]."""
        outer = np.flatnonzero(self.is_outer & is_in(self.thread, threads))
        follows = np.flatnonzero(self.thread[outer[1:]] == self.thread[outer[:-1]]) + 1
        return outer[follows], self.end_ns[outer[follows - 1]]

    def place_of(self, call: Int64) -> Int64:
        """Return where calls, indices into `ApiCalls`, are among these; -1 for any other."""
        place = np.full(self.num_all + 1, -1, np.int64)  # the last one for what is no call
        place[self.index] = np.arange(len(self))
        return place.take(call)


class GpuWork(Rows, frozen=True):
    """The GPU operations of the ranks of a process, by rank and stream, then as launched."""

    rank: Int64  # int64[n], the index of the rank among those of the run
    group: Int64  # int64[n], kernels, copies, memory sets, graphs as in `RankOperations.groups`
    place: Int64  # int64[n], the index in that group
    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    stream: Int64  # int64[n], the CUDA stream
    chain: Int64  # int64[n], numbers rank and stream
    call: Int64  # int64[n], the call that launched it, an index into `HostCalls`; -1 for none
    kind: Int64  # int64[n], `COMPUTE`, `COMMUNICATION` or `COPY`
    blocks: Mask  # bool[n], whether the launching call returns only when the operation is over
    # bool[n], whether it is a copy that began long before its call returned, which did not wait
    # for its end: CUDA stages data of pageable memory, and the last part is still on its way then
    begins_in_call: Mask
    is_to_host: Mask  # bool[n], whether it copies to the host's memory
    is_to_device: Mask  # bool[n], whether it copies from the host's memory to a GPU's
    # bool[n], whether something before it was left out on its stream: it is taken to begin when it
    # did, as if nobody had launched it
    is_cut: Mask

    @property
    def length_ns(self) -> Int64:
        """The length of each, int64[n]."""
        return self.end_ns - self.start_ns

    @property
    def follows_return(self) -> Mask:
        """Which operations were handed to the GPU when their calls returned, bool[n]."""
        return (self.call >= 0) & ~self.blocks & ~self.begins_in_call

    def rows_of_kernels(self, index: int, rank: Rank) -> Int64:
        """Return which operation each kernel of a rank is, int64[kernels]; -1 for none of these."""
        rows = np.flatnonzero((self.rank == index) & (self.group == 0))
        row_of = np.full(len(rank.operations.kernels), -1, np.int64)
        row_of[self.place[rows]] = rows
        return row_of


class Recorded(Record, frozen=True):
    """The calls and operations of a process that are replayed."""

    ranks: tuple[tuple[int, Rank], ...]  # each with its index among those of the run
    shift_ns: int  # what was added to times of the report
    begin_ns: int  # when what is replayed begins
    calls: HostCalls
    work: GpuWork

    @property
    def rank(self) -> Rank:
        """One of its ranks, which share calls and threads."""
        return self.ranks[0][1]

    @property
    def api_calls(self) -> ApiCalls:
        """All of its calls; the replay refuses reports without any before."""
        calls = self.rank.calls
        assert calls is not None  # noqa: S101
        return calls

    @property
    def evidence(self) -> HostEvidence:
        """What its threads did."""
        evidence = host_evidence(self.rank)
        assert evidence is not None  # noqa: S101  (there are calls)
        return evidence

    def by_thread(self, call: Int64) -> Iterator[tuple[Int64, ThreadEvidence]]:
        """Yield for each thread which of some calls are its own, and what it did."""
        threads = self.api_calls.packed_thread.at(self.calls.index[call])
        for thread in distinct_values(threads).tolist():
            yield np.flatnonzero(threads == thread), self.evidence.thread(thread)

    @property
    def launching_threads(self) -> Int64:
        """The threads that launch operations, int64[t]."""
        return distinct_values(self.calls.thread[self.work.call[self.work.call >= 0]])

    @property
    def launches(self) -> tuple[Int64, Int64]:
        """Outer calls that launched operations, ascending, and these, int64[launches] each."""
        operation = np.flatnonzero(self.work.call >= 0)
        launch = self.calls.outer[self.work.call[operation]]
        order = np.argsort(launch, kind="stable")
        return launch[order], operation[order]

    @property
    def launched_at(self) -> Int64:
        """Places of the launches in the host's order, int64[operations]; -1 if unknown."""
        call = self.work.call
        return np.where(call >= 0, self.calls.in_time[call], -1)

    @property
    def call_names(self) -> Int64:
        """A number for the name of each call, int64[calls]."""
        return self.api_calls.packed_name.at(self.calls.index)

    @property
    def operation_names(self) -> Int64:
        """A number for the identity of each operation, int64[operations]: kernels by name."""
        work, named = self.work, -1 - self.work.group
        for index, rank in self.ranks:
            rows = np.flatnonzero((work.rank == index) & (work.group == 0))
            named[rows] = rank.operations.kernels.name[work.place[rows]]
        return named

    def calls_of(self, rows: EventRecords | Synchronizations) -> Int64:
        """Return the call of each record, int64[rows]; -1 for none of these."""
        times = rows.start_ns if hasattr(rows, "start_ns") else rows.asked_ns
        return self.calls.place_of(self.api_calls.with_ids(rows.correlation, lambda: times))

    def are_named(self, chosen: Callable[[str], bool]) -> Mask:
        """Return which calls have a name that is chosen, bool[calls]."""
        return self.rank.trace.calls_named(self.api_calls, chosen)[self.calls.index]


_TO_HOST = (CopyKind.DEVICE_TO_HOST, CopyKind.ARRAY_TO_HOST)
_TO_DEVICE = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)
# Of more streams each is taken to have had operations before the steps that are replayed.
_MAX_STREAMS = 64


def recorded(
    ranks: Sequence[tuple[int, Rank]], shift_ns: int = 0, span: tuple[int, int] | None = None
) -> Recorded:
    """Return the calls that begin within a span of the report's time, and what they launched."""
    calls = _host_calls(ranks[0][1], shift_ns, span)
    work = _gpu_work(ranks, calls, shift_ns, span)
    begin_ns = int(calls.start_ns.min(initial=intervals.BEYOND_NS))
    if span is not None:
        begin_ns = span[0] + shift_ns
    return Recorded(tuple(ranks), shift_ns, begin_ns, calls, work)


def _host_calls(rank: Rank, shift_ns: int, span: tuple[int, int] | None) -> HostCalls:
    calls = rank.calls
    assert calls is not None  # noqa: S101  (the replay refuses reports without calls before)
    start = calls.start_ns
    chosen = np.arange(len(start))
    if span is not None:
        chosen = np.flatnonzero((start >= span[0]) & (start < span[1]))
    start, end = start[chosen] + shift_ns, calls.ends(chosen) + shift_ns
    thread = np.unique(calls.thread[chosen], return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((calls.correlation[chosen], -end, start, thread))
    start, end, thread = start[order], end[order], thread[order]
    place = np.arange(len(order))
    is_outer = start >= reached_before(end, thread)
    in_time = np.empty(len(order), np.int64)
    in_time[np.lexsort((thread, -end, start))] = place
    outer = np.maximum.accumulate(np.where(is_outer, place, 0))
    return HostCalls(
        chosen[order], start, end, thread, is_outer, outer, in_time, num_all=len(calls)
    )


def _gpu_work(
    ranks: Sequence[tuple[int, Rank]], calls: HostCalls, shift_ns: int, span: tuple[int, int] | None
) -> GpuWork:
    parts = [
        _of_group(index, rank, number, calls, shift_ns, span)
        for index, rank in ranks
        for number in range(len(rank.operations.groups))
    ]
    work = GpuWork.joined(parts)
    in_time = np.append(calls.in_time, -1)[work.call]
    work = work.chosen(np.lexsort((work.end_ns, work.start_ns, in_time, work.stream, work.rank)))
    begins = np.ones(len(work), np.bool_)
    begins[1:] = (np.diff(work.stream) != 0) | (np.diff(work.rank) != 0)
    call, blocks, start = work.call, work.blocks, work.start_ns
    if span is not None:  # what ran before them on their streams is not known here
        first = np.flatnonzero(begins)
        since_ns = start[first] - shift_ns
        first = first[_are_continued(ranks, work.rank[first], work.stream[first], since_ns)]
        work.is_cut[first] = call[first] >= 0
        call[first], blocks[first] = -1, False
    copies = np.flatnonzero((call >= 0) & (work.kind == COPY) & ~blocks)
    work.begins_in_call[copies] = start[copies] < calls.end_ns[call[copies]] - MIN_BLOCKING_NS
    return replace(work, chain=np.cumsum(begins) - 1)


def _are_continued(
    ranks: Sequence[tuple[int, Rank]], rank_of: Int64, stream: Int64, start_ns: Int64
) -> Mask:
    """Say on which streams something may have run before some time of each, bool[n]."""
    if len(stream) > _MAX_STREAMS:
        return np.ones(len(stream), np.bool_)
    groups = {index: rank.operations.groups for index, rank in ranks}
    first_ns = [
        min(
            int(group.start_ns[int(on_stream.argmax())])
            for group in groups[index]
            if (on_stream := group.packed_stream.isin([number])).any()
        )
        for index, number in zip(rank_of.tolist(), stream.tolist(), strict=True)
    ]
    return np.array(first_ns, np.int64) < start_ns


def _of_group(
    index: int,
    rank: Rank,
    number: int,
    calls: HostCalls,
    shift_ns: int,
    span: tuple[int, int] | None,
) -> GpuWork:
    group, launched_by = rank.operations.groups[number], rank.launched_by[number]
    start, call = group.start_ns, calls.place_of(launched_by)
    place = np.arange(len(group), dtype=np.int64)
    if span is not None:
        inside = call >= 0
        inside |= (launched_by < 0) & (start >= span[0]) & (start < span[1])
        place = np.flatnonzero(inside)  # before more is made: they are few of many
        start, call = start[place], call[place]
    kind = np.full(len(place), COMPUTE, np.int64)
    blocks, to_host, to_device, in_call, is_cut = np.zeros((5, len(place)), np.bool_)
    if number == 0:
        kind[rank.is_communication_kernel[place]] = COMMUNICATION
    elif number in {1, 2}:
        kind[:] = COPY
    if number == 1:
        kind[rank.is_peer_copy[place]] = COMMUNICATION
        blocks = _blocks(rank, launched_by)[place]
        copied = rank.operations.copies.kind[place]
        to_host, to_device = is_in(copied, _TO_HOST), is_in(copied, _TO_DEVICE)
    return GpuWork(
        np.full(len(place), index, np.int64),
        np.full(len(place), number, np.int64),
        place,
        start + shift_ns,
        group.ends(place) + shift_ns,
        group.packed_stream.at(place),
        0 * place,  # numbered once all are there
        call,
        kind,
        blocks,
        in_call,
        to_host,
        to_device,
        is_cut,
    )


def _blocks(rank: Rank, launched_by: Int64) -> Mask:
    """Say which copies hold back the call that makes them until they are over, bool[copies]."""
    copies, calls = rank.operations.copies, rank.calls
    blocks = np.zeros(len(copies), np.bool_)
    known = np.flatnonzero(launched_by >= 0)
    if calls is None or len(known) == 0:
        return blocks
    call = launched_by[known]
    names = rank.trace.api_names
    waiting = [
        key
        for key, name in names.items()
        if api_call_kind(name) is ApiCallKind.COPY and "Async" not in name and "Peer" not in name
    ]
    is_synchronous = is_in(calls.packed_name.at(call), np.array(waiting, np.int64))
    is_on_device = copies.kind == CopyKind.DEVICE_TO_DEVICE
    lasts = calls.packed_length.at(call) > MIN_BLOCKING_NS
    ends_after = calls.ends(call) >= copies.ends(known)
    blocks[known] = (
        (is_synchronous | copies.is_pageable[known]) & ~is_on_device[known] & lasts & ends_after
    )
    return blocks
