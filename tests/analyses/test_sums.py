"""Copies and collectives of real exports against plain SQL over the same rows."""

import sqlite3
import statistics
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from tests.support.builders import TraceBuilder
from tests.support.opened import analysis_of
from traceprof.analysis import Options, analyze

_DIRECTIONS = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d"}
_DIRECTIONS |= {11: "h2d", 12: "d2h", 13: "d2d"}


def test_bytes_of_every_direction(real_trace: Path) -> None:
    expected: dict[tuple[int, int, str], int] = defaultdict(int)
    with closing(sqlite3.connect(f"{real_trace.as_uri()}?mode=ro", uri=True)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if "CUPTI_ACTIVITY_KIND_MEMCPY" in tables:
            for pid, device, kind, source, destination, size in database.execute(
                "SELECT (globalPid >> 24) & 0xFFFFFF, deviceId, copyKind, srcDeviceId, dstDeviceId,"
                " bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY"
            ):
                between = source is not None and destination is not None and source != destination
                direction = "p2p" if kind == 10 or between else _DIRECTIONS.get(kind)
                if direction:
                    expected[pid, device, direction] += size
    found: dict[tuple[int, int, str], int] = defaultdict(int)
    with analysis_of(real_trace) as analysis:
        for rank, result in zip(analysis.run.ranks, analysis.result.links, strict=True):
            for use in result.uses:
                found[rank.pid, rank.key.device, use.direction] += use.bytes
    assert found == expected


def test_communication_kernels_by_operation(real_trace: Path) -> None:
    durations: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    with closing(sqlite3.connect(f"{real_trace.as_uri()}?mode=ro", uri=True)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            for pid, device, name, duration in database.execute(
                "SELECT (globalPid >> 24) & 0xFFFFFF, deviceId, value, end - start"
                " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
                " WHERE value LIKE 'nccl%'"
            ):
                operation = name.split("_")[1]
                durations[pid, device, operation].append(duration)
    with analysis_of(real_trace) as analysis:
        ranks, collectives = analysis.run.ranks, analysis.result.collectives
    found = {
        (rank.pid, rank.device, use.operation): (use.count, use.total_ns, use.median_ns)
        for rank, result in zip(ranks, collectives, strict=True)
        for use in result.uses
    }
    assert found == {
        key: (len(values), sum(values), int(statistics.median(values)))
        for key, values in durations.items()
    }


def test_rates_and_peers(tmp_path: Path) -> None:
    # two overlapping copies to device 1, one from device 2, one within the device, one to it
    path = (
        TraceBuilder()
        .memcpy(0, 100, "PtoP", bytes=1000, source=0, destination=1)
        .memcpy(50, 150, "PtoP", bytes=500, source=0, destination=1, stream=8)
        .memcpy(200, 300, "PtoP", bytes=100, source=2, destination=0)
        .memcpy(300, 400, "DtoD", bytes=10)
        .memcpy(400, 500, "HtoD", bytes=2000)
        .write(tmp_path / "t.sqlite")
    )
    analysis = analyze(path)
    analysis.close()
    (result,) = analysis.result.links
    uses = [
        (use.link, use.direction, use.peer, use.bytes, use.busy_ns, use.gb_per_s)
        for use in result.uses
    ]
    assert uses == [
        ("pcie", "h2d", None, 2000, 100, 20.0),
        (None, "d2d", None, 10, 100, 0.1),
        (None, "p2p", 1, 1500, 150, 10.0),
        (None, "p2p", 2, 100, 100, 1.0),
    ]


def test_only_copies_that_start_in_the_window_count(tmp_path: Path) -> None:
    path = (
        TraceBuilder()
        .memcpy(0, 100, bytes=1)
        .memcpy(90, 200, bytes=2)
        .memcpy(200, 300, bytes=4)
        .write(tmp_path / "t.sqlite")
    )
    analysis = analyze(path, options=Options(time_range=(90, 200)))
    analysis.close()
    assert [use.bytes for use in analysis.result.links[0].uses] == [2]
