"""Names of NVTX ranges, marks and threads."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_pid, global_tid
from tests.support.selection import as_rows
from traceprof.errors import TraceFormatError
from traceprof.trace.model.ranges import RangeTable
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.sqlite import read_columns as reader

# Start, end, name, thread, whether it nests.
Range = tuple[int, int, str, int, bool]


def tables(path: Path) -> dict[int, list[Range]]:
    trace = NsightTrace(path)
    found = {pid: trace.range_table(global_pid(pid)) for pid in (1000, 2000)}
    trace.close()
    return {pid: listed(table) for pid, table in found.items() if len(table)}


def listed(table: RangeTable) -> list[Range]:
    columns = as_rows(table.start_ns, table.end_ns, table.name, table.thread, table.nests)
    return [
        (start, end, table.names[name], thread & 0xFFFFFF, nests)
        for start, end, name, thread, nests in columns
    ]


def test_names_come_from_the_row_or_from_the_strings(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("outer", 0, 50)
    builder.nvtx("registered", 5, 20, registered=True, domain="NCCL").nvtx("outer", 60, 70, tid=7)
    builder.nvtx("copy", 8, 90, event_type=schema.NVTX_START_END)
    builder.nvtx("other process", 1, 2, pid=2000).thread_name("MPI Rank 1").shuffled(3)
    assert tables(builder.write(tmp_path)) == {
        1000: [
            (0, 50, "outer", 1000, True),
            (5, 20, "registered", 1000, True),
            (8, 90, "copy", 1000, False),
            (60, 70, "outer", 7, True),
        ],
        2000: [(1, 2, "other process", 2000, True)],
    }


def test_longer_ones_come_first_and_open_ones_are_the_longest(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("short", 0, 5).nvtx("open", 0, None).nvtx("long", 0, 9)
    path = builder.write(tmp_path)
    assert [row[:3] for row in tables(path)[1000]] == [
        (0, OPEN_END, "open"),
        (0, 9, "long"),
        (0, 5, "short"),
    ]


TEXTS = [
    ("a", None, "a"),
    (None, None, "(unnamed)"),
    ("", 987_654, "(unnamed)"),
    ("", 900, "registered"),
    ("zero\0byte", None, "zero"),  # a text ends where C ends it
    ("with, comma", None, "with, comma"),
    ("ünïcode 🚀", None, "ünïcode 🚀"),
    ("new\nline", None, "new\nline"),
    (b"\xff\x00\xfe", None, "�"),
    (17, None, "17"),
    ("x" * 5000, None, "x" * 1000),
]


def test_names_and_rows_without_start_or_thread(tmp_path: Path) -> None:
    row = {"eventType": schema.NVTX_PUSH_POP, "globalTid": global_tid(), "domainId": 0, "end": 99}
    builder = TraceBuilder().raw(schema.STRINGS, id=900, value="registered")
    for start, (text, text_id, _) in enumerate(TEXTS):
        builder.raw(schema.NVTX.name, **row, start=start, text=text, textId=text_id)
    builder.raw(schema.NVTX.name, **row, start=None, text="no start")
    builder.raw(schema.NVTX.name, **{**row, "globalTid": None}, start=3, text="no thread")
    found = [(start, name) for start, _, name, *_ in tables(builder.write(tmp_path))[1000]]
    assert found == [*enumerate(name for *_, name in TEXTS)]


@pytest.mark.parametrize(
    ("columns", "names"), [(["text"], ["a", "b"]), (["text", "textId"], ["(unnamed)"] * 2)]
)
def test_exports_without_texts(columns: list[str], names: list[str], tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("a", 1, 2, registered=True).nvtx("b", 3, 4, registered=True)
    for column in columns:
        builder.without(schema.NVTX.name, column)
    assert [name for _, _, name, _, _ in tables(builder.write(tmp_path))[1000]] == names


@pytest.mark.parametrize("numbered_every", [1, 10], ids=["many", "few"])
def test_many_rows_in_chunks(
    numbered_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK_ROWS", 7)
    names = [
        f"range {index % 30}" if index % numbered_every == 0 else "range" for index in range(100)
    ]
    builder = TraceBuilder()
    for index, name in enumerate(names):
        builder.nvtx(name, index, index + 1, registered=index % 3 == 0)
    found = tables(builder.write(tmp_path))[1000]
    assert [(start, name) for start, _, name, _, _ in found] == [*enumerate(names)]


READS: dict[int, Callable[[NsightTrace], object]] = {
    schema.NVTX_PUSH_POP: lambda trace: trace.range_table(global_pid()),
    schema.NVTX_START_END: lambda trace: trace.label_ranges,
    schema.NVTX_MARK: lambda trace: trace.marks(global_pid()),
}


@pytest.mark.parametrize("event_type", READS)
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("start", "soon", "'soon' where an integer belongs"),
        ("globalTid", "1x", "where an integer belongs"),
        ("domainId", "1x", "where an integer belongs"),
        ("start", 1 << 62, "beyond any clock"),
    ],
)
def test_what_is_no_time_or_number_is_an_error(
    column: str, value: object, said: str, event_type: int, tmp_path: Path
) -> None:
    row = {"eventType": event_type, "globalTid": global_tid(), "start": 0, "domainId": 1}
    builder = TraceBuilder().label("step 0", 0, 9)
    path = builder.raw(schema.NVTX.name, **(row | {column: value}), text="a").write(tmp_path)
    with closing(NsightTrace(path)) as trace, pytest.raises(TraceFormatError, match=said):
        READS[event_type](trace)


def test_threads_are_named_by_nvtx_or_by_the_system(tmp_path: Path) -> None:
    builder = TraceBuilder().thread_name("MPI Rank 3", tid=5)
    builder.raw(schema.THREAD_NAMES, nameId=900, priority=0, globalTid=global_tid(tid=5))
    builder.raw(schema.THREAD_NAMES, nameId=900, priority=0, globalTid=global_tid(tid=6))
    builder.raw(schema.THREAD_NAMES, nameId=901, priority=0, globalTid=global_tid(tid=7))
    trace = NsightTrace(builder.raw(schema.STRINGS, id=900, value="pt_autograd_0").write(tmp_path))
    assert dict(trace.thread_names) == {
        global_tid(tid=5): "MPI Rank 3",
        global_tid(tid=6): "pt_autograd_0",
    }
    trace.close()


def test_marks_are_moments_of_their_threads(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("range", 0, 50)
    builder.nvtx("late", 40, None, event_type=schema.NVTX_MARK)
    builder.nvtx("early", 10, None, event_type=schema.NVTX_MARK, registered=True, tid=7)
    builder.nvtx("early", 30, 30, event_type=schema.NVTX_MARK, domain="NCCL")
    builder.nvtx("elsewhere", 5, None, event_type=schema.NVTX_MARK, pid=2000)
    builder.raw(schema.NVTX.name, start=60, eventType=schema.NVTX_MARK).shuffled(5)
    trace = NsightTrace(builder.write(tmp_path))
    found = {pid: trace.marks(global_pid(pid)) for pid in (1000, 2000, 3000)}
    ranges = trace.range_table(global_pid())
    trace.close()
    marks = {
        pid: [
            (time, of.names[name], thread & 0xFFFFFF)
            for time, name, thread in as_rows(of.time_ns, of.name, of.thread)
        ]
        for pid, of in found.items()
        if len(of)
    }
    assert marks == {
        1000: [(10, "early", 7), (30, "early", 1000), (40, "late", 1000)],
        2000: [(5, "elsewhere", 2000)],
    }
    assert len(ranges) == 1


@pytest.mark.parametrize("release", [NsightTrace.release, NsightTrace.unload])
def test_tables_are_made_again_when_they_were_let_go_of(
    tmp_path: Path, release: Callable[[NsightTrace], None]
) -> None:
    builder = TraceBuilder().kernel(0, 9).nvtx("b", 5, 8).nvtx("a", 5, 9).nvtx("c", 1, 2, pid=2000)
    trace = NsightTrace(builder.write(tmp_path))
    table = trace.range_table(global_pid())
    assert trace.range_table(global_pid()) is table
    release(trace)
    again = trace.range_table(global_pid())
    assert again is not table
    assert listed(again) == listed(table)
    assert [name for _, _, name, _, _ in listed(again)] == ["a", "b"]
    assert len(trace.range_table(global_pid(7))) == 0
    trace.close()
