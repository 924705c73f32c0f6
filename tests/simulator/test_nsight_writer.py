"""NsightWriter: what it writes is what real exports hold, and it leaves no half of a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import nsight_writer, simulate_ddp, simulate_gloo, simulate_scenario
from sample_traces.simulator.nsight_writer import NsightWriter
from tests.support.databases import dump, query
from tests.support.traces import CPU_SAMPLE, SAMPLE
from traceprof.trace.nsight import schema


def columns_of(path: Path, table: str) -> list[tuple[Any, ...]]:
    """Name, type, NOT NULL and primary key of each column."""
    rows = query(path, f"PRAGMA table_info({table})")
    return [(name, kind, required, key) for _, name, kind, required, _, key in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new.sqlite"


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
    nsight_writer.MPI_CALLS, schema.PROFILER_OVERHEAD, schema.DRIVER_OVERHEAD.name,
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
