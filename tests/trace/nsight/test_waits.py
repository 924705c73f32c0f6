"""Waits and event records of real exports, against a second computation in plain Python."""

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.selection import as_rows, known
from traceprof.trace.model.kinds import SynchronizationKind
from traceprof.trace.model.special_values import NULL
from traceprof.trace.open import open_trace

WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
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


class Export:
    def __init__(self, path: Path) -> None:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            database.row_factory = sqlite3.Row
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            self.has_waits, self.has_records = WAITS in tables, RECORDS in tables
            names = dict(map(tuple, database.execute("SELECT id, value FROM StringIds")))
            self.calls: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
            for row in database.execute(f"SELECT * FROM {CALLS}") if CALLS in tables else ():
                if row["globalTid"] is not None and row["correlationId"] is not None:
                    name = re.sub(r"_v\d+(_pt[sd][sz])?$", "", names.get(row["nameId"], ""))
                    key = row["globalTid"] & ~0xFFFFFF, row["correlationId"]
                    self.calls[key].append((row["start"], name))
            self.waits = self._rows(database, WAITS) if self.has_waits else {}
            self.records = self._rows(database, RECORDS) if self.has_records else {}

    @staticmethod
    def _rows(database: sqlite3.Connection, table: str) -> dict[int, list[dict[str, Any]]]:
        rows = defaultdict(list)
        for row in database.execute(f"SELECT * FROM {table}"):
            rows[row["globalPid"]].append(dict(row))
        return rows


def id_or_null(number: int | None) -> int:
    return NULL if number in (None, 0xFFFFFFFF) else number


def test_waits_are_told_by_the_names_of_calls(real_trace: Path) -> None:
    export = Export(real_trace)
    with closing(open_trace(real_trace)) as trace:
        for process, rows in export.waits.items():
            expected = []
            for row in rows:
                calls = export.calls.get((process, row["correlationId"]), [])
                assert len(calls) <= 1  # else this computation does not say which
                kind = KINDS.get(calls[0][1], 0) if calls else SynchronizationKind.UNKNOWN
                times = row["start"], max(row["start"], row["end"])
                ids = id_or_null(row["streamId"]), id_or_null(row["eventId"])
                expected.append((*times, row["correlationId"], int(kind), *ids))
            waits = known(trace.synchronizations(process))
            columns = waits.start_ns, waits.end_ns, waits.correlation, waits.kind
            found = as_rows(*columns, waits.stream, waits.event)
            assert sorted(found) == sorted(expected)
            assert (waits.start_ns[1:] >= waits.start_ns[:-1]).all()
        if not export.has_waits:
            assert trace.synchronizations(1) is None


def test_event_records_have_the_times_of_their_calls(real_trace: Path) -> None:
    export = Export(real_trace)
    with closing(open_trace(real_trace)) as trace:
        for process, rows in export.records.items():
            expected = []
            for row in rows:
                calls = export.calls.get((process, row["correlationId"]), [])
                assert len(calls) <= 1
                asked = calls[0][0] if calls else NULL
                ids = map(row.get, ("streamId", "eventId", "eventSyncId"))
                expected.append((asked, row["correlationId"], *map(id_or_null, ids)))
            records = known(trace.event_records(process))
            columns = records.asked_ns, records.correlation, records.stream, records.event
            found = as_rows(*columns, records.recording)
            assert sorted(found) == sorted(expected)
            assert (records.asked_ns[1:] >= records.asked_ns[:-1]).all()
        if not export.has_records:
            assert trace.event_records(1) is None
