"""Activity of threads outside of CUDA: sleep, and calls of MPI, the system and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask


WOKE_NS = 50_000
"""A thread that wakes another one may go to sleep so long before that one runs."""


class ThreadSpans(Record, frozen=True):
    """Named spans of a process's threads, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], not before the start; the largest int64 if it never ended.
        thread: int64[n].
        name: int64[n], indices into `names`.
        names: empty for spans without a name.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def chosen(self, chosen: Mask) -> ThreadSpans:
        """Return some of the spans, bool[n]."""
        return ThreadSpans(
            self.start_ns[chosen],
            self.end_ns[chosen],
            self.thread[chosen],
            self.name[chosen],
            self.names,
        )


class ThreadSwitches(Record, frozen=True):
    """Context switches of a process's threads, off the CPU and on it.

    Ordered by thread, then time; of two at the same time the one off the CPU comes first.

    Attributes:
        time_ns: int64[n].
        thread: int64[n].
        is_on: bool[n], whether the thread runs from then on.
    """

    time_ns: Int64
    thread: Int64
    is_on: Mask

    def chosen(self, chosen: Mask) -> ThreadSwitches:
        """Return some of the switches, bool[n]."""
        return ThreadSwitches(self.time_ns[chosen], self.thread[chosen], self.is_on[chosen])

    def sleeps(self) -> tuple[Int64, Int64]:
        """Return the starts and ends of the times off the CPU; all switches are of one thread.

        Two such times may touch.
        """
        on, off = self.time_ns[self.is_on], self.time_ns[~self.is_on]
        before, last = np.searchsorted(off, on) - 1, np.searchsorted(on, on) - 1
        known = before >= 0
        known[last >= 0] &= off[before[last >= 0]] >= on[last[last >= 0]]
        return off[before[known]], on[known]

    def ran_before(self, times_ns: Int64) -> Mask:
        """Return whether the one thread was on a CPU directly before these times, bool[n]."""
        at = np.searchsorted(self.time_ns, times_ns) - 1
        return (at >= 0) & (self.is_on[at] | (times_ns - self.time_ns[at] <= WOKE_NS))


class ThreadSamples(Record, frozen=True):
    """Samples of the functions in which threads of a process ran, ordered by time.

    Attributes:
        time_ns: int64[n].
        thread: int64[n].
        function: int64[n], the innermost one, indices into `names`.
        names: of functions.
    """

    time_ns: Int64
    thread: Int64
    function: Int64
    names: tuple[str, ...]

    def chosen(self, chosen: Mask) -> ThreadSamples:
        """Return some of the samples, bool[n]."""
        return ThreadSamples(
            self.time_ns[chosen], self.thread[chosen], self.function[chosen], self.names
        )


class HostActivity(Record, frozen=True):
    """Activity of those threads of a process that call CUDA.

    Attributes:
        switches: on and off the CPU.
        system_calls: calls of the operating system and its threading library, such as `read` and
            `pthread_cond_wait`.
        mpi_calls: calls of MPI, and of UCX below it.
        library_calls: calls of cuBLAS and cuDNN.
        driver_work: CUDA's own work inside calls, such as `Lazy Function Loading`.
    """

    switches: ThreadSwitches
    system_calls: ThreadSpans
    mpi_calls: ThreadSpans
    library_calls: ThreadSpans
    driver_work: ThreadSpans


_NOTHING = np.empty(0, np.int64)
NO_SPANS = ThreadSpans(_NOTHING, _NOTHING, _NOTHING, _NOTHING, ())
NO_SWITCHES = ThreadSwitches(_NOTHING, _NOTHING, np.empty(0, np.bool_))
NO_SAMPLES = ThreadSamples(_NOTHING, _NOTHING, _NOTHING, ())
NO_ACTIVITY = HostActivity(NO_SWITCHES, NO_SPANS, NO_SPANS, NO_SPANS, NO_SPANS)
