"""`traceprof analyze` of what a watch wrote, beside what the watch itself found."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from instrument.watching import Reporter, Times
from tests.support.claims import validator
from tests.support.commands import in_process, json_of
from tests.support.kept_claims import KeptText
from tests.support.watches import MS, PEERS, third_is_slow, written
from traceprof.documents.watched import is_watched, read_windows, watched
from traceprof.errors import TraceFormatError
from traceprof.reports.watched_text import render


def said(path: Path) -> str:
    """Return what is found in a file of a watch, in JSON and as text."""
    found = replace(watched(path, read_windows(path)), path=path.name, version="")
    fields = (f"{name}: {value}" for name, value in asdict(found).items() if value not in ([], ""))
    return "\n".join((*fields, render(found)))


def test_a_slow_rank_from_its_first_step_to_its_last(tmp_path: Path, kept_text: KeptText) -> None:
    """The watch itself says two windows later that it is slow no more."""
    kept_text(said(written(tmp_path / "watch.jsonl", third_is_slow)))


def test_slow_up_to_the_last_line(tmp_path: Path, kept_text: KeptText) -> None:
    kept_text(said(written(tmp_path / "watch.jsonl", third_is_slow, num_windows=10)))


def test_peers_are_those_of_the_same_stage(tmp_path: Path, kept_text: KeptText) -> None:
    """Ranks 0 and 1 are a stage, ranks 2 and 3 another one, whose steps are longer."""

    def own_ns(rank: int, number: int) -> int:
        return 2 * PEERS if rank > 1 else third_is_slow(rank + 2, number)

    peers = [[0, 1], [0, 1], [2, 3], [2, 3]]
    kept_text(said(written(tmp_path / "watch.jsonl", own_ns, peers=peers)))


def test_a_loader_that_stutters(tmp_path: Path, kept_text: KeptText) -> None:
    path = tmp_path / "watch.jsonl"
    reporter = Reporter(100, path, None)
    for number in range(1, 11):
        rows = [Times(rank, 100 * number, 20 * MS, PEERS, MS, 0, 50_000) for rank in range(4)]
        means = [7 * MS if 3 <= number <= 6 and rank == 2 else MS for rank in range(4)]
        rows = [
            times._replace(loader_ns=mean, loader_error_ns=MS)
            for times, mean in zip(rows, means, strict=True)
        ]
        reporter.say(reporter.table(100 * number, rows, {}, {}))
    kept_text(said(path))


def test_silent_ranks(tmp_path: Path, kept_text: KeptText) -> None:
    path = written(
        tmp_path / "watch.jsonl",
        lambda *_: PEERS,
        silent=lambda number: [3] if number in {5, 6, 19, 20} else [],
    )
    kept_text(said(path))


def test_lines_within_a_step_that_does_not_end(tmp_path: Path, kept_text: KeptText) -> None:
    path = written(tmp_path / "watch.jsonl", lambda *_: PEERS, num_windows=3)
    first = Reporter(100, path, None)
    first.say(first.table(300, [], {3: 290}, {}))
    first.say(first.table(300, [], {}, {1: "train.py:88 (load)"}))
    within = tmp_path / "within.jsonl"  # the training hangs in its first window
    within.write_text(path.read_text().splitlines()[-1] + "\n")
    assert is_watched(within)
    kept_text(said(path) + said(within))


def test_nothing_found(tmp_path: Path, kept_text: KeptText) -> None:
    kept_text(said(written(tmp_path / "watch.jsonl", lambda *_: PEERS)))


def test_a_restart_ends_what_was_slow_or_silent(tmp_path: Path, kept_text: KeptText) -> None:
    path = tmp_path / "watch.jsonl"
    written(path, third_is_slow, num_windows=10, silent=lambda number: [3] * (number == 10))
    kept_text(said(written(path, lambda *_: PEERS)))


def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path / "watch.jsonl", third_is_slow)
    with path.open("a") as file:
        file.write('{"step": 2100, "ra')  # being written
    document = json_of("analyze", path)
    validator("watched").validate(document)
    assert document["slow"][0]["rank"] == 2
    assert "Rank 2 computes" in in_process("analyze", path).out
    refused = in_process("analyze", path, "--format", "html")
    assert refused.code == 2
    assert "choose --format text or json" in refused.err


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    path = written(tmp_path / "watch\udcff.jsonl", lambda *_: PEERS)
    assert json_of("analyze", path)["path"] == str(path)
    assert "watch\\udcff.jsonl" in in_process("analyze", path).out


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[:100], "no whole line yet"),
        (lambda text: text.replace('"own_ns"', '"own"', 1), "none that instrument.watch writes"),
        (lambda text: text + "{}\n", "none that instrument.watch writes"),
    ],
)
def test_damaged_lines(damage: Callable[[str], str], why: str, tmp_path: Path) -> None:
    path = written(tmp_path / "watch.jsonl", lambda *_: PEERS)
    path.write_text(damage(path.read_text()))
    assert is_watched(path)
    with pytest.raises(TraceFormatError, match=why):
        read_windows(path)


def test_a_line_that_was_cut_is_left_out_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    path = written(tmp_path / "watch.jsonl", lambda *_: PEERS, 3)
    path.write_bytes(path.read_bytes()[:-100])
    written(path, lambda *_: PEERS, 5)  # the job began again
    assert [window.step for window in read_windows(path)] == [100, 200, *range(100, 501, 100)]


def test_other_files_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert not is_watched(path)
    assert not is_watched(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    assert not is_watched(tmp_path / "pipe")  # and does not wait for its writer
