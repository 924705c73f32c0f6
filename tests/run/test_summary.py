"""A process that hangs in a call: the run's notes say in which, and since when."""

from pathlib import Path

from tests.support.builders import ALL_REDUCE, TraceBuilder, call, prepare
from traceprof.analysis import analyze_reports


def notes(builder: TraceBuilder, path: Path) -> list[str]:
    found = [note for _, note in analyze_reports([builder.write(path)], jobs=1).notes]
    return [note for note in found if "open call" in note]


def test_the_last_open_call_and_since_when(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=9_000_000_000)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10, 0xABC, 64)
    call(builder, "ncclAllReduce", 1_500_000_000, None, 0xABC, 4096)
    (note,) = notes(builder, tmp_path / "hung.sqlite")
    assert note.startswith(
        "rank 0: the last open call is AllReduce (4.1 kB, communicator 0x0000000000000abc), since"
        " 1.500000 s, for 7.50 s: it had not returned"
    )


def test_a_group_whose_end_never_returned(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=100).kernel(20, 30, launch=(3, 5))
    call(builder, "ncclGroupStart", 0, 1)
    call(builder, "ncclSend", 2, 3, 7, 100, 3, schema=902)
    call(builder, "ncclGroupEnd", 40, 100)  # Nsight lets it end with the capture
    (note,) = notes(builder, tmp_path / "t.sqlite")
    assert "rank 0: the last open call is Send (100 B, communicator 0x" in note
    assert "since 0.000000 s, for 60 ns" in note


def test_calls_that_returned_are_not_mentioned(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=100).kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10, 7, 4096)
    assert notes(builder, tmp_path / "t.sqlite") == []
