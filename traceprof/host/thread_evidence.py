"""Activity of each thread of a process that can explain why a GPU idles.

* set-up: API calls, ranges and calls of libraries by name (`traceprof.host.host_code`),
  captures of graphs, CUDA's records of loading and compiling, and calls of over
  `MIN_FIRST_LAUNCH_NS` that launched a kernel for the first time on its device
* allocation: API calls by name
* MPI: its calls and UCX's, and ranges named like functions of MPI, Gloo and UCX
* data loading: ranges by name
* asleep and awake: `traceprof.host.host_code`; also by operators and functions of Python, and
  awake in ranges of garbage collection and of checkpoints
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host import host_code as names
from traceprof.host.host_code import (
    NamedSpans,
    Sleep,
    code_of_threads,
    functions_named,
    host_ranges,
    joined_markers,
    ranges_named,
    sleep_of,
    spans_named,
)
from traceprof.host.places import silence_of
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.grouping import are_first, distinct_values, is_in
from traceprof.trace.model.host import ApiCalls, HostActivity
from traceprof.trace.model.kinds import BEGIN_CAPTURE, END_CAPTURE, ApiCallKind, api_call_kind
from traceprof.trace.model.operations import Operations, RankKey
from traceprof.trace.model.special_values import NULL

MIN_FIRST_LAUNCH_NS = 1_000_000
"""A function's first launch loads the function if it takes longer than this."""
_FIRST_LAUNCHES = "first launches of kernels"


class ThreadEvidence(Record, frozen=True):
    """Times in which a thread was in MPI, set-up, allocation and data loading, and asleep."""

    thread: int
    mpi: Intervals
    setup: Intervals
    allocation: Intervals
    loading: Intervals
    sleep: Sleep


class HostEvidence:
    """Activity of the threads of a process."""

    def __init__(self, rank: Rank, calls: ApiCalls) -> None:
        """Look through the names of all calls of a rank's process."""
        self.calls = calls
        self.activity: HostActivity = rank.trace.host_activity(rank.process)
        # bool[calls]: which set something up
        self.is_setup = rank.trace.calls_named(calls, names.SETUP_CALL.match)
        is_long = calls.length_ns > MIN_FIRST_LAUNCH_NS
        if is_long.any():
            first = first_launches(rank)
            self.is_setup[first[is_long[first]]] = True
        self._allocates = rank.trace.calls_named(calls, names.ALLOCATION_CALL.match)
        self._captured = [
            np.flatnonzero(rank.trace.calls_named(calls, pattern.match))
            for pattern in (BEGIN_CAPTURE, END_CAPTURE)
        ]
        self._rank, self._trace, self._process = rank, rank.trace, rank.process
        self._threads: dict[int, ThreadEvidence] = {}

    def mpi(self, threads: Collection[int]) -> Iterator[NamedSpans]:
        """Yield when threads were in MPI and the like."""
        yield spans_named(self.activity.mpi_calls, threads)
        yield ranges_named(self._trace, self._process, names.MPI_RANGE, threads)

    def setup(self, threads: Collection[int]) -> Iterator[NamedSpans]:
        """Yield when threads set something up; captures of graphs have no name."""
        calls = self._calls(self.is_setup, threads)
        texts = {
            key: name if names.SETUP_CALL.match(name) else _FIRST_LAUNCHES
            for key, name in calls.names.items()
        }
        yield replace(calls, names=texts)
        yield from map(self._captures, threads)
        yield ranges_named(self._trace, self._process, names.SETUP_RANGE, threads)
        yield spans_named(self.activity.library_calls, threads, names.SETUP_RANGE)
        yield spans_named(self.activity.driver_work, threads, names.SETUP_WORK)
        yield functions_named(self._trace, self._process, names.PYTHON_SETUP, threads)

    def allocation(self, threads: Collection[int]) -> Iterator[NamedSpans]:
        """Yield when threads allocated or freed memory."""
        yield self._calls(self._allocates, threads)

    def loading(self, threads: Collection[int]) -> Iterator[NamedSpans]:
        """Yield when threads waited for data."""
        yield ranges_named(self._trace, self._process, names.DATA_LOADING, threads)
        yield functions_named(self._trace, self._process, names.PYTHON_LOADING, threads)

    def thread(self, thread: int) -> ThreadEvidence:
        """Return the evidence of a thread."""
        if thread not in self._threads:
            mpi, setup, allocation, loading = (
                intervals.merge(*(spans.covered for spans in spans_of([thread])))
                for spans_of in (self.mpi, self.setup, self.allocation, self.loading)
            )
            sleep = self._sleep(thread)
            self._threads[thread] = ThreadEvidence(thread, mpi, setup, allocation, loading, sleep)
        return self._threads[thread]

    def runs(self, threads: tuple[int, ...]) -> Intervals:
        """Return the runs of the calls and ends of ranges of several threads together."""
        rows = np.flatnonzero(self.calls.packed_thread.isin(threads))
        all_ends = host_ranges(self._trace).ends
        ends = [all_ends[thread] for thread in threads if thread in all_ends]
        return joined_markers(
            np.concatenate([self.calls.start_ns.take(rows), *(one.start_ns for one in ends)]),
            np.concatenate([self.calls.ends(rows), *(one.end_ns for one in ends)]),
        )

    def _sleep(self, thread: int) -> Sleep:
        trace, process = self._trace, self._process
        waits = functions_named(trace, process, names.PYTHON_SLEEP, [thread]).covered
        works = intervals.subtract(code_of_threads(trace, process, [thread]), waits)
        known = sleep_of(self.activity, thread)
        awake = intervals.merge(
            known.awake,
            works,
            ranges_named(trace, process, names.HOST_WORK, [thread]).covered,
            silence_of(self._rank, thread),
        )
        return Sleep(intervals.merge(known.asleep, waits), awake)

    def _captures(self, thread: int) -> NamedSpans:
        begin, end = (
            chosen[self.calls.packed_thread.at(chosen) == thread] for chosen in self._captured
        )
        start, stop = np.sort(self.calls.start_ns[begin]), np.sort(self.calls.ends(end))
        place = np.searchsorted(stop, start)
        is_over = place < len(stop)
        return NamedSpans(start[is_over], stop[place[is_over]], 0 * place[is_over], {0: ""})

    def _calls(self, chosen: Mask, threads: Collection[int]) -> NamedSpans:
        calls, rows = self.calls, np.flatnonzero(chosen)
        rows = rows[is_in(calls.packed_thread.at(rows), [*threads])]
        name = calls.packed_name.at(rows)
        api_names = self._trace.api_names
        texts = {key: api_names.get(key, "unnamed call") for key in distinct_values(name).tolist()}
        return NamedSpans(calls.start_ns[rows], calls.ends(rows), name, texts)


def host_evidence(rank: Rank) -> HostEvidence | None:
    """Return the evidence of a rank's process, kept for all ranks of the process.

    None if the report has no API calls.
    """
    return rank.process_cache.get(_evidence, rank)


def launches_of(rank: Rank, key: RankKey, calls: ApiCalls, group: Operations) -> Int64:
    """Return the calls of a process that launched operations on one of its devices, int64[n]."""
    if key == rank.key:
        own = zip(rank.operations.groups, rank.launched_by, strict=True)
        return next(launched_by for operations, launched_by in own if operations is group)
    return calls.that_launched(group)


def calls_of_kind(rank: Rank, calls: ApiCalls, kind: ApiCallKind) -> Mask:
    """Return which calls are of a kind, bool[calls]."""
    return rank.trace.calls_named(calls, lambda name: api_call_kind(name) is kind)


def _evidence(rank: Rank) -> HostEvidence | None:
    return None if rank.calls is None else HostEvidence(rank, rank.calls)


def first_launches(rank: Rank) -> Int64:
    """Calls of a rank's process that launched a kernel for the first time on a device, int64[n]."""
    return rank.process_cache.get(_first_launches, rank)


def _first_launches(rank: Rank) -> Int64:
    calls, groups = rank.calls, [np.empty(0, np.int64)]
    if calls is None:
        return groups[0]
    for key, operations in rank.operations_of_process:
        kernels = operations.kernels
        launched_by = launches_of(rank, key, calls, kernels)
        rows = np.flatnonzero(launched_by >= 0)
        called_ns = calls.start_ns.take(launched_by.take(rows))
        rows = rows[are_first(kernels.packed_signature.at(rows), called_ns)]
        rows = rows[kernels.name[rows] != NULL]
        name, call = kernels.name[rows], launched_by[rows]
        keys = calls.packed_thread.at(call), calls.ends(call), calls.start_ns[call], name
        order = np.lexsort(keys)
        groups.append(call[order[np.diff(name[order], prepend=-1) != 0]])
        if key != rank.key:
            operations.release()
    return np.concatenate(groups)


_MALLOC = re.compile(r"(?:(?:cuda|hip)Malloc|cuMemAlloc)\Z")
_UNCACHED = 0.25
"""Allocations for each launch: a cache of memory needs one in hundreds, none of them later on."""
_MIN_ALLOCATIONS = 20


_LONG_NS = 50_000  # kernels that outlast their launch calls
_MIN_LONG, _NEARLY_ALL = 10, 0.9  # of these, how many calls must wait for them


class CallCounts(Record, frozen=True):
    """Calls of a process in a window."""

    num_allocations: int  # calls of `cudaMalloc`, `cuMemAlloc` or `hipMalloc`
    num_launches: int  # calls that launched kernels
    num_waits: int  # calls in which the host waited for the GPU
    is_hip: bool  # whether the program calls HIP
    # whether launch calls return when their kernels are over, as with CUDA_LAUNCH_BLOCKING=1
    launches_block: bool = False

    @property
    def is_uncached(self) -> bool:
        """Whether the program allocates for most operations anew."""
        least = max(_UNCACHED * self.num_launches, _MIN_ALLOCATIONS)
        return self.num_allocations >= least

    @property
    def waits_for_each(self) -> bool:
        """Whether the host waits for most kernels by themselves."""
        return 2 * self.num_waits >= self.num_launches


def call_counts(rank: Rank, window: Window) -> CallCounts:
    """Count the calls of a rank's process that begin in a window."""
    calls, names = rank.calls, rank.trace.api_names
    if calls is None:
        return CallCounts(0, 0, 0, is_hip=False)
    inside = window.holds_start(calls.start_ns)
    launches, waits = (
        calls_of_kind(rank, calls, kind) for kind in (ApiCallKind.LAUNCH, ApiCallKind.SYNCHRONIZE)
    )
    return CallCounts(
        int(np.count_nonzero(inside & rank.trace.calls_named(calls, _MALLOC.match))),
        int(np.count_nonzero(inside & launches)),
        int(np.count_nonzero(inside & waits)),
        is_hip=any(names[key].startswith("hip") for key in calls.packed_name.distinct.tolist()),
        launches_block=_launches_block(rank, calls, window),
    )


def _launches_block(rank: Rank, calls: ApiCalls, window: Window) -> bool:
    """Whether calls last until their kernels are over: long ones, which are slower than calls."""
    kernels, by = rank.operations.kernels, rank.launched_by[0]
    rows = np.flatnonzero((by >= 0) & (kernels.length_ns >= _LONG_NS))
    rows = rows[window.holds_start(kernels.start_ns[rows])]
    num_blocking = np.count_nonzero(calls.ends(by[rows]) >= kernels.ends(rows))
    return len(rows) >= _MIN_LONG and bool(num_blocking >= _NEARLY_ALL * len(rows))
