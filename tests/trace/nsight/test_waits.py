"""Waits and event records of real exports, against a second computation in plain Python."""

from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.reference.nsight_export import export_of
from tests.support.selection import as_rows, known
from traceprof.trace.model.kinds import SynchronizationKind
from traceprof.trace.model.special_values import NULL
from traceprof.trace.open import open_trace

WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
BEFORE = -(1 << 62)
KINDS = {
    "cudaEventSynchronize": SynchronizationKind.HOST_FOR_EVENT,
    "cuEventSynchronize": SynchronizationKind.HOST_FOR_EVENT,
    "cudaStreamWaitEvent": SynchronizationKind.STREAM_FOR_EVENT,
    "cuStreamWaitEvent": SynchronizationKind.STREAM_FOR_EVENT,
    "cudaStreamSynchronize": SynchronizationKind.HOST_FOR_STREAM,
    "cuStreamSynchronize": SynchronizationKind.HOST_FOR_STREAM,
    "cudaDeviceSynchronize": SynchronizationKind.HOST_FOR_DEVICE,
    "cuCtxSynchronize": SynchronizationKind.HOST_FOR_DEVICE,
}


def ids_or_null(*numbers: int | None) -> list[int | None]:
    return [NULL if number in (None, 0xFFFFFFFF) else number for number in numbers]


def test_waits_are_told_by_the_names_of_calls(real_trace: Path) -> None:
    export, expected = export_of(real_trace), defaultdict[int, list[Any]](list)
    columns = "globalPid", "start", "end", "correlationId", "streamId", "eventId"
    for process, start, end, id_, *ids in export.rows(WAITS, *columns):
        call = export.call_of(process, id_, start)
        kind = SynchronizationKind.UNKNOWN if call is None else KINDS.get(call.name, 0)
        expected[process].append((start, max(start, end), id_, int(kind), *ids_or_null(*ids)))
    with closing(open_trace(real_trace)) as trace:
        for process, rows in expected.items():
            waits = known(trace.synchronizations(process))
            of_call = waits.start_ns, waits.end_ns, waits.correlation, waits.kind
            assert sorted(as_rows(*of_call, waits.stream, waits.event)) == sorted(rows)
            assert (waits.start_ns[1:] >= waits.start_ns[:-1]).all()
        if WAITS not in export.tables:
            assert trace.synchronizations(1) is None


def test_event_records_have_the_times_of_their_calls(real_trace: Path) -> None:
    export, expected = export_of(real_trace), defaultdict[int, list[Any]](list)
    columns = "globalPid", "correlationId", "streamId", "eventId", "eventSyncId"
    for process, id_, *ids in export.rows(RECORDS, *columns):
        call = export.call_of(process, id_, BEFORE)
        asked = NULL if call is None else call.start
        expected[process].append((asked, id_, *ids_or_null(*ids)))
    with closing(open_trace(real_trace)) as trace:
        for process, rows in expected.items():
            records = known(trace.event_records(process))
            of_call = records.asked_ns, records.correlation
            of_event = records.stream, records.event, records.recording
            assert sorted(as_rows(*of_call, *of_event)) == sorted(rows)
            assert (records.asked_ns[1:] >= records.asked_ns[:-1]).all()
        if RECORDS not in export.tables:
            assert trace.event_records(1) is None
