"""What means nothing in an export changes nothing.

Order of rows, ids, texts that stand twice, the clock's zero, where a capture is cut, a process that
only helps, an idle rank on a device of its own.
"""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.support.builders import global_pid, global_tid
from tests.support.selection import in_turn
from tests.support.traces import GPU_SAMPLES, SAMPLES
from traceprof.analysis import Options, analyze_reports
from traceprof.reports.json import render
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

Database = sqlite3.Connection

_MAX_BYTES = 20_000_000  # of a real export
_CORRELATION = "correlationId"
SHIFT_NS = 1_000_000_007
_SHIFTED = {"start_ns", "end_ns", "window_start_ns"}
_OFTEN = {"ddp", "gloo"}


def _tables(db: Database, column: str) -> list[str]:
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [
        quote(name)
        for (name,) in names
        if any(column == known for _, known, *_ in db.execute(f"PRAGMA table_info({quote(name)})"))
    ]


def _in_order(db: Database, order: str) -> None:
    for table in _tables(db, "start"):
        db.execute(f"CREATE TEMP TABLE rows AS SELECT * FROM {table} ORDER BY {order}")
        db.execute(f"DELETE FROM {table}")
        db.execute(f"INSERT INTO {table} SELECT * FROM rows")
        db.execute("DROP TABLE rows")


def rows_backwards(db: Database) -> None:
    _in_order(db, "rowid DESC")


def rows_shuffled(db: Database) -> None:
    db.create_function("place", 1, lambda row: random.Random(row).random())
    _in_order(db, "place(rowid)")


def correlation_ids_descending(db: Database) -> None:
    tables = _tables(db, _CORRELATION)
    query = f"SELECT coalesce(max({_CORRELATION}), 0) FROM"
    above = max((db.execute(f"{query} {name}").fetchone()[0] for name in tables), default=0) + 1
    for table in tables:
        other = f"{_CORRELATION} = ? - {_CORRELATION}"
        db.execute(f"UPDATE {table} SET {other} WHERE {_CORRELATION} > 0", [above])


def correlation_ids_shuffled(db: Database) -> None:
    ids = {
        number
        for table in _tables(db, _CORRELATION)
        for (number,) in db.execute(f"SELECT DISTINCT {_CORRELATION} FROM {table}")
        if number
    }
    others = sorted(ids)
    random.Random(1).shuffle(others)
    by_id = dict(zip(sorted(ids), others, strict=True))
    db.create_function("other", 1, lambda number: by_id.get(number, number))
    for table in _tables(db, _CORRELATION):
        db.execute(f"UPDATE {table} SET {_CORRELATION} = other({_CORRELATION})")


def clock_shifted(db: Database) -> None:
    for column in ("start", "end", "timestamp", "rawTimestamp"):
        for table in _tables(db, column):
            db.execute(f"UPDATE {table} SET {quote(column)} = {quote(column)} + {SHIFT_NS}")


def helping_process(db: Database) -> None:
    """Add a process that only pins memory; without ranges none can be known to help."""
    thread = {"domainId": 9, "globalTid": global_tid(50_000)}
    for kind, text in ((schema.NVTX_DOMAIN, "traceprof"), (59, "pin_memory bytes=4096")):
        for table in {*_tables(db, "eventType")} & {*_tables(db, "domainId")}:
            _insert(db, table, {"start": 0, "end": 10, "eventType": kind, "text": text, **thread})


def _insert(db: Database, table: str, row: dict[str, object]) -> None:
    columns, marks = ", ".join(map(quote, row)), ", ".join("?" * len(row))
    db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [*row.values()])


WAYS = (
    rows_backwards,
    rows_shuffled,
    correlation_ids_descending,
    correlation_ids_shuffled,
    clock_shifted,
    helping_process,
)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "way"), in_turn(SAMPLES, WAYS))
def test_samples(tmp_path: Path, path: Path, way: Callable[[Database], None]) -> None:
    assert_same(tmp_path, path, way)


@pytest.mark.long
# Of a real capture the end stands elsewhere, too.
@pytest.mark.parametrize("way", [way for way in WAYS if way is not clock_shifted])
@pytest.mark.cpu_export
def test_real_exports(tmp_path: Path, real_trace: Path, way: Callable[[Database], None]) -> None:
    if real_trace.stat().st_size > _MAX_BYTES:
        pytest.skip("it is large")
    assert_same(tmp_path, real_trace, way)


def assert_same(folder: Path, path: Path, way: Callable[[Database], None]) -> None:
    """Assert that an analysis says the same of an export and of one that was changed in a way."""
    copy = _copy_of(path, folder)
    before = _answer(copy)
    with _changing(copy) as db:
        way(db)
    after = _answer(copy)
    if way is helping_process and not before["ranks"]:
        del before["notes"], after["notes"]  # of an export without GPU work they count the events
    assert after == (_shifted(before) if way is clock_shifted else before)


def _copy_of(path: Path, folder: Path) -> Path:
    copy = folder / "t.sqlite"
    shutil.copyfile(path, copy)
    copy.chmod(0o644)
    return copy


@contextmanager
def _changing(path: Path) -> Iterator[Database]:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA synchronous = OFF")
        yield db


def _shifted(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            key: value + SHIFT_NS if key in _SHIFTED else _shifted(value)
            for key, value in found.items()
        }
    return [_shifted(item) for item in found] if isinstance(found, list) else found


def _answer(path: Path, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(render(analyze_reports([path], Options(**options))))
    return answer


def _marked(paths: Iterable[Path]) -> list[ParameterSet]:
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem in _OFTEN else [pytest.mark.long])
        for path in paths
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", _marked(GPU_SAMPLES))
def test_an_idle_process_changes_nothing_for_the_others(path: Path, tmp_path: Path) -> None:
    copy = _copy_of(path, tmp_path)
    expected = _answer(copy)
    with _changing(copy) as db:
        db.row_factory = sqlite3.Row
        row = dict(db.execute(f"SELECT * FROM {schema.KERNEL.name} LIMIT 1").fetchone())
        other = {"correlationId": 999_999_999, "deviceId": 9}
        _insert(db, schema.KERNEL.name, {**row, **other, "globalPid": global_pid(50_000)})
    found = _answer(copy, savings=False)
    added = max(rank["rank"] for rank in found["ranks"])
    # A rank of whose host nothing is known keeps the run from being replayed, so that what findings
    # save is a bound: that differs, and with it their order and which of them are mere `info`.
    for finding in [*found["findings"], *expected["findings"]]:
        del finding["saving"]
        if finding["severity"] == "info":
            finding["severity"] = "low"
    for one in (found, expected):
        one["findings"].sort(key=lambda finding: (finding["id"], finding["rank"]))
    for section in ("ranks", "breakdown", "steps", "links", "collectives", "findings"):
        assert [item for item in found[section] if item["rank"] != added] == expected[section]


@pytest.mark.slow
@pytest.mark.parametrize("path", _marked(SAMPLES))
def test_the_halves_of_a_capture_add_up(path: Path) -> None:
    whole = _answer(path, savings=False)["breakdown"]
    cut = whole[0]["window_start_ns"] + whole[0]["window_ns"] // 2
    first, second = (
        _answer(path, time_range=limits, savings=False)["breakdown"]
        for limits in ((None, cut), (cut, None))
    )
    for rank, one, other in zip(whole, first, second, strict=True):
        if rank["window_start_ns"] > cut:  # it began later
            assert (one["window_ns"], one["idle_ns"]) == (0, 0)
            continue
        for measure in (key for key in rank if key.endswith("_ns") and key != "window_start_ns"):
            assert rank[measure] == one[measure] + other[measure], measure
