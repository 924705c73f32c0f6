"""Programs without a GPU, recorded with the real nsys: what the report says is what they did."""

import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import TraceBuilder
from tests.support.profiler_events import call, kernel, write
from tests.support.recording import profile
from tests.support.selection import known
from tests.support.traces import closed_analysis
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.analysis import Analysis, Options, analyze, analyze_reports
from traceprof.errors import UsageError
from traceprof.reports import json as json_report
from traceprof.reports import text
from traceprof.run.opening import open_run
from traceprof.trace.nsight import schema
from traceprof.trace.open import open_trace

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "tests" / "support" / "programs" / "gloo_pairs.py"
COUNT = 1024
NUM_THREADS = 7
"""Each rank's Gloo has two threads and a loop for each of its two groups, beside the main one."""


def record(folder: Path, nvtx: Path | None, *program: str) -> Analysis:
    """Record a Python program with a folder's nvtx, or the installed one; analyse it."""
    report = folder / "report.nsys-rep"
    paths = [str(ROOT)] if nvtx is None else [str(nvtx), str(ROOT)]
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    profile("nsys", options, report, [sys.executable, *program], environment)
    return analyze(report)


@pytest.fixture(scope="module")
def two_pairs(
    tmp_path_factory: pytest.TempPathFactory, nsys: str, nvtx_0_2_11: Path
) -> tuple[Analysis, list[dict[str, Any]]]:
    """Record two pairs of ranks, and return what the report and what the program say.

    On a busy machine nsys may miss the names of threads: then it records once more.
    """
    for _ in range(2):
        folder = tmp_path_factory.mktemp("pairs")
        clocks = folder / "clocks.json"
        analysis = record(folder, nvtx_0_2_11, str(PAIRS), "2", str(clocks))
        analysis.close()
        if min(num_threads(analysis)) >= NUM_THREADS:
            break
    return analysis, json.loads(clocks.read_text())


def num_threads(analysis: Analysis) -> list[int]:
    """Return how many threads of each rank have names, 0 where that is not known."""
    return [result.num_threads or 0 for result in analysis.result.measured.shown_process_groups]


@pytest.mark.long
def test_the_cost_of_an_operation_is_what_the_programs_clock_says(
    two_pairs: tuple[Analysis, list[dict[str, Any]]],
) -> None:
    analysis, told = two_pairs
    assert [(rank.rank, rank.device) for rank in analysis.run.ranks] == [
        (rank, None) for rank in range(4)
    ]
    for result, clock in zip(analysis.result.collectives, told, strict=True):
        (use,) = result.uses
        assert (result.rank, use.operation) == (clock["rank"], "AllReduce")
        assert use.communicator == f"group {clock['group']}"
        assert (use.count, use.bytes) == (COUNT, 400 * COUNT)
        # The clock is read before and after the label, and inside of it.
        inside, outside = clock["inside_ns"], clock["outside_ns"]
        assert sum(inside) <= use.total_ns <= sum(outside)
        assert statistics.median(inside) <= use.median_ns <= statistics.median(outside) + 1
        measures = analysis.result.breakdown[clock["rank"]].whole
        assert measures.communication_ns == use.total_ns  # calls follow each other
        assert (measures.compute_ns, measures.num_communication) == (0, COUNT)
    (trace,) = analysis.run.traces
    assert trace.session.num_cores == os.cpu_count()
    assert trace.session.host
    assert min(num_threads(analysis)) >= NUM_THREADS


ONE_RANGE = """
import nvtx
nvtx.push_range("forward", domain="traceprof")
number = nvtx.start_range("all_reduce bytes=4 group=0 rank=5 size=8 seq=0", domain="traceprof")
nvtx.end_range(number)
nvtx.pop_range(domain="traceprof")
nvtx.start_range("broadcast bytes=4 group=0 rank=5 size=8 seq=1", domain="traceprof")
"""


@pytest.mark.long
def test_started_ranges_and_one_that_is_never_ended(
    tmp_path: Path, nsys: str, nvtx_0_2_11: Path
) -> None:
    analysis = record(tmp_path, nvtx_0_2_11, "-c", ONE_RANGE)
    analysis.close()
    (rank,) = analysis.run.ranks
    assert (rank.rank, rank.device) == (5, None)
    (result,) = analysis.result.breakdown
    assert result.whole.num_communication == 2
    assert 0 < result.whole.overlapped_communication_ns < result.whole.compute_ns
    # Nsight lets the open one last until the capture's end, long after the program's.
    assert result.whole.window_ns < 1_000_000_000
    assert any("open when the capture ended (1)" in note for _, note in analysis.notes)


def test_ranges_that_nvtx_did_not_write_are_missed_aloud(tmp_path: Path, nsys: str) -> None:
    # With Nsight Systems 2023.4 and an nvtx from 0.2.12 on there is a domain, and nothing else.
    analysis = record(tmp_path, None, "-c", ONE_RANGE)
    analysis.close()
    warned = any("nothing was recorded of the NVTX domain" in note for _, note in analysis.notes)
    assert warned != bool(analysis.run.ranks)


_GPUS = [{"id": device, "name": "Tesla V100"} for device in range(4)]


def recording(path: Path, start_us: int, device: int = 0, **facts: Any) -> Path:
    """Write a trace of one kernel on a device."""
    events = [call(1, 2), kernel(start_us, start_us + 10, device=device)]
    return write(path, events, **facts)


def ranks(*of_files: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"distributedInfo": {"rank": rank, "world_size": size}} for rank, size in of_files]


def machines(paths: Sequence[Path]) -> list[str | None]:
    run = open_run([open_trace(path) for path in paths])
    try:
        return run.machines
    finally:
        run.close()


@pytest.mark.parametrize("is_changed", [False, True])
def test_one_recording_given_twice_is_refused(tmp_path: Path, *, is_changed: bool) -> None:
    """Also where its bytes differ, as after another export."""
    for name in ("a.sqlite", "b.sqlite"):
        builder = TraceBuilder().kernel(0, 90).kernel(200, 290)
        if is_changed and name == "b.sqlite":
            builder.raw("StringIds", id=90_000, value="another export")
        builder.write(tmp_path / name)
    with pytest.raises(UsageError, match=r"a\.sqlite and .*b\.sqlite are the same recording"):
        analyze(tmp_path / "a.sqlite", tmp_path / "b.sqlite")


@pytest.mark.parametrize("middle", [[(100, 151)], [(101, 151)]])
def test_recordings_with_the_same_ends_are_not_one(
    tmp_path: Path, middle: list[tuple[int, int]]
) -> None:
    """As of containers of one host, whose process ids are alike; also where all sums are equal."""
    paths = []
    for name, spans in (("a.sqlite", [(100, 150)]), ("b.sqlite", middle)):
        builder = TraceBuilder()
        for start, end in [(0, 90), *spans, (200, 290)]:
            builder.kernel(start, end)
        paths.append(builder.write(tmp_path / name))
    assert len(analyze(*paths).run.ranks) == 2


@pytest.mark.parametrize(
    ("claims", "is_refused"),
    [
        ([(0, 2), (1, 2)], False),
        ([(1, 2), (1, 2)], True),
        ([(0, 8), (0, 8)], True),
        ([(0, 1), (0, 1)], False),  # each a run of its own, such as copies of a server
        ([(2, 8), (5, 8), (2, 8)], True),
    ],
)
def test_a_rank_that_two_reports_claim_is_refused(
    claims: list[tuple[int, int]], tmp_path: Path, *, is_refused: bool
) -> None:
    paths = [
        recording(tmp_path / f"part{index}.json", 10 + index, **facts)
        for index, facts in enumerate(ranks(*claims))
    ]
    if is_refused:
        with pytest.raises(UsageError, match=rf"part0.json and .*part{len(claims) - 1}.json"):
            analyze(*paths)
    else:
        assert len(analyze(*paths).run.ranks) == len(claims)


@pytest.mark.parametrize(
    ("devices", "gpus", "hosts", "expected"),
    [
        ([0, 1, 2, 3], _GPUS, [None] * 4, 1),
        ([0, 1, 0, 1], _GPUS, [None] * 4, None),  # two machines of which each runs two
        ([0, 0], _GPUS[:1], [None] * 2, None),  # each sees its own only
        ([0, 5], _GPUS, [None] * 2, None),
        ([0, 1], _GPUS, ["a", "b"], 2),
        ([0, 0], _GPUS, ["a", "a"], 1),
    ],
)
def test_machines(
    devices: list[int],
    gpus: list[dict[str, Any]],
    hosts: list[str | None],
    expected: int | None,
    tmp_path: Path,
) -> None:
    paths = [
        recording(
            tmp_path / f"{index}.json",
            100 + index,
            device,
            deviceProperties=gpus,
            **({} if host is None else {"host_name": host}),
        )
        for index, (device, host) in enumerate(zip(devices, hosts, strict=True))
    ]
    found = machines(paths)
    assert (None if None in found else len(set(found))) == expected
    # Ranks are compared, and share cores, by the same machines.
    compared = closed_analysis(*paths).result.ranks.machines
    assert len(set(compared)) == (expected or len(paths))


@pytest.mark.long
def test_gpus_that_list_each_other_in_a_real_run(traces: Path) -> None:
    analysis = analyze(*sorted((traces / "kineto/dlrm_8ranks").glob("*.json.gz")))
    uses = [use for result in analysis.result.collectives for use in result.uses]
    assert {use.scope for use in uses} == {"intra-node"}
    assert {use.peak_gb_per_s for use in uses} == {150.0}  # of NVLink of a V100
    (late,) = (found for found in analysis.findings if found.id == "straggler")
    assert late.title.startswith("On the machine of these GPUs, it arrives ")


def test_amd_gpus_of_one_kind_have_its_name(tmp_path: Path) -> None:
    names = [{"id": device, "name": "AMD Instinct MI300X"} for device in (0, 1)]
    path = recording(tmp_path / "t.json", 100, device=9, deviceProperties=names)
    assert [rank.gpu for rank in analyze(path).run.ranks] == ["AMD Instinct MI300X"]


ORDER = [0, 1, 2, 3, 10, 11]


def test_ranks_stand_by_number(tmp_path: Path) -> None:
    paths = [
        TraceBuilder()
        .kernel(100, 200 + number, pid=number + 1)
        .nvtx("step 0", 50, 300, pid=number + 1)
        .write(tmp_path / f"rank_{number}.sqlite")
        for number in ORDER
    ]
    options = Options(savings=False)
    result = analyze_reports(sorted(paths, key=str), options, jobs=1)
    assert [rank.rank for rank in result.run.ranks] == ORDER
    assert [measured.whole.window_ns for measured in result.breakdown] == [100 + n for n in ORDER]
    document = json.loads(json_report.render(result))
    for key in ("ranks", "breakdown", "steps"):
        assert [entry["rank"] for entry in document[key]] == ORDER
    names = [document["reports"][rank["report"]]["path"] for rank in document["ranks"]]
    assert names == [str(path) for path in paths]
    steps = (
        text.render(result, is_verbose=True)
        .partition("Per training step")[2]
        .partition("Ranks on one")[0]
    )
    rows = [line.split()[0] for line in steps.splitlines() if line.strip()[:1].isdecimal()]
    assert rows == [str(number) for number in ORDER]
    analysis = analyze(*reversed(paths), options=options, jobs=1)
    assert [(rank.rank, rank.pid) for rank in analysis.run.ranks] == [(n, n + 1) for n in ORDER]
    analysis.close()


def test_ranks_on_the_same_gpu_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for pid, gpu, device in [(1000, "a", 0), (1050, "b", 0), (1100, "a", 0), (1100, "c", 1)]:
        builder.kernel(pid, pid + 100, pid=pid, device=device)
        row = {"gpuId": ord(gpu), "cudaId": device, "pid": pid, "uuid": f"GPU-{gpu}"}
        builder.raw(schema.CUDA_DEVICES, **row)
    result = analyze_reports([builder.write(tmp_path / "run.sqlite")], Options(savings=False))
    assert [note for _, note in result.notes if "same GPU" in note] == [
        "ranks 0, 2 run on the same GPU: while it is idle for one, it may work for another"
    ]
    assert "ranks 0, 2 share a GPU" in known(known(three_lines(result)).trust)
