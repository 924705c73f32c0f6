"""NsightWriter: what it writes is what real exports hold, and it leaves no half of a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sample_traces.simulator import nsight_writer, simulate_ddp, simulate_gloo, simulate_scenario
from sample_traces.simulator.nsight_writer import NsightWriter
from tests.support.databases import dump, query
from tests.support.traces import CPU_SAMPLE, SAMPLE
from traceprof.errors import TraceFileError, UsageError
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sample_traces.simulator.nsight_writer import Column

# One API call's columns that the schema requires.
CALL: Mapping[str, Column] = {"start": 1, "end": 2, "eventClass": 0, "nameId": 1, "returnValue": 0}


def columns_of(path: Path, table: str) -> list[tuple[Any, ...]]:
    """Name, type, NOT NULL and primary key of each column."""
    rows = query(path, f"PRAGMA table_info({table})")
    return [(name, kind, required, key) for _, name, kind, required, _, key in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new.sqlite"


def test_arrays_sequences_and_constants_become_rows(path: Path) -> None:
    with NsightWriter(path) as writer:
        writer.add(
            schema.API_CALL.name,
            {**CALL, "start": np.array([10, 20]), "end": [11, 21], "callchainId": None},
        )
        writer.add(schema.API_CALL.name, {**CALL, "start": 30, "correlationId": 7})
    rows = query(path, f"SELECT start, end, callchainId, correlationId FROM {schema.API_CALL.name}")
    assert rows == [(10, 11, None, None), (20, 21, None, None), (30, 2, None, 7)]


def test_columns_that_are_not_given_are_null_or_empty(path: Path) -> None:
    with NsightWriter(path) as writer:
        writer.add(schema.KERNEL.name, {"start": [5], "end": [6]})
    rows = query(
        path, f"SELECT gridX, tensorSizeMinusOneElements, graphId FROM {schema.KERNEL.name}"
    )
    assert rows == [(0, "", None)]


def test_text_for_every_row(path: Path) -> None:
    text = "it's \0 \N{GREEK SMALL LETTER MU}"
    with NsightWriter(path) as writer:
        writer.add(schema.NVTX.name, {"start": [1, 2, 3], "eventType": 59, "text": text})
    assert query(path, f"SELECT text FROM {schema.NVTX.name}") == [(text,)] * 3


def test_many_rows_keep_their_order(path: Path) -> None:
    starts = np.arange(40_000)[::-1]
    with NsightWriter(path) as writer:
        writer.add(schema.API_CALL.name, {**CALL, "start": starts})
    rows = query(path, f"SELECT start FROM {schema.API_CALL.name} ORDER BY rowid")
    assert [start for (start,) in rows] == starts.tolist()


def test_no_rows(path: Path) -> None:
    with NsightWriter(path) as writer:
        writer.add(schema.API_CALL.name, {**CALL, "start": np.empty(0, np.int64)})
        writer.create(schema.KERNEL.name)
    for table in (schema.API_CALL.name, schema.KERNEL.name):
        assert query(path, f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_string_has_one_id(path: Path) -> None:
    with NsightWriter(path) as writer:
        ids = [writer.string(text) for text in ("gemm", "relu", "gemm")]
    assert ids[0] == ids[2] != ids[1]
    rows = query(path, f"SELECT id, value FROM {schema.STRINGS}")
    assert sorted(rows) == sorted([(ids[0], "gemm"), (ids[1], "relu")])


@pytest.mark.parametrize(("version", "product"), nsight_writer.PRODUCTS.items())
def test_every_export_tells_its_version_and_enumerations(
    path: Path, version: str, product: str
) -> None:
    with NsightWriter(path, version):
        pass
    present = tables_of(path)
    (table,) = present & set(schema.EXPORT_METADATA)
    metadata = dict(query(path, f"SELECT name, value FROM {table}"))
    assert metadata[schema.SCHEMA_VERSION] == version
    assert metadata[schema.PRODUCT_VERSION] == product
    if version == "2.9.1":
        assert schema.MEMCPY_KINDS not in present
        return
    labels = dict(query(path, f"SELECT id, label FROM {schema.MEMCPY_KINDS}"))
    assert labels == schema.COPY_KINDS


def test_older_versions_lack_later_tables_and_columns(path: Path) -> None:
    with NsightWriter(path, "3.7.2") as writer:
        writer.add(schema.CUDA_DEVICES, {"gpuId": 0, "cudaId": 0, "pid": 1})
        writer.add(schema.KERNEL.name, {"start": [1], "end": [2], "clusterX": 0})
    tables = tables_of(path)
    assert schema.CUDA_DEVICES not in tables
    assert schema.OVERHEAD_TYPES not in tables
    names = [name for name, *_ in columns_of(path, schema.KERNEL.name)]
    assert "greenContextId" in names
    assert "clusterX" not in names


def tables_of(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master")}


def version_of(path: Path) -> str | None:
    for table in tables_of(path) & set(schema.EXPORT_METADATA):
        metadata = dict(query(path, f"SELECT name, CAST(value AS BLOB) FROM {table}"))
        return str(metadata[schema.SCHEMA_VERSION].decode())
    return None


@pytest.mark.parametrize("version", ["3.7.2", "3.25.0"])
def test_tables_are_those_of_real_exports(path: Path, traces: Path, version: str) -> None:
    with NsightWriter(path, version) as writer:
        for table in nsight_writer.LAYOUTS:
            writer.create(table)
    written = {table: columns_of(path, table) for table in tables_of(path)}
    exports = [export for export in traces.rglob("*.sqlite") if version_of(export) == version]
    assert exports
    for export in exports:
        tables = tables_of(export) & nsight_writer.LAYOUTS.keys()
        assert tables
        assert {table: columns_of(export, table) for table in tables} == {
            table: written[table] for table in tables
        }


HOST_TABLES = (
    schema.EVENT_RECORD.name, schema.SWITCHES, schema.SAMPLES, schema.CALL_CHAINS, schema.OS_CALLS,
    nsight_writer.MPI_CALLS, schema.PROFILER_OVERHEAD, schema.OVERHEAD,
)  # fmt: skip
# No real export of these versions with all of them was found: those of the next version that has
# the same columns in every table that both have.
LIKE = {"2.9.1": ("3.0.0", "3.1.2"), "3.7.2": ("3.7.2",), "3.25.0": ("3.24.7", "3.24.14", "3.25.0")}


@pytest.mark.parametrize("version", LIKE)
def test_tables_of_the_host_are_those_of_real_exports(
    path: Path, traces: Path, version: str
) -> None:
    with NsightWriter(path, version) as writer:
        for table in HOST_TABLES:
            writer.create(table)
    compared = set()
    for export in traces.rglob("*.sqlite"):
        if version_of(export) in LIKE[version]:
            for table in tables_of(export) & tables_of(path) & set(HOST_TABLES):
                assert columns_of(export, table) == columns_of(path, table), (export, table)
                compared.add(table)
    missing = {
        "2.9.1": {schema.EVENT_RECORD.name, *HOST_TABLES[2:4], nsight_writer.MPI_CALLS},
        "3.7.2": set(),
        "3.25.0": {nsight_writer.MPI_CALLS},
    }
    assert compared == set(HOST_TABLES) & tables_of(path) - missing[version]


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (schema.KERNEL.name, {"strat": [1]}, "has no column strat"),
        ("CUPTI_ACTIVITY_KIND_COLONEL", {"start": [1]}, "has a table CUPTI_ACTIVITY_KIND_COLONEL"),
        (schema.KERNEL.name, {"start": [1, 2], "end": np.array([1])}, "different lengths"),
    ],
)
def test_mistakes_of_the_caller(
    path: Path, table: str, columns: Mapping[str, Column], message: str
) -> None:
    with pytest.raises(ValueError, match=message), NsightWriter(path) as writer:
        writer.add(table, columns)
    assert not path.exists()


def test_nothing_is_left_after_an_exception(path: Path) -> None:
    def interrupted(writer: NsightWriter) -> None:
        writer.add(schema.API_CALL.name, CALL)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), NsightWriter(path) as writer:
        interrupted(writer)
    assert list(path.parent.iterdir()) == []


def test_a_full_disk(path: Path) -> None:
    def fill(writer: NsightWriter) -> None:
        writer._connection.execute("PRAGMA max_page_count = 30")
        writer.add(schema.API_CALL.name, {**CALL, "start": np.arange(100_000)})

    with pytest.raises(TraceFileError, match="disk is full"), NsightWriter(path) as writer:
        fill(writer)
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_there_is_kept(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match="it exists already"), NsightWriter(path):
        pass
    assert path.read_bytes() == b"precious"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "new.sqlite"
    with pytest.raises(UsageError, match="No such file or directory"), NsightWriter(missing):
        pass


def test_an_unknown_schema_version(path: Path) -> None:
    with pytest.raises(UsageError, match=r"choose one of 2\.9\.1, 3\.7\.2, 3\.25\.0"):
        NsightWriter(path, "9.9.9")
    assert not path.exists()


Write = Callable[..., Path]
SMALL = {
    "ddp": partial(simulate_ddp, gpus=3, steps=2, kernels_per_step=30),
    "gloo": partial(simulate_gloo, pairs=2),
    "scenario": partial(simulate_scenario, "overlap-slowdown"),
}


@pytest.mark.parametrize("write", SMALL.values(), ids=SMALL)
def test_the_same_arguments_make_the_same_export(tmp_path: Path, write: Write) -> None:
    paths = [tmp_path / f"{name}.sqlite" for name in ("first", "again", "other")]
    truths = [write(path=path, seed=seed) for path, seed in zip(paths, (5, 5, 6), strict=True)]
    first, again, other = map(dump, paths)
    assert first == again != other
    texts = [truth.read_text() for truth in truths]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("write", "sample"),
    [
        (partial(simulate_ddp, gpus=2, steps=6, kernels_per_step=40, seed=1), SAMPLE),
        (simulate_gloo, CPU_SAMPLE),
    ],
    ids=["ddp", "gloo"],
)
def test_sample_is_what_the_simulation_makes(tmp_path: Path, write: Write, sample: Path) -> None:
    path = tmp_path / sample.name
    truth = write(path=path)
    assert dump(path) == dump(sample)
    assert truth.read_text() == sample.with_suffix(".truth.json").read_text()


@pytest.mark.parametrize(
    ("write", "arguments", "said"),
    [
        (simulate_ddp, {"gpus": 0}, "the least is"),
        (simulate_ddp, {"steps": 0}, "the least is"),
        (simulate_ddp, {"kernels_per_step": 19}, "the least is"),
        (simulate_ddp, {"seed": -1}, "the least is"),
        (simulate_gloo, {"pairs": 0}, "the least is"),
        (simulate_gloo, {"operations": 24}, "the least is"),
        (simulate_gloo, {"seed": -1}, "the least is"),
        (simulate_scenario, {"name": "no-such"}, "there is no such scenario"),
        (simulate_scenario, {"name": "healthy", "seed": -1}, "the least is 0"),
        (simulate_scenario, {"name": "healthy", "schema_version": "9.9"}, "cannot write schema"),
    ],
)
def test_impossible_arguments(
    tmp_path: Path, write: Write, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        write(path=tmp_path / "x.sqlite", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.sqlite", "x.truth.json"])
@pytest.mark.parametrize("write", SMALL.values(), ids=SMALL)
def test_nothing_is_overwritten(tmp_path: Path, write: Write, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=f"{name}: it exists already"):
        write(path=tmp_path / "x.sqlite")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
