"""A report that is replaced or written to while it is read: all of one, or an error; no mixture."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.databases import refuse
from traceprof import open_trace
from traceprof.errors import TraceFormatError
from traceprof.execution import measuring, workers
from traceprof.execution.measuring import Task, measure_file
from traceprof.execution.options import Options
from traceprof.run.summary import FailedReport
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import Database


def export(path: Path, num_ranks: int) -> Path:
    builder = TraceBuilder()
    for rank in range(num_ranks):
        pid = 1000 * num_ranks + rank
        builder.kernel(0, 100, pid=pid, device=rank)
        builder.kernel(50, 150, NCCL, stream=20, pid=pid, device=rank)
        builder.nvtx("step 0", 0, 200, pid=pid)
    return builder.write(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return export(tmp_path / "t.sqlite", 2)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return export(tmp_path / "other.sqlite", 8)


def write_over(other: Path, path: Path) -> None:
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(0, 0))  # another time of change than before, however coarse the clock is


@pytest.mark.parametrize("is_before_reading", [False, True])
def test_replaced_is_read_as_it_was_opened(
    path: Path, other: Path, monkeypatch: pytest.MonkeyPatch, is_before_reading: bool
) -> None:
    def replace_before(read: Callable[..., object]) -> Callable[..., object]:
        def replacing(*args: object) -> object:
            if other.exists():
                other.replace(path)
            return read(*args)

        return replacing

    monkeypatch.setattr(workers, "MIN_OPERATIONS_OF_A_PROCESS", 1)
    monkeypatch.setattr(workers, "can_fork", lambda: sys.platform == "linux")
    place, name = (NsightTrace, "load") if is_before_reading else (measuring, "measure")
    monkeypatch.setattr(place, name, replace_before(getattr(place, name)))
    measured = measure_file(Task(path, path, Options()), 3)
    assert not isinstance(measured, FailedReport), measured.error
    assert sorted(rank.facts.pid for rank in measured.ranks) == [2000, 2001]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_replaced_is_read_as_it_was_opened_through_sqlite(
    path: Path, other: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    monkeypatch.setattr(reader, "decode_columns", refuse)
    trace = open_trace(path)
    if is_deleted:
        path.unlink()
    else:
        other.replace(path)
    assert sorted(trace.pid(key.process) for key in trace.operations) == [2000, 2001]
    trace.close()


def test_written_to_is_an_error(path: Path, other: Path) -> None:
    trace = open_trace(path)
    _ = trace.operations
    write_over(other, path)
    with pytest.raises(TraceFormatError, match=r"changed while it was read: .*; wait until"):
        _ = trace.thread_names, trace.counters
    trace.close()


def test_written_to_between_rows_is_an_error(path: Path) -> None:
    database = Database(path)
    chunks = reader.read_columns(database, schema.KERNEL.name, ["start", "end"])
    os.utime(path, ns=(0, 0))
    with pytest.raises(TraceFormatError, match="another process wrote to it"):
        next(chunks)
    database.close()


def test_emptied_after_sqlite_let_go_of_its_pages_is_an_error(path: Path) -> None:
    database = Database(path)
    database.shrink()
    path.write_bytes(b"")
    with pytest.raises(TraceFormatError, match="another process wrote to it"):
        next(reader.read_columns(database, schema.KERNEL.name, ["start", "end"]))
    database.close()


def test_a_connection_is_made_again_while_the_file_is_in_its_place(path: Path, other: Path) -> None:
    database = Database(path)
    first = database.rows(schema.KERNEL.name, {"start": int})
    for _ in range(2):
        database.disconnect()
    assert database.rows(schema.KERNEL.name, {"start": int}) == first
    database.disconnect()
    other.replace(path)
    with pytest.raises(TraceFormatError, match="another file has taken its name"):
        database.rows(schema.KERNEL.name, {"start": int})
    database.close()


def test_a_connection_stays_while_it_is_read(path: Path) -> None:
    """SQLite may crash if one thread closes what another one reads."""
    database = Database(path)
    with database.damage_reported():
        cursor = database.connection.execute("SELECT name FROM sqlite_master")
        database.disconnect()
        assert len(cursor.fetchall()) > 0
    database.close()


def num_open() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_what_is_closed_or_unloaded_stays_so(path: Path) -> None:
    before, trace = num_open(), open_trace(path)
    trace.unload()
    unloaded = num_open()
    trace.release()
    trace.reopen()
    assert num_open() == unloaded
    trace.close()
    trace.release()
    assert num_open() == before


def test_descriptors_of_refused_files_are_closed(path: Path, tmp_path: Path) -> None:
    before = num_open()
    (tmp_path / "bad.sqlite").write_bytes(path.read_bytes()[:5000])
    for _ in range(3):
        with pytest.raises(TraceFormatError):
            open_trace(tmp_path / "bad.sqlite")
    assert num_open() == before
