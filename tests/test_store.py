"""A store keeps what was saved: all of a run or nothing, whoever else writes."""

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.databases import change
from tests.support.selection import long_after
from tests.support.traces import result_of
from tests.support.workers import MAX_WAIT_S
from traceprof import store as store_module
from traceprof.analysis import RunResult
from traceprof.documents.analysis.records import document
from traceprof.errors import TraceFileError, UsageError
from traceprof.reports import json as json_report
from traceprof.store import LISTS, check, load, save, stored_runs, with_numbers

SAMPLES = Path(__file__).parents[1] / "sample_traces"
DDP = SAMPLES / "ddp.sqlite"


@pytest.fixture(scope="module")
def result() -> RunResult:
    return result_of(DDP)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return number


@pytest.mark.parametrize(
    "sample", long_after(2, ["link-counters", "gloo", "ddp", "late-allreduce"])
)
def test_a_run_comes_back_as_its_document(sample: str, path: Path) -> None:
    result = result_of(SAMPLES / f"{sample}.sqlite")
    assert save(path, result) == sample
    assert load(path, sample) == json.loads(json_report.render(result))


def test_tables_hold_the_rows_of_the_document(result: RunResult, path: Path) -> None:
    name = save(path, result)
    written = json.loads(json_report.render(result))
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        for table in LISTS:
            rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
            assert written[table], table
            assert len(rows) == len(written[table])
            for row, record in zip(rows, written[table], strict=True):
                assert row.pop("run") == 1
                in_store = {
                    key: json.dumps(value) if isinstance(value, list | dict) else value
                    for key, value in record.items()
                }
                if table == "findings":
                    in_store |= {"in_phase": None}  # of a program with phases
                if table == "ranks":
                    in_store |= {"host": "simulated", "gpu_id": row["gpu_id"]}
                assert row == in_store
        [run] = connection.execute("SELECT * FROM runs")
        assert run["name"] == name == "ddp"


def test_a_run_is_listed_with_what_tells_it_from_others(result: RunResult, path: Path) -> None:
    save(path, result, "first", {"commit": "1a2b3c4", "batch": "64"})
    save(path, result, "second")
    first, second = stored_runs(path)
    assert (first.name, first.git_commit) == ("first", "1a2b3c4")
    assert first.labels == {"commit": "1a2b3c4", "batch": "64"}
    assert (second.name, second.git_commit, second.labels) == ("second", None, {})
    assert (first.hosts, first.num_ranks) == (("simulated",), 2)
    assert first.recorded_utc == "2026-01-01T00:00:00Z"
    headline = document(result).headline
    assert (first.step_ns, first.median_step_ns) == (headline.step_ns, headline.median_step_ns)


def test_a_name_stands_once(result: RunResult, path: Path) -> None:
    assert [save(path, result) for _ in range(3)] == ["ddp", "ddp-2", "ddp-3"]
    with pytest.raises(UsageError, match="a run named 'ddp' already"):
        save(path, result, "ddp")
    with pytest.raises(UsageError, match="a run named 'ddp' already"):
        check(path, "ddp")
    assert len(stored_runs(path)) == count(path, "documents") == 3


@pytest.mark.parametrize("name", ["", " ", "a#b", "a\nb", "\udcff"])
def test_a_name_can_be_written_behind_the_store(name: str, result: RunResult, path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        save(path, result, name)
    assert not path.exists()


def test_a_name_that_is_not_there_is_told_with_those_that_are(
    result: RunResult, path: Path
) -> None:
    save(path, result, "baseline")
    with pytest.raises(UsageError, match="choose one of baseline"):
        load(path, "after")


def test_nothing_else_is_written_to(result: RunResult, tmp_path: Path) -> None:
    trace = tmp_path / "report.sqlite"
    trace.write_bytes(DDP.read_bytes())
    text = tmp_path / "notes.txt"
    text.write_text("no database, but longer than the head of one\n" * 20)
    for file in (trace, text):
        before = file.read_bytes()
        for refused in (lambda file=file: save(file, result), lambda file=file: check(file)):
            with pytest.raises(UsageError):
                refused()
        with pytest.raises(UsageError):
            stored_runs(file)
        assert file.read_bytes() == before
    with pytest.raises(UsageError, match="folder"):
        check(tmp_path / "nowhere" / "runs.db")
    with pytest.raises(TraceFileError, match="no such file"):
        load(tmp_path / "nothing.db", "x")


def test_a_newer_store_is_left_alone(result: RunResult, path: Path) -> None:
    save(path, result)
    change(path, "PRAGMA user_version = 999")
    for refused in (lambda: save(path, result), lambda: check(path), lambda: stored_runs(path)):
        with pytest.raises(UsageError, match="newer traceprof"):
            refused()
    assert count(path, "runs") == 1


def test_an_older_store_gets_the_columns_that_came(result: RunResult, path: Path) -> None:
    save(path, result, "old")
    change(path, "DROP VIEW kernels")
    change(path, "ALTER TABLE rank_kernels DROP COLUMN per_step_ns")
    change(path, "ALTER TABLE steps DROP COLUMN idle_ns")
    assert load(path, "old")  # reading changes nothing
    save(path, result, "new")
    with closing(sqlite3.connect(path)) as connection:
        for table, column in (("steps", "idle_ns"), ("kernels", "per_step_ns")):
            query = f"SELECT count({column}), count(*) FROM {table} WHERE run = ?"
            known, rows = connection.execute(query, [1]).fetchone()
            assert (known, rows > 0) == (0, True)
            known, rows = connection.execute(query, [2]).fetchone()
            assert known == rows > 0


def test_an_error_on_the_way_leaves_no_half_run(
    result: RunResult, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, result, "whole")

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store_module, "with_numbers", fail)  # when half of it is written
    with pytest.raises(UsageError):
        save(path, result, "half")
    assert [run.name for run in stored_runs(path)] == ["whole"]
    assert count(path, "documents") == 1
    assert count(path, "steps") == len(document(result).steps)


def save_and_die(result: RunResult, path: Path) -> None:
    """Save a run in a process that is killed in the middle of writing."""

    def kill(store: Any, kernels: Any) -> None:
        store.execute("PRAGMA cache_spill = 1")
        store.execute("PRAGMA cache_size = 1")  # what was inserted so far is in the file
        with_numbers(store, kernels)
        os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(store_module, "with_numbers", kill)
    save(path, result, "half")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing else
@pytest.mark.parametrize("is_new", long_after(1, [True, False]))
def test_a_killed_writer_leaves_no_half_run(result: RunResult, path: Path, is_new: bool) -> None:
    if not is_new:
        save(path, result, "whole")
    process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(result, path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.with_name("runs.db-journal").exists()  # it was in the middle of writing
    if not is_new:
        assert [run.name for run in stored_runs(path)] == ["whole"]
    save(path, result, "next")
    names = ["next"] if is_new else ["whole", "next"]
    assert [run.name for run in stored_runs(path)] == names
    assert count(path, "documents") == count(path, "reports") == len(names)


_WRITER = """
import sys, time
from traceprof.analysis import analyze_reports
from traceprof.store import save
result = analyze_reports([sys.argv[1]])
time.sleep(max(0, float(sys.argv[3]) - time.time()))
for _ in range(5):
    save(sys.argv[2], result)
"""


@pytest.mark.long
@pytest.mark.slow
def test_writers_wait_for_each_other(path: Path, result: RunResult) -> None:
    arguments = [sys.executable, "-c", _WRITER, str(DDP), str(path), str(time.time() + 3)]
    writers = [subprocess.Popen(arguments) for _ in range(3)]
    assert [writer.wait(MAX_WAIT_S) for writer in writers] == [0, 0, 0]
    runs = stored_runs(path)
    assert sorted(run.name for run in runs) == sorted(["ddp", *(f"ddp-{i}" for i in range(2, 16))])
    assert count(path, "steps") == 15 * len(document(result).steps)


def test_a_store_that_may_only_be_read_is_read(result: RunResult, path: Path) -> None:
    save(path, result)
    path.chmod(0o444)
    assert len(stored_runs(path)) == 1
    if os.geteuid():  # root may write whatever the mode
        with pytest.raises(UsageError, match="cannot be written"):
            check(path)


@pytest.mark.long
def test_many_ranks_take_little(
    result: RunResult, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, num = document(result), 256

    def of_all(records: list[msgspec.Struct]) -> list[msgspec.Struct]:
        return [
            msgspec.structs.replace(record, rank=2 * turn + getattr(record, "rank"))  # noqa: B009
            for turn in range(num)
            for record in records
        ]

    lists = ("ranks", "breakdown", "training", "steps", "links", "collectives", "kernels")
    for name in (*lists, "findings"):
        setattr(made, name, of_all(getattr(made, name)))
    made.run.ranks = of_all(made.run.ranks)  # type: ignore[arg-type,assignment]
    monkeypatch.setattr(store_module, "document", lambda _: made)
    before = time.process_time()
    save(path, result, "many")
    assert time.process_time() - before < 20  # of all threads, on a busy machine
    assert count(path, "ranks") == 512
    assert path.stat().st_size < 20e6
