"""Numbers and texts beyond what a recording can hold: left out or refused where they are read."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import alter, attempt, export, in_process
from tests.support.profiler_events import annotation, call, event, kernel, write
from tests.support.selection import in_turn, long_after
from tests.support.traces import SAMPLE
from traceprof import open_trace
from traceprof.cli.main import EXIT_DONE
from traceprof.trace.kineto.events import Arguments
from traceprof.trace.kineto.records import bytes_of_shapes
from traceprof.trace.model.special_values import (
    MAX_BYTES,
    MAX_EVENT_NS,
    MAX_SUM_NS,
    MAX_TEXT,
    UNKNOWN,
    are_times,
    whole_number,
)
from traceprof.trace.nsight import schema

KERNEL = schema.KERNEL.name
HUGE = 10**399


def of_nsight(folder: Path, size: int) -> Path:
    trace = TraceBuilder().kernel(0, 100)
    for start in (200, 300):
        trace.memcpy(start, start + 50, "HtoD", bytes=size if start == 200 else 1000)
    return trace.write(folder)


def of_kineto(folder: Path, size: int) -> Path:
    copies = [
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, 50, (0, 7), device=0, stream=7,
              correlation=start, bytes=size if start == 200 else 1000)
        for start in (200, 300)
    ]  # fmt: skip
    return write(folder / "t.json", [call(0, 5), kernel(10, 100), *copies])


@pytest.mark.parametrize(
    ("size", "written"),
    in_turn(
        [(1 << 63) - 1, MAX_BYTES, -5],
        [*product([of_nsight], ["csv", "parquet"]), *product([of_kineto], ["parquet", "csv"])],
    ),
)
def test_sizes_beyond_any_memory_are_unknown(
    tmp_path: Path, size: int, written: tuple[Callable[[Path, int], Path], str]
) -> None:
    make, ending = written
    path = make(tmp_path, size)
    assert "1 memory copy without a size" in " ".join(open_trace(path).notes)
    assert in_process("export", ending, path, "-o", tmp_path / "out").code == EXIT_DONE
    read = pd.read_csv if ending == "csv" else pd.read_parquet
    sizes = read(tmp_path / "out" / f"copies.{ending}")["bytes"]
    assert sizes[1] == 1000
    assert sizes.isna()[0] if make is of_nsight else sizes[0] == 0


def test_lengths_whose_sum_is_beyond_any_clock_are_refused(tmp_path: Path) -> None:
    path = alter(export(tmp_path), f"UPDATE {KERNEL} SET end = {MAX_SUM_NS // 2} + start")
    assert f"{KERNEL} holds times beyond any clock" in attempt(path).line
    length_us = MAX_EVENT_NS / 1000 - 1
    kernels = [kernel(0, length_us, number=number) for number in range(64)]
    path = write(tmp_path / "t.json", kernels)
    assert "its events take longer than any clock counts" in attempt(path).line
    path = write(tmp_path / "t.json", [kernel(0, 5), kernel(0, length_us + 2)])
    assert open_trace(path).notes[0].startswith("1 event left out: without a time")


def test_times_of_no_event() -> None:
    nothing = np.empty(0, np.int64)
    assert are_times(nothing, nothing)
    assert are_times(np.array([5]), np.array([5]))


@pytest.mark.parametrize("key", ["ts", "dur", "pid", "tid", "correlation", "device", "bytes"])
@pytest.mark.parametrize("is_odd", [False, True])
def test_integers_of_400_digits(tmp_path: Path, key: str, is_odd: bool) -> None:
    large = kernel(50, 60, number=2, bytes=1)
    place = large if key in large else large["args"]
    place[key] = HUGE
    odd = [{"ph": "X", "cat": "kernel", "name": float("nan"), "ts": 1}] if is_odd else []
    path = write(tmp_path / "t.json", [call(0, 5), kernel(10, 20), large, *odd])
    assert [rank["rank"] for rank in attempt(path).document["ranks"]] == [0]


@pytest.mark.parametrize("shape", [[HUGE], [1 << 62, 4], [-1, 5], [0.5], ["x"], [[2]]])
def test_shapes_that_no_tensor_has(shape: list[object]) -> None:
    sizes, types = json.dumps([shape]).encode(), b'["float"]'
    annotated = Arguments(input_sizes=sizes, input_types=types)  # type: ignore[arg-type]
    assert bytes_of_shapes(annotated, "AllReduce") == UNKNOWN


def test_names_of_megabytes_are_cut(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 100, "k" * 10_000_000).write(tmp_path)
    (name,) = open_trace(path).kernel_names.values()
    assert (len(name), name[-2:]) == (MAX_TEXT, "k…")
    events = [kernel(0, 100, name="k" * 10_000_000), annotation("a" * 10_000_000, 0, 100)]
    path = write(tmp_path / "t.json", events)
    (name,) = open_trace(path).kernel_names.values()
    assert (len(name), name[-2:]) == (MAX_TEXT, "k…")


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("9" * 15, None), ("9" * 5000, None), ("-1", None), ("", None), (None, None)],
)
def test_numbers_in_texts(text: str | None, number: int | None) -> None:
    assert whole_number(text) == number


def test_ranks_of_mpi_that_are_none(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 100).thread_name(f"MPI Rank {'9' * 5000}", pid=1000)
    trace.raw(schema.MPI_RANKS, globalTid=1 << 24, rank=-5)
    assert attempt(trace.write(tmp_path)).code == EXIT_DONE


@pytest.mark.parametrize(
    "command",
    long_after(1, [["whatif", "--path-of", "1"], ["export", "csv"], ["analyze"]]),
    ids=" ".join,
)
def test_calls_without_a_name(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "t.sqlite"
    shutil.copy(SAMPLE, path)
    alter(path, f"UPDATE {schema.API_CALL.name} SET nameId = 10000000 + nameId % 2")
    where = ["-o", str(tmp_path / "out")] if command[0] == "export" else []
    assert in_process(*command, path, *where).code == EXIT_DONE
    assert {*open_trace(path).api_names.values()} == {"unnamed call"}
