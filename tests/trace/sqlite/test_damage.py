"""Damaged exports: an answer or one line, whatever bytes are wrong; never a traceback or a hang."""

import random
from pathlib import Path

import pytest

from tests.support.commands import EVENTS, SMALL_TABLES, alter, attempt, everything
from tests.support.databases import query
from tests.support.fuzz.damage import page_size
from tests.support.selection import in_turn, long_after
from tests.support.traces import REAL_TRACES
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

pytestmark = pytest.mark.slow

_HEADER = 100
_TABLE_LEAF = 13
# Small ones of five schema versions, so that much of each is structure.
_REAL = (
    "dlprof_altered_columns", "no_metadata_2021_b", "non_utf8_metadata_3.24.7", "streams_3.0.0",
    "tiny_3.24.14",
)  # fmt: skip
_COLUMNS = [
    (table, column)
    for table, columns in (
        *SMALL_TABLES.items(),
        *((event.name, (*event.required, *event.optional)) for event in EVENTS.values()),
    )
    for column in columns
]
_INTEGERS = {
    (table.name, column)
    for table in (*schema.GPU_OPERATIONS, schema.API_CALL)
    for column in (*table.required, *table.optional)
    if column != "shortName"  # not read where there is the demangled one
}
_VALUES = {
    "null": "NULL", "text": "'one\n1,2'", "least": "-9223372036854775808",
    "beyond": "4611686018427387904", "real": "0.5", "blank": "' '", "blob": "x'ff00'",
    "greatest": "9223372036854775807",
}  # fmt: skip
_NUM_PARTS = 2 * len(_VALUES)
_NO_INTEGERS = ("real", "text", "blank", "blob")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Exports to damage: real ones where there are some, and one whose tables are deep trees."""
    path = tmp_path_factory.mktemp("samples") / "t.sqlite"
    export = everything()
    for index in range(400):
        export.kernel(5000 + 10 * index, 5008 + 10 * index, f"kernel{index % 50}", stream=index % 3)
    alter(export.write(path), "PRAGMA page_size = 512", "VACUUM")
    return {
        "deep": path.read_bytes(),
        **{trace.stem: trace.read_bytes() for trace in REAL_TRACES if trace.stem in _REAL},
    }


def test_cut_short_at_any_byte(samples: dict[str, bytes], path: Path) -> None:
    chosen = random.Random(1)
    data = samples["deep"]
    for length in (*range(1, 2 * _HEADER), *(chosen.randrange(len(data)) for _ in range(100))):
        path.write_bytes(data[:length])
        assert "cut short" in attempt(path).line


@pytest.mark.parametrize("part", long_after(1, range(3 if REAL_TRACES else 1)))
def test_cut_short_where_the_header_does_not_tell(
    samples: dict[str, bytes], path: Path, part: int
) -> None:
    # Before 3.7 SQLite did not write the number of pages: what is missing shows when it is read.
    codes = []
    for data in [*samples.values()][part::3]:
        old = bytearray(data)
        old[92:96] = bytes(4)
        path.write_bytes(old)
        assert attempt(path).code == EXIT_DONE
        for boundary in range(page_size(data), len(data), max(page_size(data), len(data) // 20)):
            path.write_bytes(old[: boundary + 1])
            codes.append(attempt(path).code)
    assert codes.count(EXIT_ERROR) > len(codes) / 2


def leaves(data: bytearray, page: int) -> list[int]:
    """Return where the leaves of a table begin, in the order of its rows."""
    size = page_size(data)
    at = (page - 1) * size
    if data[at] == _TABLE_LEAF:
        return [at]
    cells = int.from_bytes(data[at + 3 : at + 5], "big")
    pointers = (at + 12 + 2 * cell for cell in range(cells))
    children = [at + int.from_bytes(data[pointer : pointer + 2], "big") for pointer in pointers]
    return [
        leaf
        for child in (*children, at + 8)
        for leaf in leaves(data, int.from_bytes(data[child : child + 4], "big"))
    ]


@pytest.fixture(scope="module")
def untyped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Write an export without constraints, so that any value can stand anywhere."""
    path = everything().write(tmp_path_factory.mktemp("untyped") / "t.sqlite")
    for table in {table for table, _ in _COLUMNS}:
        name = quote(table)
        alter(
            path,
            f"CREATE TABLE copy AS SELECT * FROM {name}",
            f"DROP TABLE {name}",
            f"ALTER TABLE copy RENAME TO {name}",
        )
    return path.read_bytes()


def test_rows_that_lead_in_circles(untyped: bytes, path: Path) -> None:
    # In the second half of the table every leaf is the first one again: who looks for rows after
    # the last that he saw finds those at the beginning.
    path.write_bytes(untyped)
    table = schema.KERNEL.name
    numbers = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)"
    alter(
        path,
        f"INSERT INTO {table} (start, end, deviceId, globalPid) {numbers} SELECT i, i, 0, 1 FROM n",
    )
    (root,) = query(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", table)[0]
    data = bytearray(path.read_bytes())
    size = page_size(data)
    first, *others = leaves(data, root)
    for leaf in others[len(others) // 2 :]:
        data[leaf : leaf + size] = data[first : first + size]
    path.write_bytes(data)
    assert "out of order" in attempt(path).line


@pytest.mark.parametrize("part", long_after(1, range(_NUM_PARTS)))
@pytest.mark.parametrize("value", long_after(2, _VALUES))
def test_a_wrong_value_in_any_column(untyped: bytes, path: Path, value: str, part: int) -> None:
    # Part 0 has every other column with a value, and every value in a sixteenth of the columns.
    first = (2 * [*_VALUES].index(value) + part) % _NUM_PARTS
    for table, column in _COLUMNS[first::_NUM_PARTS]:
        path.write_bytes(untyped)
        table_, column_ = quote(table), quote(column)
        alter(
            path,
            f"UPDATE {table_} SET {column_} = {_VALUES[value]}"
            f" WHERE rowid = (SELECT max(rowid) FROM {table_})",
        )
        outcome = attempt(path)
        if part or value == "null":
            attempt(path, "info")
        if value == "null":
            assert outcome.code == EXIT_DONE
        elif value in _NO_INTEGERS and (table, column) in _INTEGERS:
            assert f"{table}.{column} holds " in outcome.line
            assert "where an integer belongs" in outcome.line


@pytest.mark.parametrize(
    ("value", "table"),
    in_turn(
        [*_VALUES.values(), "x'61'", "''", "0", "1", "3", "-1", "99999"],
        [schema.KERNEL.name, schema.STRINGS, schema.MPI_RANKS],
    ),
)
@pytest.mark.parametrize("column", ["type", "name", "tbl_name", "rootpage", "sql"])
def test_a_wrong_value_in_the_schema(
    untyped: bytes, path: Path, column: str, value: str, table: str
) -> None:
    path.write_bytes(untyped)
    alter(
        path,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET {column} = {value} WHERE name = '{table}'",
    )
    attempt(path)


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
def test_any_column_is_missing(untyped: bytes, path: Path, part: int) -> None:
    for table, column in _COLUMNS[part::2]:
        path.write_bytes(untyped)
        table_, column_ = quote(table), quote(column)
        alter(
            path,
            f"ALTER TABLE {table_} ADD COLUMN another",
            f"ALTER TABLE {table_} DROP COLUMN {column_}",
        )
        outcome = attempt(path)
        attempt(path, "info")
        if table in EVENTS and column in EVENTS[table].required:
            assert f"{table} lacks the column {column} " in outcome.line
        else:
            assert outcome.code == (EXIT_ERROR if table == schema.STRINGS else EXIT_DONE)


@pytest.mark.parametrize("part", long_after(1, range(6)))
def test_any_table_is_missing(untyped: bytes, path: Path, part: int) -> None:
    for table in sorted({table for table, _ in _COLUMNS} - {schema.STRINGS})[part::6]:
        path.write_bytes(untyped)
        alter(path, f"DROP TABLE {quote(table)}")
        assert attempt(path).code == EXIT_DONE
        if table in SMALL_TABLES:  # the others are events, which it only counts
            assert attempt(path, "info").code == EXIT_DONE
