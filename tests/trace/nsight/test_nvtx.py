"""NVTX events of small exports: ranges, threads, labels."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_pid, global_tid
from tests.support.databases import query, refuse
from tests.support.selection import as_rows, in_turn, known
from traceprof import labels
from traceprof.analysis import analyze
from traceprof.labels import Label
from traceprof.trace.model.communication_calls import read_call
from traceprof.trace.model.ranges import LabelRanges, NamedRanges
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.export import NsightTrace
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


def searched(
    path: Path, pattern: re.Pattern[str], until: str | None
) -> dict[int, list[tuple[int, int, str, int]]]:
    found: dict[int, list[tuple[int, int, str, int]]] = {}
    rows = query(
        path,
        "SELECT start, end, text, (SELECT value FROM StringIds WHERE id = textId), globalTid"
        " FROM NVTX_EVENTS WHERE eventType IN (59, 60)",
    )
    for start, end, text, registered, thread in rows:
        name = registered if text is None else text.decode() if isinstance(text, bytes) else text
        name = name.split(until)[0] if name and until else name
        if None not in (name, start, thread) and pattern.search(name):
            row = (start, OPEN_END if end is None else end, name, thread)
            found.setdefault(thread >> 24 << 24, []).append(row)
    return {process: sorted(found[process]) for process in sorted(found)}


def opened(path: Path) -> NsightTrace:
    trace = open_trace(path)
    assert trace.format == "nsight-sqlite"
    return trace  # type: ignore[return-value]


@pytest.mark.parametrize("until", [None, ","])
@pytest.mark.parametrize(("pattern", "through_sqlite"), in_turn(PATTERNS, [False, True]))
def test_ranges(
    export: Path,
    pattern: str,
    until: str | None,
    through_sqlite: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if through_sqlite:
        monkeypatch.setattr(reader, "decode_columns", refuse)
    compiled, end = re.compile(pattern), re.compile(until) if until else None
    expected = searched(export, compiled, until)
    with closing(opened(export)) as trace:
        assert rows_of(trace.ranges(compiled, until=end)) == expected
        for process in (global_pid(1000), global_pid(1001), 7):
            of_process = {process: expected[process]} if process in expected else {}
            assert rows_of(trace.ranges(compiled, process, end)) == of_process


def rows_of(found: dict[int, NamedRanges]) -> dict[int, list[tuple[int, int, str, int]]]:
    return {
        process: [
            (start, end, name, thread)
            for name, (start, end, thread) in zip(
                of.texts, as_rows(of.start_ns, of.end_ns, of.thread), strict=True
            )
        ]
        for process, of in found.items()
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
            assert sorted(as_rows(thread, time)) == sorted(
                row for row in rows if schema.process_of_thread(row[0] or 0) == process
            )
            assert len(time) > 50
        for pid in (999, 1002):  # before all that there are, and behind
            assert [column.tolist() for column in trace.range_ends(global_pid(pid))] == [[], []]


def test_no_events(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    TraceBuilder().kernel(0, 1).write(path)
    with closing(opened(path)) as trace:
        assert (trace.ranges(re.compile("")), trace.thread_names) == ({}, {})
        assert len(trace.range_table(global_pid())) == len(trace.marks(global_pid())) == 0
    path.unlink()
    TraceBuilder().raw(schema.NVTX.name).write(path)
    with closing(opened(path)) as trace:
        assert trace.ranges(re.compile("")) == {}


CALL = "all_reduce bytes=400 dtype=float32 group=1 rank=3 size=2"


def ranges_of(path: Path) -> dict[int, LabelRanges]:
    with closing(open_trace(path)) as trace:
        return dict(trace.label_ranges)


def only(path: Path) -> LabelRanges:
    (ranges,) = ranges_of(path).values()
    return ranges


def rows(ranges: LabelRanges) -> list[tuple[int, int, bool, str]]:
    columns = as_rows(ranges.start_ns, ranges.end_ns, ranges.nests, ranges.text)
    return [(*row, ranges.texts[text]) for *row, text in columns]


def test_pushed_and_started_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder().label(f"{CALL} seq=1", 12, 14).label(f"{CALL} seq=0", 0, 5)
    builder.label(f"{CALL} seq=1", 11, 40, in_flight=True)
    found = only(builder.shuffled(2).write(tmp_path))
    assert rows(found) == [
        (0, 5, True, f"{CALL} seq=0"),
        (11, 40, False, f"{CALL} seq=1"),
        (12, 14, True, f"{CALL} seq=1"),
    ]
    facts = {"bytes": "400", "dtype": "float32", "group": "1", "rank": "3", "size": "2"}
    assert list(found.kinds) == [Label("all_reduce", facts)]  # the running number left out
    assert found.kind.tolist() == [0, 0, 0]
    assert set(found.thread.tolist()) == {global_tid()}


def test_texts_in_the_row_and_registered_ones(tmp_path: Path) -> None:
    builder = TraceBuilder().label("step 0", 0, 10)
    builder.nvtx("forward", 1, 2, domain="traceprof").nvtx("backward", 3, 4, domain="other")
    builder.nvtx("optimizer step", 5, 6)
    assert rows(only(builder.write(tmp_path))) == [(0, 10, True, "step 0"), (1, 2, True, "forward")]


def test_a_number_of_the_domain_that_another_process_gave_to_its_own(tmp_path: Path) -> None:
    builder = TraceBuilder().label("step 0", 0, 10, pid=1)
    for kind, text, start in ((schema.NVTX_DOMAIN, "theirs", 0), (59, "step 1", 20)):
        builder.raw(
            "NVTX_EVENTS", start=start, end=30, eventType=kind, text=text, domainId=1,
            globalTid=global_tid(2),
        )  # fmt: skip
    assert list(ranges_of(builder.write(tmp_path))) == [global_pid(1)]


def test_ends_that_are_not_known(tmp_path: Path) -> None:
    # Nsight writes the capture's end for what was open then, and other exporters may write nothing.
    builder = TraceBuilder().label("step 0", 0, 100).label("step 1", 50, None)
    # On a busy machine what is open outlasts the capture, which then ends with its last event.
    builder.label("step 2", 60, 99).label("step 3", 70, 250).machine(end=100)
    found = only(builder.write(tmp_path))
    assert found.end_ns.tolist() == [OPEN_END, OPEN_END, 99, OPEN_END]


def test_the_captures_end_in_utc(tmp_path: Path) -> None:
    epoch = 1_795_181_992_641_883_397
    builder = TraceBuilder().machine(end=100, start_utc=epoch)
    builder.label("step 0", epoch, epoch + 100).label("step 1", epoch + 1, epoch + 99)
    assert only(builder.write(tmp_path)).end_ns.tolist() == [epoch + 100, epoch + 99]
    builder.raw(schema.EXPORT_METADATA[0], name=schema.TIME_NORMALIZED, value="true")
    normalized = only(builder.write(tmp_path / "n.sqlite"))
    assert normalized.end_ns.tolist() == [OPEN_END, epoch + 99]


@pytest.mark.parametrize("column", ["domainId", "textId"])
def test_exports_without_a_column(tmp_path: Path, column: str) -> None:
    builder = TraceBuilder().label("step 0", 0, 9).nvtx("step 1", 9, 19, domain="traceprof")
    found = ranges_of(builder.without(schema.NVTX.name, column).write(tmp_path))
    assert [row[3] for ranges in found.values() for row in rows(ranges)] == (
        ["step 1"] if column == "textId" else []
    )


def test_rows_that_mean_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder().label("step 0", 0, 9)
    row = {"eventType": 59, "domainId": 1, "globalTid": global_tid()}
    builder.raw("NVTX_EVENTS", **row, start=None, end=3, text="no start")
    builder.raw("NVTX_EVENTS", **(row | {"globalTid": None}), start=1, end=3, text="no thread")
    builder.raw("NVTX_EVENTS", **row, start=1, end=3)
    builder.raw("NVTX_EVENTS", **row, start=1, end=3, text="two\0texts")
    builder.raw("NVTX_EVENTS", **row, start=5, end=3, text="ends before it starts")
    assert [row[:2] for row in rows(only(builder.write(tmp_path)))] == [(0, 9), (5, 5)]


# -- labels of calls ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        ("all_reduce", "AllReduce"), ("all_reduce_coalesced", "AllReduce"),
        ("all_gather_into_tensor", "AllGather"), ("all_gather_single", "AllGather"),
        ("all_gather_object", "AllGather"), ("_all_gather_base", "AllGather"),
        ("all_gather_tensor", "AllGather"), ("reduce_scatter_tensor", "ReduceScatter"),
        ("reduce_scatter_single", "ReduceScatter"), ("reduce", "Reduce"),
        ("all_to_all_single", "AlltoAll"), ("broadcast_object_list", "Broadcast"),
        ("gather", "Gather"), ("gather_object", "Gather"), ("scatter_object_list", "Scatter"),
        ("send", "Send"), ("isend", "Send"), ("send_object_list", "Send"), ("irecv", "Recv"),
        ("barrier", "Barrier"), ("monitored_barrier", "Barrier"), ("permute", "Unknown"),
    ],
)  # fmt: skip
def test_functions(function: str, operation: str) -> None:
    call = known(read_call(Label(function, {"bytes": "8", "group": "tp", "size": "4"})))
    assert (call.operation, call.is_container) == (operation, False)
    # What each of four ranks gets of what one sends, as NCCL counts it.
    size = 2 if operation == "AlltoAll" else 8
    assert (call.fields.bytes, call.fields.communicator, call.fields.world_size) == (size, "tp", 4)


NO_FACTS: dict[str, str] = {}


@pytest.mark.parametrize(
    ("name", "facts", "operation"),
    [
        ("batch_isend_irecv", {"group": "0", "rank": "1", "size": "2"}, "SendRecv"),
        ("coalesced", {"group": "0", "rank": "1", "size": "2"}, "Unknown"),
        ("all_reduce", NO_FACTS, None),  # the user's own range
        ("coalesced", NO_FACTS, None),
        ("forward", NO_FACTS, None),
        ("wait", {"op": "all_reduce", "group": "0", "seq": "1"}, None),
        ("bucket", {"index": "0", "bytes": "4", "last": "1"}, None),
        ("to h2d", {"bytes": "4", "pinned": "1"}, None),
    ],
)
def test_labels_around_calls_and_of_none(
    name: str, facts: dict[str, str], operation: str | None
) -> None:
    call = read_call(Label(name, facts))
    assert (call and (call.operation, call.is_container)) == (operation and (operation, True))


def test_running_numbers_are_read_from_texts_and_from_payloads_alike(tmp_path: Path) -> None:
    found = []
    for has_payloads in (False, True):
        builder = TraceBuilder(has_payloads=has_payloads)
        for number in range(12):
            start = 100 * number
            builder.label(f"step {number}", start, start + 90)
            builder.label(f"{CALL} seq={number}", start + 10, start + 20)
            builder.label(f"{CALL} seq={number}", start + 11, start + 50, in_flight=True)
        builder.label(f"{CALL}", 30, 40).label("wait op=all_reduce group=1 seq=3", 360, 370)
        builder.label(labels.cut("step 3"), 395, 395)
        # Not ours to complete: a user's own payloads.
        builder.nvtx("batch", 5, 6, registered=True, payload=7)
        trace = open_trace(builder.write(tmp_path / f"{has_payloads}.sqlite"))
        table = trace.range_table(global_pid())
        (steps,) = trace.ranges(re.compile(r"\Astep (\d+)\Z")).values()
        (calls,) = trace.ranges(re.compile("seq=1[01]")).values()
        (ranges,) = trace.label_ranges.values()
        found.append(
            (
                rows(ranges),
                [(label.operation, *label.facts.items()) for label in ranges.kinds],
                [table.names[name] for name in table.name.tolist()],
                steps.texts,
                calls.texts,
                trace.longest_ranges(3),
            )
        )
        trace.close()
    assert found[0] == found[1]
    assert found[1][3] == [f"step {number}" for number in range(12)]
    assert len(found[1][4]) == 4


def test_labels_without_sizes_are_counted_and_said(tmp_path: Path) -> None:
    builder = TraceBuilder(has_payloads=True).label("step 0", 0, 100).label("forward", 1, 9)
    builder.label(f"{CALL} seq=0", 10, 20).label(labels.without_size(f"{CALL} seq=1"), 30, 40)
    with closing(analyze(builder.write(tmp_path))) as analysis:
        (result,) = analysis.result.collectives
        uses = [(use.operation, use.bytes, use.count) for use in result.uses]
        assert uses == [("AllReduce", None, 2)]
        (note,) = [note for _, note in analysis.notes if "without a size" in note]
    assert note.startswith("1 range of instrument without a size")
