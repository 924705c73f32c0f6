"""Host calls: API calls, waits, event records, blocked launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.columns import pack
from traceprof.trace.model.packed_spans import PackedSpans

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column


class ApiCalls(PackedSpans, frozen=True):
    """CUDA API calls of one process, ordered by correlation id, then start.

    A call lasts from its entry to its return; 0 if the capture ended before.

    Attributes:
        packed_ahead: n ids, minus 0, 1, 2, …: ids are mostly consecutive, so that the rest is
            small.
        packed_thread: n calling threads.
        packed_name: n keys of `Trace.api_names`.
    """

    packed_ahead: Column
    packed_thread: Column
    packed_name: Column

    @property
    def correlation(self) -> Int64:
        """The ids, int64[n]."""
        return self.packed_ahead.add_to(np.arange(len(self)))

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


class Synchronizations(Record, frozen=True):
    """Synchronizations of one process, ordered by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        stream: int64[n], the waiting or awaited stream; NULL if there is none.
        correlation: int64[n], of the API call.
        kind: int64[n], values of `SynchronizationKind`, by the name of the API call.
        event: int64[n], the event's id, NULL for none.
        recording: int64[n], the awaited recording of the event; NULL if unknown.
        device: int64[n], the CUDA ordinal as the process sees it; NULL if unknown.
    """

    start_ns: Int64
    end_ns: Int64
    stream: Int64
    correlation: Int64
    kind: Int64
    event: Int64
    recording: Int64
    device: Int64


class EventRecords(Record, frozen=True):
    """Recordings of CUDA events in one process, ordered by the time of the API call.

    Attributes:
        asked_ns: int64[n], the start of the API call that records the event; NULL, and first, if
            that call is not in the report.
        stream: int64[n], the stream in which the event is recorded.
        event: int64[n], the event's id; an event is recorded repeatedly.
        recording: int64[n], the number of the recording; NULL if unknown.
        correlation: int64[n], of the API call.
        device: int64[n], the CUDA ordinal as the process sees it; NULL if unknown.
    """

    asked_ns: Int64
    stream: Int64
    event: Int64
    recording: Int64
    correlation: Int64
    device: Int64

    def __len__(self) -> int:
        return len(self.event)


class LaunchStalls(Record, frozen=True):
    """CUPTI's records of a full command buffer in one process, ordered by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        thread: int64[n], the blocked thread.
        correlation: int64[n], of the blocked API call.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    correlation: Int64


_NOTHING = np.empty(0, np.int64)
NO_API_CALLS = ApiCalls(*[pack(_NOTHING)] * 5)
NO_SYNCHRONIZATIONS = Synchronizations(*[_NOTHING] * 8)
NO_EVENT_RECORDS = EventRecords(*[_NOTHING] * 6)
NO_LAUNCH_STALLS = LaunchStalls(*[_NOTHING] * 4)
