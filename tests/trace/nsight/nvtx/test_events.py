"""NVTX ranges are found by name as a plain search of every row finds them."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_pid, global_tid
from tests.support.databases import query, refuse
from tests.support.selection import in_turn
from traceprof.trace.model.ranges import NamedRanges
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.nsight.nvtx_events import read_events
from traceprof.trace.nsight.nvtx_names import thread_names
from traceprof.trace.open import open_trace
from traceprof.trace.sqlite import read_columns as reader

NAMES = [
    "step 1", "step 2", "step 22", "aten::mm, seq = 7", "aten::mm, seq = 8", "aten::mm, seq = 77",
    "forward", "Forward", "", "é 5", "x" * 300, "x" * 299 + "1", "9", "10", "rank 3 of 4",
]  # fmt: skip
PATTERNS = [
    r"\Astep (\d+)\Z", r"step 2", r"seq = \d7", r"^forward$", r"(?i)^forward$", r"[0-8]\Z", r"",
    r"x{300}", r"(?P<a>\d)(?P=a)", r"\A\Z", r"rank \d of \d", r"nothing", "é", r"\d",
]  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for number in range(200):
        name = NAMES[number * 7 % len(NAMES)]
        start = number * 13 % 50
        end = None if number % 23 == 0 else start + number % 9
        event_type = (schema.NVTX_PUSH_POP, schema.NVTX_START_END, 34)[number % 3]
        pid, tid, registered = 1000 + number % 2, 5 + number % 3, number % 5 == 0
        builder.nvtx(
            name, start, end, event_type=event_type, registered=registered, pid=pid, tid=tid
        )
    builder.thread_name("MPI Rank 1").thread_name("MPI Rank 12", pid=1001, tid=7)
    row = {"eventType": schema.NVTX_PUSH_POP, "globalTid": global_pid() | 5}
    builder.raw(schema.NVTX.name, **row, start=3, end=4, text=b"step 8")
    builder.raw(schema.NVTX.name, **row, start=3, end=4, textId=987_654)
    builder.raw(schema.NVTX.name, **row, start=3, end=4)
    builder.raw(schema.NVTX.name, **row, start=None, end=4, text="step 9")
    builder.raw(schema.NVTX.name, **{**row, "globalTid": None}, start=3, end=4, text="step 9")
    path = tmp_path / "t.sqlite"
    builder.write(path)
    return path


def searched(path: Path, pattern: re.Pattern[str]) -> dict[int, list[tuple[int, int, str, int]]]:
    found: dict[int, list[tuple[int, int, str, int]]] = {}
    rows = query(
        path,
        "SELECT start, end, text, (SELECT value FROM StringIds WHERE id = textId), globalTid"
        " FROM NVTX_EVENTS WHERE eventType IN (59, 60)",
    )
    for start, end, text, registered, thread in rows:
        name = registered if text is None else text.decode() if isinstance(text, bytes) else text
        if None not in (name, start, thread) and pattern.search(name):
            row = (start, OPEN_END if end is None else end, name, thread)
            found.setdefault(thread >> 24 << 24, []).append(row)
    return {process: sorted(found[process]) for process in sorted(found)}


def opened(path: Path) -> NsightTrace:
    trace = open_trace(path)
    assert trace.format == "nsight-sqlite"
    return trace  # type: ignore[return-value]


@pytest.mark.parametrize(("pattern", "through_sqlite"), in_turn(PATTERNS, [False, True]))
def test_ranges(
    export: Path, pattern: str, through_sqlite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through_sqlite:
        monkeypatch.setattr(reader, "decode_columns", refuse)
    compiled = re.compile(pattern)
    expected = searched(export, compiled)
    with closing(opened(export)) as trace:
        assert rows_of(trace.ranges(compiled)) == expected
        for process in (global_pid(1000), global_pid(1001), 7):
            of_process = {process: expected[process]} if process in expected else {}
            assert rows_of(trace.ranges(compiled, process)) == of_process


@pytest.mark.parametrize(("pattern", "through_sqlite"), in_turn(PATTERNS, [False, True]))
def test_names_end_where_asked(
    export: Path, pattern: str, through_sqlite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through_sqlite:
        monkeypatch.setattr(reader, "decode_columns", refuse)
    compiled = re.compile(pattern)
    expected: dict[int, list[tuple[int, int, str, int]]] = {}
    for process, rows in searched(export, re.compile("")).items():
        cut = [(start, end, name.split(",")[0], thread) for start, end, name, thread in rows]
        of_process = sorted(row for row in cut if compiled.search(row[2]))
        if of_process:
            expected[process] = of_process
    with closing(opened(export)) as trace:
        assert rows_of(trace.ranges(compiled, until=",")) == expected


def rows_of(found: dict[int, NamedRanges]) -> dict[int, list[tuple[int, int, str, int]]]:
    return {
        process: list(
            zip(
                ranges.start_ns.tolist(),
                ranges.end_ns.tolist(),
                ranges.names,
                ranges.thread.tolist(),
                strict=True,
            )
        )
        for process, ranges in found.items()
    }


def test_ends_of_ranges_by_process(export: Path) -> None:
    named = f"eventType IN ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END}) AND start IS NOT NULL"
    named += " AND coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) IS NOT NULL"
    rows = query(
        export,
        f"SELECT globalTid, max(start, end) FROM NVTX_EVENTS WHERE {named} AND end IS NOT NULL",
    )
    with closing(open_trace(export)) as trace:
        for pid in (1000, 1001):
            process = global_pid(pid)
            time, thread = trace.range_ends(process)
            assert sorted(zip(thread.tolist(), time.tolist(), strict=True)) == sorted(
                row for row in rows if schema.process_of_thread(row[0] or 0) == process
            )
            assert len(time) > 50
        for pid in (999, 1002):  # before all that there are, and behind
            assert [column.tolist() for column in trace.range_ends(global_pid(pid))] == [[], []]


def test_texts_that_number_are_few(export: Path) -> None:
    with closing(opened(export)) as trace:
        events = trace._nvtx_events
        assert events is not None
        assert events is trace._nvtx_events
        assert "aten::mm, seq = 0" in events.columns.texts
        assert len(events.columns.texts) < len(NAMES)
        assert thread_names(events) == [
            (global_tid(1000), "MPI Rank 1"),
            (global_tid(1001, 7), "MPI Rank 12"),
        ]


def test_no_events(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    TraceBuilder().kernel(0, 1).write(path)
    with closing(opened(path)) as trace:
        assert read_events(trace._database) is None
        assert trace.ranges(re.compile("")) == {}
        assert trace.thread_names == {}
    path.unlink()
    TraceBuilder().raw(schema.NVTX.name).write(path)
    with closing(opened(path)) as trace:
        assert trace.ranges(re.compile("")) == {}
