"""Odd exports that are good: read to the last number, and nothing is written beside them."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_traces.simulator import nsight_writer
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder, global_pid, global_tid
from tests.support.commands import EVENTS, SMALL_TABLES, alter, attempt, everything
from tests.support.databases import refuse
from tests.support.selection import long_after
from tests.support.workers import RowCount
from traceprof import open_trace
from traceprof.trace.model.special_values import MAX_BYTES, MAX_SUM_NS, NULL
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import Database, quote
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.pages import Unsupported
from traceprof.trace.sqlite.read_columns import read_columns
from traceprof.trace.sqlite.records import Chunk, Layout, decode_columns

KERNEL, MEMCPY = schema.KERNEL.name, schema.MEMCPY.name
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


def numbers(path: Path) -> dict[str, Any]:
    """Return what was measured, and nothing of what the file is called."""
    document = attempt(path).document
    return {name: value for name, value in document.items() if name != "reports"}


def whole(path: Path) -> dict[str, int]:
    """Return the breakdown of the only rank."""
    (breakdown,) = attempt(path).document["breakdown"]
    return {name: value for name, value in breakdown.items() if value}


def notes(path: Path) -> list[str]:
    return [note["note"] for note in attempt(path).document["notes"]]


# -- rows -----------------------------------------------------------------------------------------


def of_three(path: Path) -> Path:
    """Write an export whose three kernels have the rowids 1, 2 and 3."""
    return TraceBuilder().kernel(0, 10).kernel(20, 40, NCCL).kernel(30, 90).write(path)


@pytest.fixture(scope="module")
def whole_export(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    path = everything().write(tmp_path_factory.mktemp("everything") / "t.sqlite")
    return path.read_bytes(), numbers(path)


@pytest.fixture
def expected(path: Path, whole_export: tuple[bytes, dict[str, Any]]) -> dict[str, Any]:
    """Write what `everything` does; return its numbers."""
    path.write_bytes(whole_export[0])
    return whole_export[1]


def _made_anew(table: str, columns: str, of: str = "") -> list[str]:
    """Return statements by which a table has other columns, or none of its constraints."""
    create = f"({columns})" if columns else f"AS SELECT * FROM {table}"
    fill = f"INSERT INTO copy SELECT {of} FROM {table}"
    drop = f"DROP TABLE {table}", f"ALTER TABLE copy RENAME TO {table}"
    return [f"CREATE TABLE copy {create}", *([fill] if columns else []), *drop]


SAME = {
    **{
        f"rowids {', '.join(map(str, rowids))}": [
            f"UPDATE {KERNEL} SET rowid = rowid * 1000",
            *(
                f"UPDATE {KERNEL} SET rowid = {new} WHERE rowid = {number}000"
                for number, new in enumerate(rowids, 1)
            ),
        ]
        for rowids in ((-3, -2, -1), (-5, 0, 5), (7, 1 << 40, 1 << 62), (LEAST, 0, GREATEST))
    },
    **{
        f"columns {', '.join(names)}": [
            f"ALTER TABLE {KERNEL} ADD COLUMN {name} DEFAULT 1" for name in names
        ]
        for names in (("rowid",), ("ROWID", "_rowid_"), ("oid", "rowid", "row_"))
    },
    # Closing the last connection removes the -wal and leaves the mode in the header.
    "WAL mode": ["PRAGMA journal_mode = WAL", "PRAGMA user_version = 1"],
    "no index of strings": _made_anew(schema.STRINGS, ""),
    **{
        f"pages of {size} bytes": [f"PRAGMA page_size = {size}", "PRAGMA auto_vacuum = 1", "VACUUM"]
        for size in (512, 1024, 65536)
    },
    "what others added": [
        f"CREATE INDEX by_start ON {KERNEL} (start)",
        f"CREATE VIEW durations AS SELECT end - start FROM {KERNEL}",
        "CREATE VIEW broken AS SELECT no FROM such_table",
        'CREATE TABLE "a""b\nc" ("d\n""e")',
        f"CREATE TRIGGER t AFTER INSERT ON {KERNEL} BEGIN SELECT RAISE(FAIL, 'no'); END",
        f"ALTER TABLE {KERNEL} ADD COLUMN duration AS (end - start)",
        "CREATE TABLE keyed (id INTEGER PRIMARY KEY, t TEXT) WITHOUT ROWID",
        "CREATE VIRTUAL TABLE words USING fts4(t)",
        "ANALYZE",
    ],
    # As in a database that went through CSV files.
    "texts that spell integers": [
        statement
        for name, event in EVENTS.items()
        if name != schema.NVTX.name
        for columns in [(*event.required, *event.optional)]
        for statement in _made_anew(
            name, ", ".join(f"{column} TEXT" for column in columns), ", ".join(columns)
        )
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_what_a_database_may_be_like(path: Path, name: str, expected: dict[str, Any]) -> None:
    alter(path, *SAME[name])
    assert numbers(path) == expected
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 4, 6, 100])
def test_chunks(path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int) -> None:
    monkeypatch.setattr(reader, "layout_of", refuse)
    monkeypatch.setattr(reader, "_CHUNK_ROWS", chunk_rows)
    export = TraceBuilder()
    for index in range(6):
        export.kernel(10 * index, 10 * index + 5, launch=False)
    database = Database(export.write(path))
    chunks = list(read_columns(database, KERNEL, ["start", "greenContextId"]))
    database.close()
    assert [len(chunk["start"]) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    assert np.concatenate([chunk["start"] for chunk in chunks]).tolist() == list(range(0, 60, 10))
    assert set(np.concatenate([chunk["greenContextId"] for chunk in chunks]).tolist()) == {NULL}


def test_sqlite_is_not_asked_for_events(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything().write(path)
    expected = numbers(path)
    monkeypatch.setattr(reader, "_through_sqlite", refuse)
    assert numbers(path) == expected


@pytest.mark.parametrize("done", [0, 1, 2, 30, 300])
def test_what_pages_do_not_yield(path: Path, monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    """Refused after so many pages, some of which have rows that go on elsewhere."""

    def some(
        descriptor: int, layout: Layout, texts: Mapping[str, NumberedTexts]
    ) -> Iterator[Chunk]:
        yield from islice(decode_columns(descriptor, layout, texts, window_bytes=1), done)
        raise Unsupported

    monkeypatch.setattr(reader, "decode_columns", some)
    monkeypatch.setattr(reader, "_CHUNK_ROWS", 100)
    rows = range(-2000, 2000)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c INTEGER)")
        values = ((row, "x" * (5000 if row % 700 == 0 else row % 60), 3 * row) for row in rows)
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
        connection.commit()
    counting = RowCount()
    database = Database(path, counting)
    for texts in ({}, {"b": NumberedTexts()}):
        chunks = list(read_columns(database, "t", ["a", "c"], texts))
        read = {
            name: np.concatenate([chunk[name] for chunk in chunks]).tolist() for name in chunks[0]
        }
        assert read["a"] == list(rows)
        assert read["c"] == [3 * row for row in rows]
        for name, numbered in texts.items():
            lengths = [len(numbered.known[number]) for number in read[name]]
            assert lengths == [5000 if row % 700 == 0 else row % 60 for row in rows]
    database.close()
    assert counting.read == 2 * len(rows)


def test_progress(path: Path) -> None:
    for changes, expected in (((), 3), ((f"UPDATE {KERNEL} SET rowid = -rowid",), 0)):
        alter(of_three(path), *changes)
        counting = RowCount()
        trace = open_trace(path, counting)
        assert len(trace.operations) == 1
        trace.close()
        assert (counting.expected, counting.read) == (expected, 3)
        path.unlink()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((str(number), number) for number in (0, 12, -7, LEAST, GREATEST)),
        *((text, None) for text in ("+7", "07", " 7", "7 ", "7.0", "", "x", "\u0661", "9" * 19)),
        (0.5, None),
        (b"7", None),
        (GREATEST, GREATEST),
    ],
)
def test_integers_are_read_exactly_or_not_at_all(value: object, number: int | None) -> None:
    assert reader._integer(value) == number


# -- values ---------------------------------------------------------------------------------------


def test_rows_that_mean_nothing_are_left_out(path: Path) -> None:
    row = {"start": 500, "end": 600, "deviceId": 0, "globalPid": global_pid()}
    export = TraceBuilder().kernel(0, 100).kernel(100, 200)
    for name in row:
        export.raw(KERNEL, **{**row, name: None})
    export.raw(KERNEL, **{**row, "end": 499})
    export.write(path)
    assert whole(path) == {"window_ns": 200, "compute_ns": 200, "num_kernels": 2}
    (note,) = notes(path)
    assert note.startswith(f"5 rows of {KERNEL} left out: without a start, an end, a process")


def test_rows_with_nothing_but_time_and_place(path: Path) -> None:
    place = {"deviceId": 0, "globalPid": global_pid()}
    export = TraceBuilder()
    for index, table in enumerate(schema.GPU_OPERATIONS):
        export.raw(table.name, start=100 * index, end=100 * index + 50, **place)
    export.write(path)
    assert whole(path) == {
        "window_ns": 350, "compute_ns": 100, "copy_ns": 100, "exposed_copy_ns": 100, "idle_ns": 150,
        "num_kernels": 1, "num_copies": 2,
    }  # fmt: skip
    assert "1 memory copy without a size: counted as 0 bytes" in notes(path)
    assert any("kernels of these names are counted as compute" in note for note in notes(path))


def test_times_at_the_limits(path: Path) -> None:
    latest = (1 << 62) - 1
    TraceBuilder().kernel(-latest, -latest + 1).kernel(latest - 1, latest, stream=8).write(path)
    assert whole(path) == {
        "window_start_ns": -latest, "window_ns": 2 * latest, "compute_ns": 2,
        "idle_ns": 2 * latest - 2, "num_kernels": 2,
    }  # fmt: skip


def test_sums_at_the_limits(path: Path) -> None:
    latest, size = MAX_SUM_NS // 5 - 1, MAX_BYTES - 1
    export = TraceBuilder()
    for stream in range(5):
        export.kernel(-latest // 2, -latest // 2 + latest, NCCL, stream=stream)
        export.memcpy(0, 1, bytes=size, stream=stream)
    document = attempt(export.write(path)).document
    assert document["breakdown"][0]["communication_ns"] == latest
    assert document["collectives"][0]["total_ns"] == 5 * latest
    assert document["links"][0]["bytes"] == 5 * size


@pytest.mark.parametrize("garbage", long_after(2, [LEAST, 1 << 62, -1, LEAST + 1, GREATEST]))
def test_garbage_where_it_does_not_matter(path: Path, garbage: int) -> None:
    everything().write(path)
    expected = [{**row, "num": None} for row in numbers(path)["breakdown"]]
    for table in schema.GPU_OPERATIONS:
        alter(path, f"UPDATE {table.name} SET streamId = {garbage}, correlationId = {garbage}")
    alter(path, f"UPDATE {MEMCPY} SET bytes = {garbage}")
    document = numbers(path)
    assert [{**row, "num": None} for row in document["breakdown"]] == expected
    assert [link["bytes"] for link in document["links"]] == [0] * 2


def test_ids_of_processes_and_devices_with_all_bits(path: Path) -> None:
    # Exports of several machines use the upper bits of globalPid, the sign among them.
    place = {"start": 0, "end": 10, "demangledName": 0}
    export = TraceBuilder().raw(KERNEL, **place, deviceId=3, globalPid=-1 << 56 | 77 << 24)
    export.raw(KERNEL, **place, deviceId=-2, globalPid=GREATEST).write(path)
    ranks = [(rank["pid"], rank["device"]) for rank in attempt(path).document["ranks"]]
    assert ranks == [(77, 3), ((1 << 24) - 1, -2)]


# -- small tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("DELETE FROM {0} WHERE value = 'gemm'", None),
        ("UPDATE {0} SET value = NULL WHERE value = 'gemm'", None),
        ("UPDATE {0} SET value = CAST('gemm' AS BLOB) WHERE value = 'gemm'", "gemm"),
        ("UPDATE {0} SET value = CAST(x'67ff6d' AS TEXT) WHERE value = 'gemm'", "g\ufffdm"),
        ("UPDATE {0} SET value = '' WHERE value = 'gemm'", ""),
        ("UPDATE {0} SET value = 'a\nb' WHERE value = 'gemm'", "a\nb"),
        ("UPDATE {0} SET value = 12 WHERE value = 'gemm'", "12"),
    ],
)  # fmt: skip
def test_names_of_kernels(path: Path, change: str, name: str | None) -> None:
    alter(of_three(path), *_made_anew(schema.STRINGS, ""), change.format(schema.STRINGS))
    trace = open_trace(path)
    named = set(trace.kernel_names.values())
    noted = list(trace.notes)
    trace.close()
    (other,) = named - {NCCL}
    assert other == name or (name is None and other.startswith("(unknown string "))
    assert bool(noted) == (name is None)
    assert attempt(path).document["breakdown"][0]["num_communication"] == 1


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    path = tmp_path_factory.mktemp("copies") / "t.sqlite"
    TraceBuilder().memcpy(0, 10).memcpy(20, 40, "DtoH").memcpy(50, 90, "PtoP").write(path)
    return path.read_bytes(), numbers(path)


@pytest.mark.parametrize(
    "changes",
    [
        ["DROP TABLE {0}"],
        ["DELETE FROM {0}"],
        ["DELETE FROM {0} WHERE id > 3"],
        ["UPDATE {0} SET label = 'Art ' || id"],
        ["UPDATE {0} SET label = NULL"],
        ["UPDATE {0} SET label = ''"],
        ["ALTER TABLE {0} DROP COLUMN label"],
        ["ALTER TABLE {0} RENAME COLUMN id TO number"],
        # An exporter that numbers otherwise says so in the labels.
        ["UPDATE {0} SET id = id + 100", "UPDATE {1} SET copyKind = copyKind + 100"],
    ],
)
def test_kinds_of_copies(
    path: Path, copies: tuple[bytes, dict[str, Any]], changes: list[str]
) -> None:
    export, expected = copies
    path.write_bytes(export)
    alter(path, *(change.format(schema.MEMCPY_KINDS, MEMCPY) for change in changes))
    assert numbers(path) == expected
    assert {link["direction"] for link in expected["links"]} == {"h2d", "d2h", "p2p"}


def test_boards_named_twice(path: Path) -> None:
    export = TraceBuilder().kernel(0, 10).gpu("NVIDIA H100", board=1).gpu("NVIDIA H100", board=1)
    export.raw(schema.GPU_INFO, id=2, name="Intel UHD", smCount=0).raw(schema.GPU_INFO, id=None)
    export.raw(schema.CUDA_DEVICES, gpuId=9, cudaId=0, pid=None).write(path)
    assert [rank["gpu"] for rank in attempt(path).document["ranks"]] == ["NVIDIA H100"]


def test_ranks_that_contradict_each_other(path: Path) -> None:
    export = TraceBuilder().kernel(0, 10, pid=1000).kernel(0, 10, pid=2000)
    for rank, pid in ((5, 1000), (6, 1000), (None, 2000)):
        export.raw(schema.MPI_RANKS, globalTid=global_tid(pid), rank=rank)
    assert [each["rank"] for each in attempt(export.write(path)).document["ranks"]] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("table", long_after(1, SMALL_TABLES))
def test_small_tables_that_are_empty(path: Path, table: str) -> None:
    everything().write(path)
    alter(path, f"DELETE FROM {quote(table)}")
    # The rank without a GPU is known by registered texts alone.
    assert len(numbers(path)["ranks"]) == (2 if table == schema.STRINGS else 3)
    attempt(path, "info")


# -- no GPU work ----------------------------------------------------------------------------------


def test_only_calls_and_ranges(path: Path) -> None:
    TraceBuilder().api("cudaMalloc_v3020", 0, 10).nvtx("step 0", 0, 10).write(path)
    document = attempt(path).document
    assert (document["ranks"], document["breakdown"], document["findings"]) == ([], [], [])
    assert {gap["reason"] for gap in document["not_applicable"]} == {
        "no report holds a GPU operation"
    }
    assert document["headline"]["verdict"] == {
        "problem": "Nothing can be judged: no report holds a GPU operation.",
        "action": "Record them: nsys profile --trace=cuda,nvtx …",
        "gain": None,
        "trust": None,
    }
    assert "it holds 1 CUDA API call, 1 NVTX event" in notes(path)[0]
    assert "none: no GPU operation was recorded" in attempt(path, "info").out


def test_a_process_with_a_context_and_no_operation(path: Path) -> None:
    """CUDA was traced: that is not what to do."""
    builder = TraceBuilder().api("cudaMalloc_v3020", 0, 10).nvtx("step 0", 0, 10)
    builder.raw(schema.CUDA_CONTEXTS, processId=1000, deviceId=0, contextId=1, nullStreamId=7)
    builder.write(path)
    action = attempt(path).document["headline"]["verdict"]["action"]
    assert "--cuda-flush-interval=1000 … until the program has ended" in action
    assert "CUDA was traced in 1 process (1000)" in " ".join(notes(path))


def test_every_table_is_there_and_empty(path: Path) -> None:
    # As `nsys export --lazy=false` writes them.
    export = TraceBuilder()
    for table in nsight_writer.LAYOUTS:
        export.raw(table)
    assert notes(export.write(path)) == ["no GPU operation, so no rank; it holds no events"]


def test_real_exports_without_gpu_work(traces: Path) -> None:
    outcome = attempt(traces / "runtime_only_3.17.2.sqlite")
    assert not outcome.document["ranks"]
    assert "CUDA API calls" in outcome.document["notes"][-1]["note"]


# -- files ----------------------------------------------------------------------------------------

NAMES = (
    "no suffix", "a\nb.sqlite", "a?mode=rw#x%20%.sqlite", "ümläut ☃.sqlite", "\udcff\udc80.sqlite",
    "'\"`$(touch x);&|.sqlite", "[1]*.sqlite", "-o", "--help", "\x1b[31mred", "n" * 255,
)  # fmt: skip


@pytest.mark.parametrize("name", long_after(3, NAMES))
def test_any_name(path: Path, name: str, expected: dict[str, Any]) -> None:
    renamed = path.rename(path.with_name(name))
    assert numbers(renamed) == expected
    assert attempt(renamed, "info").err == ""


def test_a_link(path: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to("../t.sqlite")
    assert numbers(link) == expected


def test_no_right_to_write(path: Path, expected: dict[str, Any]) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    assert numbers(path) == expected
    path.parent.chmod(0o755)


@pytest.mark.parametrize("content", [b"", bytes(512)])
@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_a_journal_that_is_done(
    path: Path, suffix: str, content: bytes, expected: dict[str, Any]
) -> None:
    path.with_name(path.name + suffix).write_bytes(content)
    assert numbers(path) == expected


def test_utf16(path: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    other = tmp_path / "utf16.sqlite"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(other)) as target:
        target.execute("PRAGMA encoding = 'UTF-16le'")
        target.executescript("".join(source.iterdump()))
    assert b"g\0e\0m\0m\0" in other.read_bytes()
    assert numbers(other) == expected


def test_more_bytes_than_the_header_says(path: Path, expected: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(b"more" * 5000)
    assert numbers(path) == expected


def test_written_by_an_sqlite_before_3_7(path: Path, expected: dict[str, Any]) -> None:
    with path.open("r+b") as file:
        file.seek(28)
        file.write(bytes(4))  # the number of pages
        file.seek(92)
        file.write(bytes(4))  # of which change it is
    assert numbers(path) == expected


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_process_with_a_cuda_context_and_no_gpu_work_is_named(
    has_kernel: bool, tmp_path: Path
) -> None:
    """As of one that ended before Nsight Systems had written what its GPU did."""
    builder = TraceBuilder().kernel(0, 10, pid=1001).label("forward", 0, 100)
    for pid in (1000, 1001, None):
        builder.raw(schema.CUDA_CONTEXTS, processId=pid, contextId=1)
    if has_kernel:
        builder.kernel(0, 10, pid=1000)
    with closing(open_trace(builder.write(tmp_path))) as trace:
        texts = [note for note in trace.notes if "no GPU operation" in note]
    assert len(texts) == (not has_kernel)
    assert has_kernel or "in 1 process (1000)" in texts[0]
