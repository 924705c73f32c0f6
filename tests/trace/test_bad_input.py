"""Bad input: exit 2 and one line that says what, why and what to do; nothing is changed."""

import gzip
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import (
    alter,
    assert_contract,
    attempt,
    everything,
    export,
    fifo,
    folder_of,
    in_process,
)
from tests.support.commands import analyzed_apart as run
from tests.support.commands import outcome_of as process
from tests.support.selection import in_turn, long_after
from tests.support.traces import SAMPLE
from traceprof import open_trace
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, _run
from traceprof.errors import TraceFileError
from traceprof.trace.nsight import schema

Maker = Callable[[Path], Path]

pytestmark = pytest.mark.slow

KERNEL = schema.KERNEL.name
KINETO = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()
NOBODY = 65534
CANNOT = 77


def holding(content: bytes) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "report"
        path.write_bytes(content)
        return path

    return make


def altered(*statements: str) -> Maker:
    return lambda folder: alter(export(folder), *statements)


def named(name: str) -> Maker:
    return lambda folder: folder / name


def link_to(target: str) -> Maker:
    def make(folder: Path) -> Path:
        (folder / "link").symlink_to(target)
        return folder / "link"

    return make


def beside(suffix: str, content: bytes = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7") -> Maker:
    def make(folder: Path) -> Path:
        path = export(folder)
        path.with_name(path.name + suffix).write_bytes(content)
        return path

    return make


def folder_beside(folder: Path) -> Path:
    path = export(folder)
    path.with_name(f"{path.name}-journal").mkdir()
    return path


def link_to_unfinished(folder: Path) -> Path:
    (folder / "real").mkdir()
    target = beside("-wal")(folder / "real")
    (folder / "link.sqlite").symlink_to(target)
    return folder / "link.sqlite"


def of_many_processes(folder: Path) -> Path:
    export = TraceBuilder()
    for pid in range(1, 1500):
        export.kernel(pid, pid + 1, pid=pid, launch=False)
    return export.write(folder)


# What is given, what the line must say of the reason, and of what to do.
BAD = {
    "missing": (named("no.sqlite"), "there is no such file", "check the path"),
    "missing, with a newline": (named("a\nb"), "a\\nb: there is no such file", "check the path"),
    "missing, not UTF-8": (named("a\udcff"), "a\\udcff: there is no such file", "check the path"),
    "terminal codes": (named("\x1bc"), "\\x1bc: there is no such file", "check the path"),
    "no folder": (named("no/such/t.sqlite"), "there is no such file", "check the path"),
    "under a file": (lambda folder: export(folder) / "t", "Not a directory", "check the path"),
    "long name": (named("n" * 300), "File name too long", "check the path"),
    "pattern": (named("*.sqlite"), "no file fits this pattern", "check the path"),
    "folder": (lambda folder: folder, "no report lies directly in this", "name a folder with"),
    "empty": (holding(b""), "the file is empty", "nsys export"),
    "text": (holding(b"start,end\n1,2\n"), "neither an SQLite database nor", "nsys export"),
    "noise": (holding(random.Random(1).randbytes(9999)), "neither an SQLite", "nsys export"),
    "zip": (holding(b"PK\x03\x04" + b"\7" * 99), "a zip archive", "unzip"),
    "perfetto": (holding(b"\n\4h\3P\1\n\2h\3"), "a Perfetto trace", "torch.profiler"),
    "half a magic": (holding(b"SQLite for"), "cut short: 10 bytes", "copy it again"),
    "magic only": (holding(b"SQLite format 3\0"), "cut short: 16 bytes", "copy it again"),
    "no header": (holding(b"SQLite format 3\0" + bytes(999)), "not a database", "nsys export"),
    "cut": (holding(SAMPLE.read_bytes()[:-1]), "cut short", "copy it again"),
    "kineto": (holding(KINETO), "no complete event of torch.profiler's", "record again"),
    "kineto, cut": (holding(KINETO[:30]), "cut short before its first event", "copy it again"),
    "kineto, malformed": (holding(b'{"traceEvents" [{'), "no JSON at byte 15", "with_stack=False"),
    "blank, kineto": (holding(b"\xef\xbb\xbf\r\n [{}]"), "no complete event", "record again"),
    "gzip, kineto": (holding(gzip.compress(KINETO)), "no complete event", "record again"),
    "gzip, cut": (holding(gzip.compress(KINETO)[:20]), "cut short before", "copy it again"),
    "gzip, noise": (holding(b"\x1f\x8b\x08" + b"\7" * 99), "a damaged gzip", "copy it again"),
    "gzip, other": (holding(b"\x1f\x8b\x01no"), "a damaged gzip file", "copy it again"),
    "gzip, export": (holding(gzip.compress(SAMPLE.read_bytes())), "gzip", "gunzip"),
    "pipe": (fifo, "it is a pipe or a device", "save it as a file"),
    "/dev/zero": (lambda _: Path("/dev/zero"), "it is a pipe or a device", "save it as a file"),
    "link to nothing": (link_to("nowhere"), "it is a link to nothing", "check the path"),
    "link to itself": (link_to("link"), "symbolic links", "check the path"),
    "hot journal": (beside("-journal"), "t.sqlite-journal beside it holds changes", "wait until"),
    "wal": (beside("-wal"), "t.sqlite-wal beside it holds changes", "wait until"),
    "wal beside the target": (link_to_unfinished, "t.sqlite-wal beside it holds", "wait until"),
    "folder beside": (folder_beside, "t.sqlite-journal beside it holds", "wait until"),
    "other program": (
        lambda f: alter(f / "t", "CREATE TABLE moz_places (id INTEGER, url TEXT)"),
        "no Nsight Systems export (it holds moz",
        "nsys export",
    ),
    "rocprofv3": (
        lambda f: alter(f / "t", "CREATE TABLE rocpd_string_1(id INTEGER, string TEXT)"),
        *("written by rocprofv3", "torch.profiler"),
    ),
    "no table": (lambda f: alter(f / "t", "PRAGMA user_version = 1"), "no table", "nsys export"),
    "no strings": (altered(f"DROP TABLE {schema.STRINGS}"), "no Nsight Systems ex", "nsys export"),
    "view": (
        altered(
            f"ALTER TABLE {KERNEL} RENAME TO kernels",
            f"CREATE VIEW {KERNEL} AS SELECT * FROM kernels",
        ),
        f"{KERNEL} is a view where Nsight writes a table",
        "nsys export",
    ),
    "without rowid": (
        altered(
            f"DROP TABLE {KERNEL}",
            f"CREATE TABLE {KERNEL} (start INTEGER PRIMARY KEY, end, deviceId, streamId,"
            " correlationId, globalPid) WITHOUT ROWID",
        ),
        f"table {KERNEL} has no rowid",
        "nsys export",
    ),
    "no rowid's name": (
        altered(*(f"ALTER TABLE {KERNEL} ADD {name}" for name in ("RowId", "_rowid_", "oid"))),
        f"table {KERNEL} has no rowid",
        "nsys export",
    ),
    "no column": (
        altered(f"ALTER TABLE {KERNEL} DROP COLUMN end"),
        f"table {KERNEL} lacks the column end (it has start, deviceId",
        "nsys export",
    ),
    "real": (
        altered(f"UPDATE {KERNEL} SET start = 0.5"),
        f"{KERNEL}.start holds 0.5 where an integer belongs",
        "nsys export",
    ),
    "text for a number": (
        altered(f"UPDATE {KERNEL} SET deviceId = 'a\nb' WHERE start > 0"),
        f"{KERNEL}.deviceId holds 'a\\nb' where an integer belongs",
        "nsys export",
    ),
    "long text for a number": (
        altered(f"UPDATE {KERNEL} SET deviceId = 'x' || hex(zeroblob(9999))"),
        f"{KERNEL}.deviceId holds 'x00000000000000000000000000000000000'… where an integer",
        "nsys export",
    ),
    "blank for a number": (
        altered(f"UPDATE {KERNEL} SET deviceId = ' '"),
        f"{KERNEL}.deviceId holds ' ' where an integer belongs",
        "nsys export",
    ),
    "wrong in a small table": (
        lambda folder: (
            everything().raw(schema.MPI_RANKS, globalTid=1, rank="first").write(folder / "t")
        ),
        f"{schema.MPI_RANKS}.rank holds 'first' where an integer belongs",
        "nsys export",
    ),
    "too late": (altered(f"UPDATE {KERNEL} SET end = 1 << 62"), "beyond any clock", "nsys export"),
    "too early": (
        altered(f"UPDATE {KERNEL} SET start = -1 << 62"),
        f"{KERNEL} holds times beyond any clock",
        "nsys export",
    ),
    "many processes": (of_many_processes, "more than 1024 processes", "nsys export"),
}


def test_what_only_the_analysis_reads_is_no_error_of_info(tmp_path: Path) -> None:
    path = alter(
        Path(shutil.copy(SAMPLE, tmp_path)),
        "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET streamId = 'a'",
    )
    line = attempt(path, "analyze").line
    assert "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.streamId holds 'a' where an integer" in line
    assert attempt(path, "info").code == 0


@pytest.mark.parametrize(("kind", "command"), in_turn(BAD, ["analyze", "info"]))
def test_it_takes_one_line(tmp_path: Path, kind: str, command: str) -> None:
    make, why, remedy = BAD[kind]
    line = attempt(make(tmp_path), command).line
    assert why in line.rpartition("; ")[0]
    assert remedy in line.rpartition("; ")[2]


@pytest.mark.parametrize(
    "kind", long_after(2, ["missing, not UTF-8", "pipe", "cut", "other program", "real"])
)
def test_it_takes_one_line_of_a_process(tmp_path: Path, kind: str) -> None:
    make, why, _ = BAD[kind]
    path = make(tmp_path)
    before = folder_of(path)
    outcome = run(path)
    assert_contract(outcome)
    assert why in outcome.line
    assert folder_of(path) == before


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(TraceFileError, match="embedded null byte; check the path"):
        open_trace("a\0b")


def test_a_bad_report_among_good_ones(tmp_path: Path) -> None:
    good = export(tmp_path)
    before = folder_of(good)
    arguments = "analyze", "--format", "json", good, SAMPLE, tmp_path / "no.sqlite"
    outcome = in_process(*arguments)
    # The others are analysed, and the loss is said.
    assert outcome.code == EXIT_DONE
    assert "no.sqlite: there is no such file" in outcome.err
    lost = json.loads(outcome.out)["lost_reports"]
    assert [Path(each["path"]).name for each in lost] == ["no.sqlite"]
    assert folder_of(good) == before


@pytest.mark.parametrize("what", long_after(1, ["file", "folder"]))
def test_no_permission(what: str, tmp_path: Path) -> None:
    # The refused one is not in tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = export(folder)
        folder.chmod(0o755 if what == "file" else 0)
        path.chmod(0 if what == "file" else 0o644)
        # Refusing this file loads all modules while root still may read them.
        refused = tmp_path / "refused.sqlite"
        refused.write_bytes(b"no export")
        code = f"""if True:
            import contextlib, io, os, sys
            from traceprof.cli.main import main
            with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
                main(["analyze", {os.fspath(refused)!r}])
            try:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setgid({NOBODY})
                    os.setuid({NOBODY})
            except OSError:
                sys.exit({CANNOT})
            main(["analyze", {os.fspath(path)!r}])"""
        outcome = process(sys.executable, "-c", code)
        folder.chmod(0o755)
    if outcome.code == CANNOT:
        pytest.skip("root may read everything, and cannot become nobody here")
    assert "permission denied; ask its owner" in outcome.line
    assert_contract(outcome)


def test_last_resort(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a\nb")

    monkeypatch.setattr("traceprof.analysis.analyze_reports", fail)
    with pytest.raises(KeyError):
        _run(["analyze", str(SAMPLE)])
    monkeypatch.delenv("TRACEPROF_TRACEBACK")
    assert _run(["analyze", str(SAMPLE)]) == EXIT_ERROR
    said = "traceprof: internal error: KeyError: 'a\\nb'; report it with the traceback, which"
    assert capsys.readouterr().err.startswith(said)


def test_an_empty_trace_of_torch_profiler_is_not_to_be_exported(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json"
    path.touch()
    with pytest.raises(TraceFileError, match="the file is empty") as error:
        open_trace(path)
    assert "record again with torch.profiler" in str(error.value)
    assert "nsys" not in str(error.value)
