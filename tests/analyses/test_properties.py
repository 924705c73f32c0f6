"""What must not matter: order of rows, the clock's zero, where a capture is cut, an idle rank.

The idle rank has a device of its own.
"""

import json
import random
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.support.builders import global_tid
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, SAMPLES
from traceprof.analysis import Options, analyze
from traceprof.reports import json as json_report
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

pytestmark = pytest.mark.slow


_OFTEN = {"ddp", "gloo"}


def samples(paths: Iterable[Path]) -> list[ParameterSet]:
    """Return parameters for each sample; all but some kinds are for `make verify`."""
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem in _OFTEN else [pytest.mark.long])
        for path in paths
    ]


SHIFT_NS = 1_000_000_007
_TIMES = {"start", "end", "timestamp", "rawTimestamp"}
_SHIFTED = {"start_ns", "end_ns", "window_start_ns"}


def document(path: Path, **options: Any) -> dict[str, Any]:
    """Return what an analysis says, but for the report's own path."""
    with closing(analyze(path, options=Options(**options))) as analysis:
        found: dict[str, Any] = json.loads(json_report.render(analysis.result))
    del found["reports"]
    return found


@cache
def _of_sample(name: str) -> dict[str, Any]:
    return document(SAMPLE_FOLDER / name)


def unchanged(sample: Path) -> dict[str, Any]:
    """Return what an analysis says of a sample as it is, which tests may change."""
    return deepcopy(_of_sample(sample.name))


def tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    names = [
        row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {
        name: [row[1] for row in database.execute(f"PRAGMA table_info({quote(name)})")]
        for name in names
    }


def shifted(found: Any, by_ns: int) -> Any:
    if isinstance(found, dict):
        return {
            key: value + by_ns if key in _SHIFTED else shifted(value, by_ns)
            for key, value in found.items()
        }
    return [shifted(item, by_ns) for item in found] if isinstance(found, list) else found


@pytest.fixture(params=samples(SAMPLES))
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path))


def test_the_order_of_rows_means_nothing(sample: Path) -> None:
    expected = unchanged(sample)
    shuffle = random.Random(5)
    with closing(sqlite3.connect(sample, isolation_level=None)) as database:
        for name, columns in tables(database).items():
            rows = database.execute(f"SELECT * FROM {quote(name)}").fetchall()
            shuffle.shuffle(rows)
            database.execute("BEGIN")
            database.execute(f"DELETE FROM {quote(name)}")
            marks = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO {quote(name)} VALUES ({marks})", rows)
            database.execute("COMMIT")
    assert document(sample) == expected


def test_the_zero_of_the_clock_means_nothing(sample: Path) -> None:
    expected = unchanged(sample)
    with closing(sqlite3.connect(sample, isolation_level=None)) as database:
        for name, columns in tables(database).items():
            for column in _TIMES & set(columns):
                database.execute(
                    f"UPDATE {quote(name)} SET {quote(column)} = {quote(column)} + {SHIFT_NS}"
                )
    assert document(sample) == shifted(expected, SHIFT_NS)


@pytest.mark.parametrize("sample", samples(GPU_SAMPLES), indirect=True)
def test_an_idle_process_changes_nothing_for_the_others(sample: Path) -> None:
    expected = unchanged(sample)
    with closing(sqlite3.connect(sample, isolation_level=None)) as database:
        table = schema.KERNEL.name
        columns = tables(database)[table]
        first = database.execute(f"SELECT * FROM {quote(table)} LIMIT 1").fetchone()
        row = dict(zip(columns, first, strict=True))
        row |= {
            "globalPid": row["globalPid"] + (50_000 << 24),
            "correlationId": 999_999_999,
            "deviceId": 9,
        }
        marks = ", ".join("?" * len(columns))
        database.execute(f"INSERT INTO {quote(table)} VALUES ({marks})", list(row.values()))
    found = document(sample, savings=False)
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


# Without ranges no process can be known to help.
@pytest.mark.parametrize(
    "sample", samples(path for path in SAMPLES if path.stem != "mpi-wait"), indirect=True
)
def test_a_process_that_only_helps_changes_nothing(sample: Path) -> None:
    expected = unchanged(sample)
    with closing(sqlite3.connect(sample, isolation_level=None)) as database:
        table = quote(schema.NVTX.name)
        columns = tables(database)[schema.NVTX.name]
        for kind, text in ((schema.NVTX_DOMAIN, "traceprof"), (59, "pin_memory bytes=4096")):
            row = dict.fromkeys(columns) | {"start": 0, "end": 10, "eventType": kind, "text": text}
            row |= {"domainId": 9, "globalTid": global_tid(50_000)}
            marks = ", ".join("?" * len(columns))
            database.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))
    assert document(sample) == expected


def test_the_halves_of_a_capture_add_up(sample: Path) -> None:
    whole = unchanged(sample)["breakdown"]
    cut = whole[0]["window_start_ns"] + whole[0]["window_ns"] // 2
    first, second = (
        document(sample, time_range=limits, savings=False)["breakdown"]
        for limits in ((None, cut), (cut, None))
    )
    for rank, one, other in zip(whole, first, second, strict=True):
        if rank["window_start_ns"] > cut:  # it began later
            assert (one["window_ns"], one["idle_ns"]) == (0, 0)
            continue
        for measure in (key for key in rank if key.endswith("_ns") and key != "window_start_ns"):
            assert rank[measure] == one[measure] + other[measure], measure
