"""Damaged exports given to the commands, each in a process of its own, with limits."""

import gc
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import EVENTS, attempt, tried
from tests.support.fuzz import commands, corpus, profiler_traces, requests
from tests.support.fuzz.damage import DAMAGES, alter_rows
from tests.support.traces import REAL_TRACES, SAMPLE, SAMPLES
from traceprof.cli.main import EXIT_DONE, EXIT_FINDINGS
from traceprof.errors import TraceprofError
from traceprof.run import guard
from traceprof.trace.nsight.schema import API_CALL
from traceprof.trace.open import START_BYTES, is_database
from traceprof.trace.sqlite import read_columns, records
from traceprof.trace.sqlite.database import quote

MAX_S, MAX_MB = 10, 500
_MAX_WALL_S = 120  # whatever else the machine does
_MANY_ROWS = 100_000
_SMALL_SLICE = 7  # rows
_MOST_WINDOWS = 4_000  # and slices, no user's: one of a single page takes a millisecond
_ROW_BYTES = 32
_MAX_BYTES = 1_500_000  # of an export that is damaged
_KINDS = (
    *("bytes", "bytes", "sql", "sql", "sql", "fault", "profiler", "profiler", "profiler"),
    *("store", "document", "options", "dashboard"),
)
_TOO_LONG = {"SIGXCPU": "more than {} s of CPU time", "SIGALRM": f"not done after {_MAX_WALL_S} s"}
_DONE, _REFUSED, _WRONG = 0, 1, 2  # how a child ends


class Result(NamedTuple):
    """What came of a file."""

    number: int
    what: str  # how it was made
    problem: str | None  # what is wrong with the answer; None if nothing is


class Fuzzer:
    """Damages exports in one way after another, and sees what comes of them.

    Args:
        folder: an empty one.
        seed: what is done depends on it and on the number of the file.
        findings: where inputs that are answered wrongly are kept; nowhere if None.
    """

    def __init__(self, folder: Path, seed: int, findings: Path | None = None) -> None:
        self._folder, self._seed, self._findings = folder, seed, findings
        samples = [path for path in (*SAMPLES, *REAL_TRACES) if path.stat().st_size <= _MAX_BYTES]
        attempt(SAMPLE)  # so that not each process imports everything
        self._of_profiler = profiler_traces.source(folder)
        self._document, self._store = commands.saved_files(folder)
        self._saved = folder / "saved.json"
        self._saved.write_bytes(self._document)
        folders = [corpus.FOLDER, *([findings] if findings else [])]
        earlier = [corpus.read(path) for place in folders for path in corpus.kept(place)]
        self._sources: list[Path | corpus.Input] = [*samples]
        self._sources += [found for found in earlier if is_database(found.data[:START_BYTES])]

    def close(self) -> None:
        self._saved.unlink()

    def tried(self, number: int) -> Result:
        """Damage the file of this number; one that is answered wrongly stays in its folder."""
        made = self._made(number, random.Random(f"{self._seed} {number}"))
        place = self._folder / str(number)
        problem = self.problem(made, place, keeps=True)
        if problem is not None and self._findings is not None and made.kind != "fault":
            self._keep(number, made, problem)
        return Result(number, made.what, problem)

    def problem(self, made: corpus.Input, place: Path, *, keeps: bool = False) -> str | None:
        """Return what is wrong with the answer to an input; None if nothing is.

        Args:
            made: the input.
            place: a folder for it, which does not exist.
            keeps: whether the file stays if something is wrong.
        """
        path = place / "t.sqlite"
        place.mkdir()
        path.write_bytes(made.data)
        words = commands.filled_in(made.arguments, path, self._saved)
        problem = _problem(path, words, made.kind, random.Random(made.seed)) or _left(path)
        commands.remove_output(path)
        if problem is None or not keeps:
            shutil.rmtree(place)
        return problem

    def _keep(self, number: int, made: corpus.Input, problem: str) -> None:
        assert self._findings is not None
        reason = _reason(problem)

        def is_wrong(smaller: corpus.Input) -> bool:
            said = self.problem(smaller, self._folder / f"{number}-smaller")
            return said is not None and _reason(said) == reason

        least = corpus.minimal(made, is_wrong)
        self._findings.mkdir(parents=True, exist_ok=True)
        least.write(self._findings / f"{self._seed}-{number}.json", problem)

    def _made(self, number: int, chosen: random.Random) -> corpus.Input:
        source, kind = chosen.choice(self._sources), chosen.choice(_KINDS)
        name = source.what if isinstance(source, corpus.Input) else source.name
        arguments = ["analyze", "--format", "json", commands.REPORT]
        if kind == "dashboard":
            arguments = ["dashboard", commands.REPORT, *requests.chosen_requests(chosen)]
        elif kind != "fault":
            arguments = commands.chosen_arguments(kind, chosen)
        data, what = bytearray(_source(source, chosen)), f"{shlex.join(arguments)} {name} {kind}"
        if kind == "bytes":
            damage = chosen.choice(DAMAGES)
            damage(data, chosen)
            what += f" {damage.__name__}"
        elif kind == "profiler":
            packed, damage_name = profiler_traces.damaged(self._of_profiler, chosen)
            data, what = bytearray(packed), f"{what} {damage_name}"
        elif kind == "document":
            data = bytearray(commands.damaged_document(self._document, chosen))
        elif kind in {"sql", "store", "dashboard"}:
            path = self._folder / f"{number}.sqlite"
            path.write_bytes(self._store if kind == "store" else data)
            if kind == "store":
                what += f" {commands.damage_store(path, chosen)}"
            else:
                with suppress(sqlite3.DatabaseError):  # an earlier input, damaged before
                    alter_rows(path, chosen)
            data = bytearray(path.read_bytes())
            path.unlink()
        return corpus.Input(what, kind, arguments, bytes(data), f"{self._seed} {number} tried")


def results(folder: Path, num: int, seed: int, first: int = 0) -> Iterator[Result]:
    """Damage exports in one way after another, and yield what came of each.

    Args:
        folder: an empty one.
        num: how many files.
        seed: what is done depends on it and on the number of the file.
        first: the number of the first file.
    """
    with closing(Fuzzer(folder, seed)) as fuzzer:
        for number in range(first, first + num):
            yield fuzzer.tried(number)


def _reason(problem: str) -> str:
    """Return what tells a problem from others: its last line, without numbers."""
    return re.sub(r"\d+", "", problem.strip().rpartition("\n")[2])


def _source(source: Path | corpus.Input, chosen: random.Random) -> bytes:
    """Return an export: a quarter of them have many rows, half of the others small pages."""
    if chosen.randrange(4) == 0:
        return _with_many_rows(chosen.choice((512, 4096)))
    if isinstance(source, corpus.Input):
        return source.data
    path = source
    if chosen.randrange(2) == 0:
        return _altered(path, "PRAGMA page_size = 512", "VACUUM")
    return path.read_bytes()


@cache
def _with_many_rows(page_bytes: int) -> bytes:
    """Return the sample with API calls by the hundred thousand."""
    table = quote(API_CALL.name)
    repeat = f"INSERT INTO {table} SELECT a.* FROM {table} a, (SELECT 1 FROM {table} LIMIT ?)"
    with closing(sqlite3.connect(f"file:{SAMPLE}?mode=ro&immutable=1", uri=True)) as database:
        num_calls = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    copies = repeat.replace("?", str(_MANY_ROWS // num_calls))
    return _altered(SAMPLE, copies, f"PRAGMA page_size = {page_bytes}", "VACUUM")


def _altered(path: Path, *statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "t.sqlite"
        copy.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            for statement in statements:
                database.execute(statement)
        return copy.read_bytes()


def _left(path: Path) -> str | None:
    names = sorted(name.name for name in path.parent.iterdir() if name != path)
    return f"left behind: {names}" if names else None


def _problem(path: Path, arguments: list[str], kind: str, chosen: random.Random) -> str | None:
    """Return what is wrong with how a command answers; None if nothing is."""
    error, memory_at_first = path.with_name("error"), _memory_at_first()
    child = os.fork()
    if child == 0:
        _be_child(path, arguments, error, kind, chosen)
    if kind == "fault":
        _disturb(path, chosen)
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return _TOO_LONG.get(name, f"killed by {name}").format(MAX_S)
    taken = (usage.ru_maxrss - memory_at_first) / 1e3
    if taken > MAX_MB:
        return f"{taken:.0f} MB"
    code = os.WEXITSTATUS(status)
    if code == _WRONG:
        return error.read_text()
    is_whole = arguments == ["analyze", "--format", "json", str(path)]
    if kind == "fault" or not is_whole or code != _DONE:
        return None
    with path.open("rb") as file:
        is_export = is_database(file.read(START_BYTES))
    return _refused_by_sqlite(path) if is_export else profiler_traces.refused_by_json(path)


def _memory_at_first() -> int:
    """Return how many kB a child has of its parent before it does anything."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.wait4(child, 0)[2].ru_maxrss


def _be_child(
    path: Path, arguments: list[str], error: Path, kind: str, chosen: random.Random
) -> None:
    code = _WRONG
    try:
        gc.freeze()  # garbage of the parent may be of libraries whose threads are not here
        os.environ["TRACEPROF_TRACEBACK"] = "1"  # an internal error is no answer
        guard.raises = True
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_MAX_WALL_S)
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_S, MAX_S + 5))
        most_rows = path.stat().st_size // _ROW_BYTES
        read_columns._CHUNK_ROWS = max(_SMALL_SLICE, most_rows // _MOST_WINDOWS)
        window_bytes = chosen.choice((1, 4096, records._WINDOW_BYTES))
        records._WINDOW_BYTES = max(window_bytes, path.stat().st_size // _MOST_WINDOWS)
        is_fault, is_usage = kind == "fault", kind == "options"
        if kind == "dashboard":
            code = _asked(arguments)
        else:
            outcome = tried(path, arguments, is_changed=is_fault, may_be_misused=is_usage)
            code = _DONE if outcome.code in {EXIT_DONE, EXIT_FINDINGS} else _REFUSED
    except BaseException:  # noqa: BLE001  (whatever it is, it is told)
        error.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _asked(arguments: list[str]) -> int:
    """Ask the dashboard; return how a child ends."""
    _, report, *questions = arguments
    try:
        requests.answered(report, questions)
    except TraceprofError:
        return _REFUSED
    return _DONE


def _disturb(path: Path, chosen: random.Random) -> None:
    time.sleep(chosen.uniform(0, 0.1))
    data = path.read_bytes()
    how = chosen.randrange(4)
    with suppress(OSError):
        if how == 0:
            os.truncate(path, chosen.randrange(len(data)))
        elif how == 1:
            path.unlink()
            path.write_bytes(data[::-1])
        elif how == 2:
            with path.open("r+b") as file:
                file.seek(chosen.randrange(len(data)))
                file.write(chosen.randbytes(5000))
        else:
            path.write_bytes(b"")


def _refused_by_sqlite(path: Path) -> str | None:
    """Say whether SQLite refuses a table of events that traceprof has read."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode(errors="replace")  # as SQLite takes it
        try:
            for name, table in EVENTS.items():
                known = [row[1] for row in database.execute(f"PRAGMA table_info({quote(name)})")]
                columns = ", ".join(quote(column) for column in table.required if column in known)
                if columns:
                    database.execute(f"SELECT {columns} FROM {quote(name)} NOT INDEXED").fetchall()
        except sqlite3.DatabaseError as error:
            return f"accepted, and SQLite says: {error}"
    return None
