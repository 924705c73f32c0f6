"""Bad input: exit 2 and one line that says what, why and what to do; nothing is changed."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.attempts import (
    NCCL,
    Outcome,
    alter,
    assert_contract,
    attempt,
    everything,
    folder_of,
)
from tests.support.builders import TraceBuilder
from tests.support.long import long_after
from tests.support.nsys import profile
from tests.support.traces import SAMPLE
from traceprof import open_trace
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, _run
from traceprof.errors import TraceFileError
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    Maker = Callable[[Path], Path]

pytestmark = pytest.mark.slow

KERNEL = schema.KERNEL.name
KINETO = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()
NOBODY = 65534
CANNOT = 77


def export(folder: Path) -> Path:
    return TraceBuilder().kernel(0, 100).kernel(50, 150, NCCL, stream=20).write(folder / "t.sqlite")


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


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def listening(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # the name of a socket must be short
        try:
            server.bind("s")
        finally:
            os.chdir(here)
    return folder / "s"


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


def of_another_program(folder: Path) -> Path:
    return alter(folder / "places.sqlite", "CREATE TABLE moz_places (id INTEGER, url TEXT)")


def view(folder: Path) -> Path:
    return alter(
        export(folder),
        f"ALTER TABLE {KERNEL} RENAME TO kernels",
        f"CREATE VIEW {KERNEL} AS SELECT * FROM kernels",
    )


def without_rowid(folder: Path) -> Path:
    columns = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"
    return alter(
        export(folder),
        f"ALTER TABLE {KERNEL} RENAME TO kernels",
        f"CREATE TABLE {KERNEL} ({columns}, PRIMARY KEY (correlationId)) WITHOUT ROWID",
        f"INSERT INTO {KERNEL} SELECT {columns} FROM kernels",
    )


def of_many_processes(folder: Path) -> Path:
    export = TraceBuilder()
    for pid in range(1, 1500):
        export.kernel(pid, pid + 1, pid=pid, launch=False)
    return export.write(folder / "t.sqlite")


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
    "half a magic": (holding(b"SQLite for"), "cut short: 10 bytes", "copy it again"),
    "magic only": (holding(b"SQLite format 3\0"), "cut short: 16 bytes", "copy it again"),
    "no header": (holding(b"SQLite format 3\0" + bytes(999)), "not a database", "nsys export"),
    "cut": (holding(SAMPLE.read_bytes()[:-1]), "cut short", "copy it again"),
    "kineto": (holding(KINETO), "no complete event of torch.profiler's", "record anew"),
    "kineto, cut": (holding(KINETO[:30]), "cut short before its first event", "copy it again"),
    "kineto, malformed": (holding(b'{"traceEvents" [{'), "no JSON at byte 15", "copy it again"),
    "blank, kineto": (holding(b"\xef\xbb\xbf\r\n [{}]"), "no complete event", "record anew"),
    "gzip, kineto": (holding(gzip.compress(KINETO)), "no complete event", "record anew"),
    "gzip, cut": (holding(gzip.compress(KINETO)[:20]), "cut short before", "copy it again"),
    "gzip, noise": (holding(b"\x1f\x8b\x08" + b"\7" * 99), "a damaged gzip", "copy it again"),
    "gzip, other": (holding(b"\x1f\x8b\x01no"), "a damaged gzip file", "copy it again"),
    "gzip, export": (holding(gzip.compress(SAMPLE.read_bytes())), "gzip", "gunzip"),
    "pipe": (fifo, "it is a pipe or a device", "save it as a file"),
    "socket": (listening, "it is a pipe or a device", "save it as a file"),
    "/dev/null": (lambda _: Path("/dev/null"), "it is a pipe or a device", "save it as a file"),
    "/dev/zero": (lambda _: Path("/dev/zero"), "it is a pipe or a device", "save it as a file"),
    "link to nothing": (link_to("nowhere"), "it is a link to nothing", "check the path"),
    "link to itself": (link_to("link"), "symbolic links", "check the path"),
    "hot journal": (beside("-journal"), "t.sqlite-journal beside it holds changes", "wait until"),
    "wal": (beside("-wal"), "t.sqlite-wal beside it holds changes", "wait until"),
    "wal beside the target": (link_to_unfinished, "t.sqlite-wal beside it holds", "wait until"),
    "folder beside": (folder_beside, "t.sqlite-journal beside it holds", "wait until"),
    "other program": (of_another_program, "no Nsight Systems export (it holds moz", "nsys export"),
    "no table": (lambda f: alter(f / "t", "PRAGMA user_version = 1"), "no table", "nsys export"),
    "no strings": (altered(f"DROP TABLE {schema.STRINGS}"), "no Nsight Systems ex", "nsys export"),
    "view": (view, f"{KERNEL} is a view where Nsight writes a table", "nsys export"),
    "without rowid": (without_rowid, f"table {KERNEL} has no rowid", "nsys export"),
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
        altered(f"UPDATE {KERNEL} SET streamId = 'a\nb' WHERE start > 0"),
        f"{KERNEL}.streamId holds 'a\\nb' where an integer belongs",
        "nsys export",
    ),
    "long text for a number": (
        altered(f"UPDATE {KERNEL} SET streamId = 'x' || hex(zeroblob(9999))"),
        f"{KERNEL}.streamId holds 'x00000000000000000000000000000000000'… where an integer",
        "nsys export",
    ),
    "texts that make up for each other": (
        altered(
            f"UPDATE {KERNEL} SET deviceId = '0,1' WHERE start = 0",
            f"UPDATE {KERNEL} SET deviceId = '' WHERE start > 0",
        ),
        f"{KERNEL}.deviceId holds '0,1' where an integer belongs",
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


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("command", ["analyze", "info"])
def test_it_takes_one_line(tmp_path: Path, kind: str, command: str) -> None:
    make, why, remedy = BAD[kind]
    line = attempt(make(tmp_path), command).line
    assert why in line.rpartition("; ")[0]
    assert remedy in line.rpartition("; ")[2]


@pytest.mark.parametrize("kind", ["missing, not UTF-8", "pipe", "cut", "other program", "real"])
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
    outcome = run(good, SAMPLE, tmp_path / "no.sqlite")
    # The others are analysed, and the loss is said.
    assert outcome.code == EXIT_DONE
    assert "no.sqlite: there is no such file" in outcome.err
    lost = json.loads(outcome.out)["lost_reports"]
    assert [Path(each["path"]).name for each in lost] == ["no.sqlite"]
    assert folder_of(good) == before


@pytest.mark.parametrize("what", ["file", "folder"])
def test_no_permission(what: str) -> None:
    # Not in tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = export(folder)
        folder.chmod(0o755 if what == "file" else 0)
        path.chmod(0 if what == "file" else 0o644)
        code = f"""if True:
            import os, sys
            # All modules are loaded while root still may read them.
            import rich.console, traceprof.analysis, traceprof.cli.analyze, traceprof.reports.json
            from traceprof.cli.main import main
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


# -- the output -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link", "detour", "not read yet"])
def test_a_report_is_never_written_over(tmp_path: Path, how: str) -> None:
    path = export(tmp_path)
    target = tmp_path / "other"
    if how == "symlink":
        target.symlink_to(path)
    elif how == "hard link":
        target.hardlink_to(path)
    elif how == "detour":
        target = Path(f"{tmp_path}/../{tmp_path.name}/t.sqlite")
    else:
        target = path
    reports = [tmp_path / "no.sqlite", path] if how == "not read yet" else [path]
    before = folder_of(path)
    outcome = in_process("analyze", "-o", target, *reports)
    assert "it is one of the reports; choose another name" in outcome.line
    assert_contract(outcome)
    assert folder_of(path) == before


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "Is a directory"),
        ("no/such/out", "No such file or directory"),
        ("t.sqlite/out", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("/dev/full", "No space left on device"),
        ("pipe", "No such device or address"),
        ("a\0b", "null"),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, target: str, why: str) -> None:
    path = export(tmp_path)
    fifo(tmp_path)
    before = folder_of(path)
    outcome = in_process("analyze", "--format", "json", "-o", tmp_path / target, path)
    assert why in outcome.line
    assert_contract(outcome)
    assert folder_of(path) == before


def test_output_to_what_is_no_file(tmp_path: Path) -> None:
    path = export(tmp_path)
    assert in_process("analyze", "-o", "/dev/null", path) == Outcome(EXIT_DONE, "", "")
    with subprocess.Popen(["cat", fifo(tmp_path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        code = EXIT_ERROR
        while code == EXIT_ERROR:  # until the reader has opened the pipe
            code = in_process("analyze", "--format", "json", "-o", tmp_path / "pipe", path).code
        assert json.loads(reader.stdout.read())["schema"]


SHELL = f"set -o pipefail; '{sys.executable}' -m traceprof"


@pytest.mark.parametrize(
    "command",
    [f"analyze '{SAMPLE}'", *long_after(0, [f"info '{SAMPLE}'", "explain gpu-idle", "--help"])],
)
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("| true", EXIT_DONE, ""),
        (">&-", EXIT_DONE, ""),
        ("> /dev/full", EXIT_ERROR, "cannot write the result: No space left on device; "),
    ],
)
def test_stdout_that_takes_nothing(command: str, redirection: str, code: int, said: str) -> None:
    outcome = process("bash", "-c", f"{SHELL} {command} {redirection}")
    assert outcome.code == code
    assert said in outcome.err
    assert_contract(outcome, is_json=False)


def test_stderr_that_takes_nothing() -> None:
    for redirection in ("2>&-", "2> /dev/full"):
        outcome = process("bash", "-c", f"{SHELL} analyze no.sqlite {redirection}")
        assert outcome == Outcome(EXIT_ERROR, "", "")


# -- .nsys-rep ------------------------------------------------------------------------------------

REPORT = b"NVIDIA Tegra Profiler Report 2023@4@4@54-234436381190v0.\n and so on"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, which must be empty after each command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(folder))
    return folder


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    path = folder / "r.nsys-rep"
    path.write_bytes(REPORT)
    return path


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program that is called nsys first on PATH."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


# nsys export --type=sqlite --output=$target $report
EXPORTING = '#!/bin/sh\ntarget="${3#--output=}"; report="$4"; test -f "$report" || exit 9\n'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Processing [1%]'; echo 'Bad.' >&2; exit 1", "nsys says: Bad; copy it again"),
        ("echo 'Bad'; exit 0", "nsys says: Bad; copy it again"),
        ("exit 1", "nsys says: no reason given; copy it again"),
        ("kill -9 $$", "nsys says: no reason given; copy it again"),
        ("seq 999 > $target", "reports/r.nsys-rep: file is not a database; "),
        ("printf '' > $target", "reports/r.nsys-rep: the file is cut short: 0 bytes"),
        (f"head -c 9999 '{SAMPLE}' > $target", "reports/r.nsys-rep: the file is cut short"),
    ],
)
def test_nsys_fails(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    stand_in(temporary.parent, monkeypatch, EXPORTING + script)
    assert said in attempt(report).line
    assert not list(temporary.iterdir())


def test_nsys_is_missing(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    line = attempt(report.rename(report.with_name("my report.nsys-rep"))).line
    assert "`nsys` is not on PATH; where Nsight Systems is installed, run: nsys export" in line
    assert line.endswith("/my report.nsys-rep'\n")  # quoted: to be pasted


def test_nsys_does_not_start(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(temporary.parent, monkeypatch, "\x7fELF no program")
    assert "does not start (Exec format error); install" in attempt(report).line
    assert not list(temporary.iterdir())


def test_no_folder_for_temporary_files(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(temporary.parent, monkeypatch, EXPORTING)
    temporary.rmdir()
    assert "there is no folder for temporary files" in attempt(report).line


@pytest.mark.parametrize("name", ["r.nsys-rep", "no suffix", "a\nb.sqlite", "a\udcff'$(x)", "-o"])
def test_nsys_exports(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stand_in(temporary.parent, monkeypatch, f"{EXPORTING} cp '{SAMPLE}' \"$target\"")
    document = attempt(report.rename(report.with_name(name))).document
    assert document["breakdown"] == attempt(SAMPLE).document["breakdown"]
    assert not list(temporary.iterdir())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, nsys: str) -> bytes:
    """Record a report with the nsys that is installed."""
    path = tmp_path_factory.mktemp("recorded") / "r.nsys-rep"
    profile(nsys, ["--trace=osrt", "--sample=none", "--cpuctxsw=none"], path, ["true"])
    return path.read_bytes()


def test_a_recorded_report(report: Path, temporary: Path, recorded: bytes) -> None:
    report.write_bytes(recorded)
    document = attempt(report).document
    assert [each["path"] for each in document["reports"]] == [str(report)]
    assert "no GPU operation, so no rank; it holds" in document["notes"][0]["note"]
    assert not list(temporary.iterdir())


def test_a_damaged_report(report: Path, temporary: Path, recorded: bytes) -> None:
    for length in (64, 1000, len(recorded) // 2, len(recorded) - 1):
        report.write_bytes(recorded[:length])
        assert "nsys says: " in attempt(report).line
    report.write_bytes(recorded[:5000] + bytes(5000) + recorded[10_000:])
    attempt(report)
    assert not list(temporary.iterdir())


# -- running --------------------------------------------------------------------------------------


def in_process(*arguments: str | Path) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = _run([os.fspath(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def run(*reports: Path) -> Outcome:
    return process(sys.executable, "-m", "traceprof", "analyze", "--format", "json", *reports)


def process(*command: str | Path) -> Outcome:
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
