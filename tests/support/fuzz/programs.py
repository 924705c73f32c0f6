"""Programs that are changed, not files: kernels more, fewer, twice, elsewhere, in another order.

What comes out is an export as a recorder could have written it, of a program that did this.
"""

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from sample_traces.simulator.kineto_writer import write_traces
from tests.support.builders import ALL_REDUCE, US, TraceBuilder, solver
from tests.support.traces import SAMPLES
from traceprof.trace.nsight import schema

Database = sqlite3.Connection

_MAX_BYTES = 160_000  # of a sample
_OPERATIONS = tuple(table.name for table in schema.GPU_OPERATIONS)
_CALLS = schema.API_CALL.name
_BODY = [f"kernel_{number}" for number in range(24)]


class Launch(NamedTuple):
    """An operation of a program."""

    table: str
    row: int  # its rowid there
    start_ns: int  # when it starts on the GPU
    end_ns: int  # when it ends


def _marked(name: str) -> TraceBuilder:
    """Eight steps of products, a copy and a reduction on streams of their own, and an optimizer."""
    trace, at = TraceBuilder(), 0
    for step in range(8):
        begin = at
        trace.memcpy(at, at + 20 * US, stream=13, launch=(at - 2 * US, at - US))
        for layer in range(6):
            start = at + (25 + 35 * layer) * US
            trace.kernel(
                start, start + 30 * US, f"gemm_{layer}", launch=(start - 9 * US, start - 8 * US)
            )
        reduced = at + 120 * US
        trace.kernel(
            reduced, reduced + 90 * US, ALL_REDUCE, stream=20, launch=(at + 90 * US, at + 91 * US)
        )
        adam = at + 240 * US
        trace.kernel(adam, adam + 20 * US, "adam", launch=(adam - 9 * US, adam - 8 * US))
        if name == "optimizer":
            trace.nvtx("Optimizer.step#Adam.step", adam - 10 * US, adam - 7 * US)
        else:
            trace.nvtx(f"step {step}", begin - 5 * US, adam - 7 * US)
        at += 280 * US
    return trace


def _graphs() -> TraceBuilder:
    trace = solver(30, ("sample",))
    for number in range(30):
        at = number * 52 * US
        trace.graph(at + 3 * US, at + 19 * US, launch=(at, at + US))
    return trace


def _phases() -> TraceBuilder:
    trace = solver(20, ("sweep", "norm", "update"))
    return solver(20, ("advect", "project"), builder=trace, begin_ns=20 * 116 * US + 500 * US)


def _on_streams() -> TraceBuilder:
    trace, at = TraceBuilder(), 0
    for number in range(60):
        name = f"layer_{number % 4}(float*)"
        trace.kernel(at, at + 50 * US, name, stream=7 + number % 4, launch=(at - 9 * US, at - US))
        at += (50 if number % 3 else 30) * US
    return trace


_MADE: dict[str, Callable[[], TraceBuilder]] = {
    "solver": lambda: solver(12),
    "long iterations": lambda: solver(10, _BODY),
    "phases": _phases,
    "graphs": _graphs,
    "streams": _on_streams,
    "steps": lambda: _marked("steps"),
    "optimizer": lambda: _marked("optimizer"),
}


def exports(folder: Path) -> list[Path]:
    """Write the programs that are changed, and return their exports with small samples."""
    paths = [made().write(folder / f"{name}.sqlite") for name, made in _MADE.items()]
    return paths + [path for path in SAMPLES if path.stat().st_size <= _MAX_BYTES]


def changed_program(export: Path, path: Path, chosen: random.Random) -> str:
    """Write an export of its program changed in one to four ways; return in which."""
    ways = [chosen.choice(_WAYS) for _ in range(chosen.choice((1, 1, 2, 4)))]
    shutil.copyfile(export, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for way in ways:
            launches = _launches(db)
            if len(launches) > 2:
                way(db, launches, chosen)
        db.execute("COMMIT")
    return ", ".join(way.__name__ for way in ways)


def as_profiler_traces(path: Path) -> list[Path]:
    """Write what an export holds as traces of torch.profiler in its place."""
    folder = path.with_suffix("")
    folder.mkdir()
    traces = write_traces(path, folder, "t")
    path.unlink()
    return traces


def _query(db: Database, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return db.execute(sql, values).fetchall()


def _launches(db: Database) -> list[Launch]:
    tables = {name for (name,) in _query(db, "SELECT name FROM sqlite_master")}
    found = [
        Launch(table, *row)
        for table in _OPERATIONS
        if table in tables
        for row in _query(db, f"SELECT rowid, start, end FROM {table}")
    ]
    return sorted(found, key=lambda launch: (launch.start_ns, launch.end_ns))


def _place(launches: Sequence[Launch], chosen: random.Random) -> int:
    """Return a place among operations; half of them are near one of the ends."""
    last = len(launches) - 1
    near = min(chosen.randrange(1 + max(last // 8, 1)), last)
    return chosen.choice(
        (near, last - near, chosen.randrange(last + 1), chosen.randrange(last + 1))
    )


def _run(launches: Sequence[Launch], chosen: random.Random) -> Sequence[Launch]:
    """Return some operations one after the other."""
    first = _place(launches, chosen)
    return launches[first : first + chosen.choice((1, 1, 2, 5, 24, len(launches) // 3))]


def inserted(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Launch a kernel once more somewhere: as it was named, or by another name."""
    at = launches[_place(launches, chosen)].start_ns
    kernels = [launch for launch in launches if launch.table == schema.KERNEL.name]
    if not kernels:
        return
    kernel = chosen.choice(kernels)
    length = kernel.end_ns - kernel.start_ns
    _delay(db, at, length + 1000)
    row = _repeat(db, kernel, at - kernel.start_ns)
    if chosen.random() < 0.6:
        number = _query(db, "SELECT max(id) + 1 FROM StringIds")[0][0]
        _query(db, "INSERT INTO StringIds (id, value) VALUES (?, 'logged_norm')", number)
        names = "demangledName = ?, shortName = ?"
        _query(db, f"UPDATE {kernel.table} SET {names} WHERE rowid = ?", number, number, row)


def dropped(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Launch some operations no more."""
    for launch in _run(launches[1:], chosen):
        _remove(db, launch)


def repeated(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Launch some operations twice, one after the other."""
    some = _run(launches, chosen)
    begin, end = some[0].start_ns, max(launch.end_ns for launch in some)
    _delay(db, end, end - begin)
    for launch in some:
        _repeat(db, launch, end - begin)


def moved(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Let some operations run on another stream."""
    stream = chosen.choice((7, 20, 99))
    for launch in _run(launches, chosen):
        _query(db, f"UPDATE {launch.table} SET streamId = ? WHERE rowid = ?", stream, launch.row)


def all_on_turns(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Let operations take turns on some streams."""
    num = chosen.choice((2, 5, 18))
    for number, launch in enumerate(launches):
        stream = 100 + number % num
        _query(db, f"UPDATE {launch.table} SET streamId = ? WHERE rowid = ?", stream, launch.row)


def cut_at_the_end(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Record no longer than to some time."""
    at = launches[max(_place(launches, chosen), 1)].start_ns
    for launch in launches:
        if launch.start_ns >= at:
            _remove(db, launch)


def cut_at_the_beginning(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Record only from some time on."""
    at = launches[_place(launches, chosen)].start_ns
    for launch in launches:
        if launch.start_ns < at:
            _remove(db, launch)


def swapped(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Let two parts of the program change places."""
    first, second = sorted(_place(launches, chosen) for _ in range(2))
    length = min(chosen.choice((1, 5, 24, len(launches) // 2)), second - first)
    one, two = launches[first : first + length], launches[second : second + length]
    if not one or not two:
        return
    by_ns = two[0].start_ns - one[0].start_ns
    for launch in one:
        _move(db, launch, by_ns)
    for launch in two:
        _move(db, launch, -by_ns)


def stretched(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Let an operation take far longer, or no time."""
    launch = launches[_place(launches, chosen)]
    before = launch.end_ns - launch.start_ns
    length = chosen.choice((0, 1, 100)) * before
    _delay(db, launch.end_ns, max(length - before, 0))
    _query(db, f"UPDATE {launch.table} SET end = start + ? WHERE rowid = ?", length, launch.row)


def beside(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Let some operations start with those before them."""
    for launch in _run(launches, chosen):
        _move(db, launch, -min(launch.end_ns - launch.start_ns, launch.start_ns))


def without_launches(db: Database, launches: Sequence[Launch], chosen: random.Random) -> None:
    """Lose the calls of some operations."""
    for launch in _run(launches, chosen):
        for row in _calls(db, launch):
            _query(db, f"DELETE FROM {_CALLS} WHERE rowid = ?", row)


def without_some_ranges(db: Database, _: Sequence[Launch], chosen: random.Random) -> None:
    """Mark some steps no more."""
    if _query(db, "SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'"):
        num = chosen.choice((1, 2, 3))
        _query(db, "DELETE FROM NVTX_EVENTS WHERE rowid % 3 < ?", num)


_WAYS: tuple[Callable[[Database, Sequence[Launch], random.Random], None], ...] = (
    *(inserted, inserted, dropped, repeated, moved, all_on_turns, cut_at_the_end),
    *(cut_at_the_beginning, swapped, stretched, beside, without_launches, without_some_ranges),
)


_LATEST = "(SELECT max(start) FROM {table})"
DEGENERATE: dict[str, tuple[Sequence[str], str]] = {
    "operations at zero": (_OPERATIONS, "UPDATE {table} SET start = 0, end = 0"),
    "two operations of a kind": (_OPERATIONS, "DELETE FROM {table} WHERE rowid > 2"),
    "operations begin at zero": (_OPERATIONS, "UPDATE {table} SET end = end - start, start = 0"),
    "operations without length": (_OPERATIONS, "UPDATE {table} SET end = start"),
    "everything at zero": ((*_OPERATIONS, _CALLS), "UPDATE {table} SET start = 0, end = 0"),
    "calls at zero": ((_CALLS,), "UPDATE {table} SET start = 0, end = 0"),
    "calls without length": ((_CALLS,), "UPDATE {table} SET end = start"),
    "operations at one time": (
        _OPERATIONS, f"UPDATE {{table}} SET start = {_LATEST}, end = {_LATEST}",
    ),
    "no calls": ((_CALLS,), "DELETE FROM {table}"),
    "one operation of a kind": (_OPERATIONS, "DELETE FROM {table} WHERE rowid > 1"),
    "no operations": (_OPERATIONS, "DELETE FROM {table}"),
    "operations before their calls": (
        _OPERATIONS, "UPDATE {table} SET end = end - start + 1, start = 1",
    ),
    "operations long after their calls": (
        _OPERATIONS, "UPDATE {table} SET start = start + 1000000000, end = end + 1000000000",
    ),
    "one correlation id": (_OPERATIONS, "UPDATE {table} SET correlationId = 1"),
}  # fmt: skip
"""Tables and how they change: selections may be empty, or spans without length, that never are."""


def degenerate(export: Path, path: Path, way: str) -> Path:
    """Write an export whose program was changed in one of the ways of `DEGENERATE`."""
    shutil.copyfile(export, path)
    tables, statement = DEGENERATE[way]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for table in tables:
            if _query(db, "SELECT 1 FROM sqlite_master WHERE name = ?", table):
                _query(db, statement.replace("{table}", table))
    return path


def _calls(db: Database, launch: Launch) -> list[int]:
    """Return the rows of the calls that launched an operation."""
    if not _query(db, "SELECT 1 FROM sqlite_master WHERE name = ?", _CALLS):
        return []
    sql = (
        f"SELECT c.rowid FROM {_CALLS} c, {launch.table} o WHERE o.rowid = ?"
        " AND c.correlationId = o.correlationId AND (c.globalTid >> 24) = (o.globalPid >> 24)"
    )
    return [row for (row,) in _query(db, sql, launch.row)]


def _repeat(db: Database, launch: Launch, by_ns: int) -> int:
    """Launch an operation again, later; return its row."""
    (correlation,) = _query(db, f"SELECT max(correlationId) + 1 FROM {launch.table}")[0]
    for row in _calls(db, launch)[:1]:
        (known,) = _query(db, f"SELECT max(correlationId) + 1 FROM {_CALLS}")[0]
        correlation = max(correlation, known)
        _copy(db, _CALLS, row, by_ns, correlation)
    return _copy(db, launch.table, launch.row, by_ns, correlation)


def _copy(db: Database, table: str, row: int, by_ns: int, correlation: int) -> int:
    columns = [name for _, name, *_ in _query(db, f"PRAGMA table_info({table})")]
    values: dict[str, Any] = dict(
        zip(columns, _query(db, f"SELECT * FROM {table} WHERE rowid = ?", row)[0], strict=True)
    )
    values |= {
        "start": max(values["start"] + by_ns, 0), "end": max(values["end"] + by_ns, 0),
        "correlationId": correlation,
    }  # fmt: skip
    marks = ", ".join("?" * len(columns))
    _query(db, f"INSERT INTO {table} VALUES ({marks})", *values.values())
    return int(_query(db, f"SELECT max(rowid) FROM {table}")[0][0])


def _remove(db: Database, launch: Launch) -> None:
    for row in _calls(db, launch):
        _query(db, f"DELETE FROM {_CALLS} WHERE rowid = ?", row)
    _query(db, f"DELETE FROM {launch.table} WHERE rowid = ?", launch.row)


def _move(db: Database, launch: Launch, by_ns: int) -> None:
    moved_to = "start = max(start + ?, 0), end = max(end + ?, 0)"
    for row in _calls(db, launch):
        _query(db, f"UPDATE {_CALLS} SET {moved_to} WHERE rowid = ?", by_ns, by_ns, row)
    _query(db, f"UPDATE {launch.table} SET {moved_to} WHERE rowid = ?", by_ns, by_ns, launch.row)


def _delay(db: Database, at_ns: int, by_ns: int) -> None:
    """Let all that starts or ends from some time on do so later."""
    for (table,) in _query(db, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = {name for _, name, *_ in _query(db, f"PRAGMA table_info({table})")}
        for column in {"start", "end"} & columns:
            sql = f"UPDATE {table} SET {column} = {column} + ? WHERE {column} >= ?"
            if {"start", "end"} <= columns:
                _query(db, sql, by_ns, at_ns)
