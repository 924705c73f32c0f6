"""Frames of events hold what is in the report: each kernel, copy, call and range once."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import traceprof
from tests.support.builders import TraceBuilder
from tests.support.commands import output_of
from tests.support.profiler_events import PID, event, kernel, write
from tests.support.selection import long_after, rows_long_after
from tests.support.traces import CPU_SAMPLE, GPU_SAMPLES, SAMPLE, closed_analysis
from traceprof.errors import TraceFileError, TraceFormatError, UsageError
from traceprof.frames.events import EVENTS


def in_report(path: Path, query: str) -> pd.DataFrame:
    with closing(sqlite3.connect(path)) as connection:
        return pd.read_sql(query, connection)


def check_against_report(path: Path) -> int:
    """Hold frames to the tables of a report, read by SQL; return how many kernels there are."""
    with traceprof.open_run(path) as run:
        kernels, copies, calls = run.kernels(), run.copies(), run.api_calls()
    query = (
        "SELECT value AS name, start AS start_ns, end - start AS duration_ns, gridX, blockZ,"
        " streamId AS stream FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    )
    expected = in_report(path, query)
    got = kernels.assign(
        name=kernels["name"].astype(object),
        gridX=kernels["grid"].astype(object).str.split("x").str[0].astype("int64"),
        blockZ=kernels["block"].astype(object).str.split("x").str[2].astype("int64"),
    )[[*expected.columns]]
    by = [*expected.columns]
    pd.testing.assert_frame_equal(
        got.sort_values(by).reset_index(drop=True),
        expected.sort_values(by).reset_index(drop=True),
        check_dtype=False,
    )
    for frame, tables in ((copies, ["MEMCPY", "MEMSET"]), (calls, ["RUNTIME"])):
        there = in_report(path, "SELECT name FROM sqlite_master")["name"].tolist()
        names = [f"CUPTI_ACTIVITY_KIND_{table}" for table in tables]
        parts = [in_report(path, f"SELECT start FROM {name}") for name in names if name in there]
        starts = np.concatenate([[], *(part["start"] for part in parts)])
        assert np.array_equal(np.sort(frame["start_ns"]), np.sort(starts))
    return len(kernels)


@pytest.mark.parametrize("path", GPU_SAMPLES, ids=lambda path: path.stem)
def test_frames_hold_what_is_in_the_report(path: Path) -> None:
    assert check_against_report(path) > 0


@pytest.mark.parametrize(
    ("name", "num_kernels"),
    rows_long_after(1, [("rtx3090_gpu_metrics", 4), ("a100x4_ddp_baseline_rank0", 22_564)]),
)
def test_frames_hold_what_is_in_a_real_report(name: str, num_kernels: int, traces: Path) -> None:
    assert check_against_report(traces / f"{name}.sqlite") == num_kernels


def test_marks_are_those_of_the_report() -> None:
    path = SAMPLE.with_stem("marks")
    with traceprof.open_run(path) as run:
        marks, of_one = run.marks(), run.marks(1)
    expected = in_report(
        path,
        "SELECT start AS time_ns, value AS name, globalTid & 0xFFFFFF AS thread FROM NVTX_EVENTS"
        " JOIN StringIds ON id = textId WHERE eventType = 34 ORDER BY globalTid, start",
    )
    assert [*marks.columns] == ["rank", "time_ns", "thread", "name"]
    for column in expected:
        assert marks[column].tolist() == expected[column].tolist()
    assert len(marks) == 30
    assert of_one["time_ns"].tolist() == marks["time_ns"][marks["rank"] == 1].tolist()


def test_operators_are_those_of_the_profile(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[2, 3], [3, 5]], "Concrete Inputs": ["", ""]}
    events = [
        event("cpu_op", "aten::linear", 10, 30, (PID, 1), **{"External id": 7}),
        event("cpu_op", "aten::mm", 12.5, 20, (PID, 1), **{"Sequence number": 5, **shapes}),
        event("cpu_op", "MmBackward0", 50, 8, (PID, 2), **{"Sequence number": 5}),
        kernel(90, 91),
    ]
    with traceprof.open_run(write(tmp_path / "t.json", events)) as run:
        operators = run.operators()
    assert operators["name"].tolist() == ["aten::linear", "aten::mm", "MmBackward0"]
    assert operators["duration_ns"].tolist() == [30_000, 20_000, 8_000]
    assert np.diff(operators["start_ns"]).tolist() == [2500, 37_500]
    assert operators["thread"].tolist() == [1, 1, 2]
    for name, expected in (
        ("external_id", [7, None, None]), ("sequence_number", [None, 5, 5]),
        ("flops", [None, 60, None]),
    ):  # fmt: skip
        found = operators[name].astype(object)
        assert [None if pd.isna(value) else value for value in found] == expected, name


@pytest.mark.parametrize(
    "path",
    long_after(2, [SAMPLE, CPU_SAMPLE, *(path for path in GPU_SAMPLES if path != SAMPLE)]),
    ids=lambda path: path.stem,
)
def test_counts_are_those_of_the_breakdown(path: Path) -> None:
    breakdown = closed_analysis(path).to_pandas("breakdown").set_index("rank")
    with traceprof.open_run(path) as run:
        assert [*run.ranks] == [*breakdown.index]
        for rank in run.ranks:
            kernels, copies = run.kernels(rank), run.copies(rank)
            communication = run.communication(rank)
            num = breakdown.loc[rank]
            is_peer = copies["kind"] == "p2p"
            assert len(communication) == num["num_communication"]
            assert (~is_peer).sum() == num["num_copies"]
            communicates = kernels["category"] == "communication"
            assert (~communicates).sum() == num["num_kernels"]
            if path != CPU_SAMPLE:
                assert communicates.sum() + is_peer.sum() == len(communication)
                assert kernels["operation"].notna().equals(communicates)


def test_a_rank_is_a_part_of_all_ranks() -> None:
    with traceprof.open_run(SAMPLE.with_stem("marks")) as run:
        for name in EVENTS:
            make = getattr(run, name)
            parts = [make(rank=rank) for rank in run.ranks]
            is_recorded = name != "operators"  # by torch.profiler only
            assert sum(map(len, parts)) == len(make())
            assert set(make()["rank"]) == ({0, 1} if is_recorded else set())
            for part in parts:
                assert [*part.columns] == [*make().columns]
                if name == "marks":
                    assert part["time_ns"].is_monotonic_increasing
                    continue
                assert part["start_ns"].is_monotonic_increasing
                assert part["end_ns"].equals(part["start_ns"] + part["duration_ns"])


def test_what_is_not_told_is_missing(tmp_path: Path) -> None:
    builder = (
        TraceBuilder()
        .kernel(100, 200, "gemm", grid=(3, 2, 1))
        .kernel(150, 400, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", stream=9)
        .memcpy(420, 430, "HtoD", bytes=77, pageable=True)
        .memcpy(440, 450, "PtoP", source=0, destination=1)
        .memset(410, 415)
        .nvtx("open", 90, None)
        .nvtx("closed", 95, 99)
    )
    with traceprof.open_run(builder.write(tmp_path)) as run:
        kernels, copies, ranges = run.kernels(0), run.copies(0), run.ranges(0)
        communication = run.communication(0)
    assert [*kernels["grid"]] == ["3x2x1", "1x1x1"]
    assert [*kernels["operation"].isna()] == [True, False]
    assert kernels["tensor_cores"].isna().any()
    assert [*copies["kind"]] == ["memset", "h2d", "p2p"]
    assert [*copies["bytes"]] == [4, 77, 1 << 20]
    assert copies["source_memory"][1] == "pageable"
    assert copies["source_memory"].isna()[0]
    assert copies["source_device"].isna()[1]
    assert [*ranges["name"]] == ["open", "closed"]
    assert [*ranges["end_ns"].isna()] == [True, False]
    assert [*ranges["duration_ns"].isna()] == [True, False]
    assert ranges["duration_ns"][1] == 4
    assert [*communication["name"]] == ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "peer copy"]
    assert [*communication["stream"]] == [9, 7]
    assert communication["bytes"].isna()[0]
    assert communication["bytes"][1] == 1 << 20


def test_unknown_sizes_of_copies_are_missing(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).memcpy(110, 120, "HtoD", bytes=77)
    for start, kind, peer in ((200, 1, 0), (300, 10, 1)):  # to the device, and to another one
        builder.raw("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + 50, copyKind=kind,
                    srcKind=1, dstKind=2, srcDeviceId=0, dstDeviceId=peer, bytes=None, deviceId=0,
                    streamId=7, globalPid=1 << 48 | 1000 << 24)  # fmt: skip
    with traceprof.open_run(builder.write(tmp_path)) as run:
        copies, communication = run.copies(0), run.communication(0)
    assert [*copies["kind"]] == ["h2d", "h2d", "p2p"]
    assert [*copies["bytes"].isna()] == [False, True, True]
    assert copies["bytes"][0] == 77
    assert [*communication["bytes"].isna()] == [True]


def test_a_report_of_a_process_without_a_gpu_has_the_same_columns() -> None:
    with traceprof.open_run(CPU_SAMPLE) as without, traceprof.open_run(SAMPLE) as with_gpu:
        for name in EVENTS:
            assert getattr(without, name)().dtypes.index.equals(
                getattr(with_gpu, name)().dtypes.index
            )
        assert len(without.kernels()) == 0
        communication = without.communication()
        assert len(communication) > 0
        assert communication["operation"].isin(["AllReduce", "Broadcast", "Barrier"]).any()
        assert (communication["num_ranks"].dropna() >= 2).all()


def test_calls_of_a_process_with_two_devices_stand_once(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(10, 20).kernel(10, 20, device=1)
    with traceprof.open_run(builder.write(tmp_path)) as run:
        assert len(run.ranks) == 2
        assert len(run.api_calls()) == len(run.api_calls(1)) == 2
        assert len(run.kernels()) == 2


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_text("no report")
    with pytest.raises(TraceFileError):
        traceprof.open_run(tmp_path / "missing.sqlite")
    with pytest.raises(UsageError, match="no report was given"):
        traceprof.open_run([])
    with traceprof.open_run([SAMPLE, damaged]) as run:
        assert [failed.path for failed in run.failed] == [damaged]
        assert isinstance(run.failed[0].error, TraceFormatError)
        with pytest.raises(UsageError, match=r"no rank 7; choose one of the ranks 0, 1"):
            run.kernels(7)


def test_pandas_is_imported_for_frames_only() -> None:
    code = (
        "import sys, traceprof\n"
        f"run = traceprof.open_run({str(SAMPLE)!r})\n"
        "print(run.ranks, 'pandas' in sys.modules)\n"
    )
    assert output_of(sys.executable, "-c", code).endswith(" False\n")


def test_the_place_of_kernels_and_copies_is_the_range_around_their_launch(tmp_path: Path) -> None:
    trace = TraceBuilder().nvtx("FSDP::pre_forward (layers.3)", 0, 100).nvtx("backward", 200, 300)
    trace.kernel(50, 69).kernel(250, 255).kernel(400, 405).memcpy(70, 80).memset(450, 460)
    path = trace.write(tmp_path / "t.sqlite")
    with traceprof.open_run(path) as run:
        kernels, copies, calls = run.kernels(), run.copies(), run.api_calls()
    place = "FSDP::pre_forward (layers.3)"
    assert kernels["place"].astype(object).where(kernels["place"].notna(), None).tolist() == [
        place, "backward", None,
    ]  # fmt: skip
    assert copies["place"].astype(object).where(copies["place"].notna(), None).tolist() == [
        place, None,
    ]  # fmt: skip
    assert set(calls["place"].dropna()) == {place, "backward"}
    launched = kernels.merge(calls, on=["rank", "correlation"])
    assert launched["place_x"].astype(object).equals(launched["place_y"].astype(object))
    rows = closed_analysis(path).to_pandas("kernels")
    assert [*rows["range"]] == ["FSDP::pre_forward (layers.#)"]
