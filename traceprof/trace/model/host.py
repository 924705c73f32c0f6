"""Host calls: API calls, waits, event records, blocked launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.structs import Record
from traceprof.trace.columns import Column, PackedSpans, Rows, pack
from traceprof.trace.model.operations import Operations
from traceprof.trace.model.special_values import NULL

# Ids are assigned consecutively, so most of them occur: a lookup table then takes a third of the
# time of a search.
_SPARSE = 8


class ApiCalls(PackedSpans, frozen=True):
    """CUDA API calls of one process, ordered by correlation id, then start.

    A call lasts from its entry to its return; 0 if the capture ended before.
    """

    # n ids, minus 0, 1, 2, …: ids are mostly consecutive, so that the rest is small
    packed_ahead: Column
    packed_thread: Column  # n calling threads
    packed_name: Column  # n keys of `Trace.api_names`
    packed_result: Column  # n numbers of errors of CUDA, 0 for success; NULL if unknown

    @property
    def correlation(self) -> Int64:
        """The ids, int64[n]."""
        return self.packed_ahead.add_to(np.arange(len(self)))

    def that_launched(self, operations: Operations) -> Int64:
        """Return indices of the calls that launched operations, int64[n]; -1 before the capture."""
        if len(operations) == 0:
            return NO_NUMBERS
        return self.with_ids(operations.correlation, lambda: operations.start_ns)

    def with_ids(self, wanted: Int64, times_ns: Callable[[], Int64] | None = None) -> Int64:
        """Index of the call with each of some correlation ids, int64[n]; -1 for none.

        Of several calls with one id it is the last before a time, of those that `times_ns` returns;
        without these the first.
        """
        ids = self.correlation
        if len(ids) == 0:
            return np.full(len(wanted), -1, np.int64)
        if (ids[1:] > ids[:-1]).all():
            return _of_distinct(ids, wanted)
        first = np.searchsorted(ids, wanted, side="left")
        stop = np.searchsorted(ids, wanted, side="right")
        call = np.where(stop > first, first, -1)
        several = NO_NUMBERS if times_ns is None else np.flatnonzero(stop - first > 1)
        times = wanted if times_ns is None or not len(several) else times_ns()
        for index in several.tolist():  # one iteration per id that is not unique
            of_id = self.start_ns[first[index] : stop[index]]
            earlier = np.searchsorted(of_id, times[index], side="right")
            call[index] += max(int(earlier) - 1, 0)
        return call

    def name_id(self, index: int) -> int:
        """Return the key of the name of one call."""
        return int(self.packed_name.at(slice(index, index + 1))[0])

    @property
    def thread(self) -> Int64:
        """The calling threads, int64[n]."""
        return self.packed_thread.values

    @property
    def name(self) -> Int64:
        """The keys of `Trace.api_names`, int64[n]."""
        return self.packed_name.values


def _of_distinct(ids: Int64, wanted: Int64) -> Int64:
    low, high = int(ids[0]), int(ids[-1])
    if high - low > _SPARSE * len(ids):
        first = np.minimum(np.searchsorted(ids, wanted, side="left"), len(ids) - 1)
        return np.where(ids[first] == wanted, first, -1)
    place = np.full(high - low + 3, -1, np.int32)  # the first and the last are for ids outside
    place[ids - (low - 1)] = np.arange(len(ids), dtype=np.int32)
    # The value that stands for NULL is outside, too, even where the difference wraps around.
    return place.take(wanted - (low - 1), mode="clip").astype(np.int64)


class Synchronizations(Record, frozen=True):
    """Synchronizations of one process, ordered by start."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    stream: Int64  # int64[n], the waiting or awaited stream; NULL if there is none
    correlation: Int64  # int64[n], of the API call
    kind: Int64  # int64[n], values of `SynchronizationKind`, by the name of the API call
    event: Int64  # int64[n], the event's id, NULL for none
    recording: Int64  # int64[n], the awaited recording of the event; NULL if unknown
    device: Int64  # int64[n], the CUDA ordinal as the process sees it; NULL if unknown


class EventRecords(Record, frozen=True):
    """Recordings of CUDA events in one process, ordered by the time of the API call."""

    # int64[n], the start of the API call that records the event; NULL, and first, if that call is
    # not in the report
    asked_ns: Int64
    stream: Int64  # int64[n], the stream in which the event is recorded
    event: Int64  # int64[n], the event's id; an event is recorded repeatedly
    recording: Int64  # int64[n], the number of the recording; NULL if unknown
    correlation: Int64  # int64[n], of the API call
    device: Int64  # int64[n], the CUDA ordinal as the process sees it; NULL if unknown

    def __len__(self) -> int:
        return len(self.event)


class LaunchStalls(Record, frozen=True):
    """CUPTI's records of a full command buffer in one process, ordered by start."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    thread: Int64  # int64[n], the blocked thread
    correlation: Int64  # int64[n], of the blocked API call


NO_API_CALLS = ApiCalls(*[pack(NO_NUMBERS)] * 6)
NO_SYNCHRONIZATIONS = Synchronizations(*[NO_NUMBERS] * 8)
NO_EVENT_RECORDS = EventRecords(*[NO_NUMBERS] * 6)
NO_LAUNCH_STALLS = LaunchStalls(*[NO_NUMBERS] * 4)


WOKE_NS = 50_000
"""A thread that wakes another one may go to sleep so long before that one runs."""


class ThreadSpans(Rows, frozen=True):
    """Named spans of a process's threads, ordered by start, then end."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n], not before the start; the largest int64 if it never ended
    thread: Int64  # int64[n]
    name: Int64  # int64[n], indices into `names`
    names: tuple[str, ...]  # empty for spans without a name


class ThreadSwitches(Rows, frozen=True):
    """Context switches of a process's threads, off the CPU and on it.

    Ordered by thread, then time; of two at the same time the one off the CPU comes first.
    """

    time_ns: Int64  # int64[n]
    thread: Int64  # int64[n]
    is_on: Mask  # bool[n], whether the thread runs from then on

    def sleeps(self) -> tuple[Int64, Int64]:
        """Return the starts and ends of the times off the CPU; all switches are of one thread.

        Two such times may touch.
        """
        on, off = self.time_ns[self.is_on], self.time_ns[~self.is_on]
        before, last = np.searchsorted(off, on) - 1, np.searchsorted(on, on) - 1
        known = before >= 0
        both = known & (last >= 0)
        known[both] = off[before[both]] >= on[last[both]]
        return off[before[known]], on[known]

    def ran_before(self, times_ns: Int64) -> Mask:
        """Return whether the one thread was on a CPU directly before these times, bool[n]."""
        at = np.searchsorted(self.time_ns, times_ns) - 1
        return (at >= 0) & (self.is_on[at] | (times_ns - self.time_ns[at] <= WOKE_NS))


class ThreadSamples(Rows, frozen=True):
    """Samples of the functions in which threads of a process ran, ordered by time."""

    time_ns: Int64  # int64[n]
    thread: Int64  # int64[n]
    function: Int64  # int64[n], the innermost one, indices into `names`
    names: tuple[str, ...]  # of functions


class HostActivity(Record, frozen=True):
    """Activity of those threads of a process that call CUDA."""

    switches: ThreadSwitches  # on and off the CPU
    # calls of the operating system and its threading library, such as `read` and
    # `pthread_cond_wait`
    system_calls: ThreadSpans
    mpi_calls: ThreadSpans  # calls of MPI, and of UCX below it
    library_calls: ThreadSpans  # calls of cuBLAS and cuDNN
    driver_work: ThreadSpans  # CUDA's own work inside calls, such as `Lazy Function Loading`


NO_SPANS = ThreadSpans(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, ())
NO_SWITCHES = ThreadSwitches(NO_NUMBERS, NO_NUMBERS, np.empty(0, np.bool_))
NO_SAMPLES = ThreadSamples(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, ())
NO_ACTIVITY = HostActivity(NO_SWITCHES, NO_SPANS, NO_SPANS, NO_SPANS, NO_SPANS)


class HostCode(PackedSpans, frozen=True):
    """Operators, or functions of Python, of one process, ordered by start."""

    packed_thread: Column  # n threads
    packed_name: Column  # n indices into `names`
    # n ids that join an operator with the calls and GPU operations inside it, NULL for none; None
    # for functions of Python
    external: Column | None
    # n numbers that join operators of the forward with those of the backward, NULL for none; None
    # for functions of Python
    sequence: Column | None
    packed_work: Column | None  # n indices into `work`; None for functions of Python
    # int64[m, 3], multiplications and additions by the operator's formula, NULL if it has none or
    # its shapes are not known; and the bytes that it moves at least, and those of them that it
    # reads, negative where that is unknown
    work: Int64
    names: Sequence[str]  # the names of the whole trace

    def work_of(self, index: Int64 | slice) -> Int64:
        """Return the work of some operators, int64[3, k], as in `work`; unknown for functions."""
        if self.packed_work is None:
            return np.full((3, len(self.starts.at(index))), NULL)
        return self.work[self.packed_work.at(index)].T
