"""Why a GPU idles, held to the reference on real, simulated and generated exports."""

import random
from functools import partial
from pathlib import Path

import pytest

from tests.reference.host import Evidence
from tests.reference.idle_causes import CAUSES, RankIdle
from tests.reference.idle_causes import idle_causes as reference
from tests.reference.nsight_export import export_of
from tests.reference.spans import length, without
from tests.support.builders import TraceBuilder, global_tid
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.host.idle_causes import IdleCause, IdleDetail, details, idle_causes
from traceprof.host.stalls import host_stalls
from traceprof.run.opening import Window
from traceprof.run.windows import training_of

US, MS = 1_000, 1_000_000


def measured(rank: object, window: tuple[int, int]) -> dict[str, int]:
    causes = idle_causes(rank)  # type: ignore[arg-type]
    return {f"{cause.value}_ns": ns for cause, ns in causes.within(Window(*window)).items()}


def assert_agreement(path: Path, *cuts: tuple[float, float]) -> None:
    """Hold every rank to the reference, in its window, its training and in parts of the window."""
    export = export_of(path)
    evidence = Evidence(export)
    with ranks_of(path) as ranks:
        for rank in ranks:
            if rank.device is None:
                continue
            expected = RankIdle(export, evidence, rank.process, rank.device)
            low, high = expected.span()
            training = training_of(rank)
            windows = [(low, high), (training.start_ns, training.end_ns)]
            for cut in cuts:
                start, end = (low + int((high - low) * share) for share in cut)
                windows.append((start, end))
            # tests/reference/completeness.py holds when operations that are lost may have run.
            lost = [*zip(rank.lost.start_ns.tolist(), rank.lost.end_ns.tolist(), strict=True)]
            for window in windows:
                causes = dict.fromkeys(CAUSES, 0)
                for piece in expected.answer(window).pieces:
                    causes[piece.cause] += length(without([(piece.start, piece.end)], lost))
                assert measured(rank, window) == causes


def test_every_cause_is_there() -> None:
    assert tuple(f"{cause.value}_ns" for cause in IdleCause) == CAUSES


def test_agreement_on_real_traces(real_trace: Path) -> None:
    assert_agreement(real_trace, (0.31, 0.77), (0.5, 0.505))


@pytest.mark.slow
@pytest.mark.parametrize("path", GPU_SAMPLES, ids=lambda path: path.stem)
def test_agreement_on_samples(path: Path) -> None:
    assert_agreement(path, (0.31, 0.77))


CALLS = (
    "cudaMalloc", "cudaDeviceSynchronize", "cudaEventRecord", "cuModuleLoadData", "cudaMemcpy",
    "cudaStreamSynchronize", "cudaHostRegister", "cudaStreamBeginCapture_v10000",
    "cudaStreamEndCapture_v10000", "cudaEventCreateWithFlags_v3020",
)  # fmt: skip
RANGES = ("step 1", "step 2", "data loading", "x", "Warm-up", "MPI_Send", "ncclCommInitRank",
          "garbage collection", "save_checkpoint", "optimizer step")  # fmt: skip
THREADS = (1000, 1001)
SYSTEM_CALLS = ("poll", "ioctl", "sem_wait")


def generated(seed: int) -> TraceBuilder:
    """Make two threads, two streams, sometimes two devices, and rows of all kinds."""
    chooser = random.Random(seed)
    trace = TraceBuilder(chooser.choice(["2.9.1", "3.7.2", "3.25.0"])).nvtx("x", 0, 1)
    unit = chooser.choice([1, US, 50 * US])
    add_operations(trace, chooser, unit)
    add_host(trace, chooser, unit)
    add_pages(trace, random.Random(f"pages {seed}"), unit)
    add_short(trace, random.Random(f"short {seed}"))
    if chooser.randrange(2):
        add_stalls(trace, chooser)
    if chooser.randrange(6) == 0:
        trace.without("NVTX_EVENTS", "endGlobalTid")
    return trace.shuffled(seed)


def add_stalls(trace: TraceBuilder, chooser: random.Random) -> None:
    """Add calls that are alike, and a few that take far longer."""
    for number in range(40):
        start = number * 500 * US
        length = 2 * US if chooser.random() < 0.95 else chooser.randrange(500, 4000) * US
        trace.api("cudaLaunchKernel", start, start + length, tid=1000, returned=1)
        if chooser.random() < 0.1:
            end = start + length // 2 + US
            trace.api("cuLaunchKernel", start + US, end, tid=1000, returned=1)
    trace.nesting()


def add_operations(trace: TraceBuilder, chooser: random.Random, unit: int) -> None:
    some, num_devices = chooser.randrange, chooser.choice([1, 1, 1, 2])
    for _ in range(some(1, 30)):
        start, length = some(400) * unit, some(5) * some(20) * unit
        before = chooser.choice([0, 1, 5, 30, 60, -7]) * unit
        launch = start - before, start - before + some(20) * unit
        how = {
            "tid": chooser.choice(THREADS),
            "stream": chooser.choice([7, 9]),
            "device": some(num_devices),
            "launch": chooser.choice([launch, launch, launch, None, False]),
        }
        copy = partial(
            trace.memcpy,
            kind=chooser.choice(["HtoD", "DtoH", "DtoD", "PtoP"]),
            pageable=some(2) == 0,
            api=chooser.choice(["cudaMemcpy_v3020", "cudaMemcpyAsync_v3020"]),
        )
        kernel = partial(trace.kernel, name=chooser.choice(["gemm", "conv", "ncclDevKernel_X"]))
        make = chooser.choice([kernel, kernel, copy, copy, trace.memset, trace.graph])
        make(start, start + length, **how)  # type: ignore[operator]


def add_short(trace: TraceBuilder, chooser: random.Random) -> None:
    """Make short operations in a row, each launched just before or after the one before ends."""
    some = chooser.randrange
    time, kind = some(20) * MS, chooser.choice(["kernel", "kernel", "memset", "graph"])
    for _ in range(chooser.choice([0, some(150)])):
        returned = time + (some(250) - 150) * 100
        start = max(time + some(1, 20) * 100, returned + some(20, 60) * 100)
        launch = min(start, returned - some(30) * 100), returned
        how = {"tid": chooser.choice(THREADS), "stream": chooser.choice([7, 7, 7, 9])}
        time = start + some(1, 50) * 100
        getattr(trace, chooser.choice([kind, kind, "kernel"]))(start, time, launch=launch, **how)


def add_pages(trace: TraceBuilder, chooser: random.Random, unit: int) -> None:
    """Move pages of unified memory, sometimes after a call that prefetches."""
    some = chooser.randrange
    for _ in range(chooser.choice([0, some(12)])):
        start = some(400) * unit
        kind = chooser.choice(["unified DtoH", "unified DtoH", "unified HtoD"])
        trace.memcpy(start, start + some(5) * some(20) * unit, kind, launch=False, stream=11)
    for _ in range(chooser.choice([0, some(3)])):
        start = some(400) * unit
        trace.api("cudaMemPrefetchAsync_v8000", start, start + unit, tid=chooser.choice(THREADS))


def add_host(trace: TraceBuilder, chooser: random.Random, unit: int) -> None:
    some = chooser.randrange
    for number, name in enumerate((*SYSTEM_CALLS, "Lazy Function Loading", "cublasCreate_v2")):
        trace.raw("StringIds", id=90_000 + number, value=name)
    for _ in range(some(20)):
        start, length = some(400) * unit, some(60) * unit
        trace.api(chooser.choice(CALLS), start, start + length, tid=chooser.choice(THREADS))
    for _ in range(some(8)):
        start, length = some(400) * unit, some(90) * unit
        end = None if some(9) == 0 else start + length
        trace.nvtx(chooser.choice(RANGES), start, end, tid=chooser.choice(THREADS))
    for _ in range(chooser.choice([0, some(30)])):
        start, thread = some(400) * unit, global_tid(tid=chooser.choice(THREADS))
        trace.raw("SCHED_EVENTS", cpu=0, start=start, isSchedIn=some(2), globalTid=thread)
    for table, name, ids in (
        ("OSRT_API", "nameId", range(3)), ("MPI_P2P_EVENTS", "textId", range(3)),
        ("CUPTI_ACTIVITY_KIND_OVERHEAD", "nameId", range(3, 4)),
        ("CUBLAS_EVENTS", "nameId", range(4, 5)), ("UCP_EVENTS", "textId", range(3)),
    ):  # fmt: skip
        for _ in range(chooser.choice([0, 0, some(8)])):
            start, thread = some(400) * unit, global_tid(tid=chooser.choice(THREADS))
            end = chooser.choice([start + some(80) * unit, start - 1, None])
            text = {name: 90_000 + chooser.choice(ids)}
            trace.raw(table, start=start, end=end, globalTid=thread, **text)
    if some(3) == 0:
        trace.raw("SCHED_EVENTS", start=None, isSchedIn=1, globalTid=global_tid())
        trace.raw("OSRT_API", start=5, end=9, globalTid=None, nameId=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 1500), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_agreement_on_generated_exports(seeds: range, tmp_path: Path) -> None:
    num_stalls = num_launching = 0
    for seed in seeds:
        path = generated(seed).write(tmp_path / f"{seed}.sqlite")
        assert_agreement(path, (0.31, 0.77))
        with ranks_of(path) as ranks:
            for rank in ranks:
                if rank.device is not None:
                    num_stalls += len(host_stalls(rank))
                    num_launching += len(idle_causes(rank).gaps.launching)
        path.unlink()
    assert min(num_stalls, num_launching) > 5


def test_a_range_belongs_to_the_thread_that_ended_it(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, MS, launch=(0, US))
    trace.kernel(9 * MS, 10 * MS, launch=(9 * MS - US, 9 * MS))
    row = {"start": 2 * MS, "end": 5 * MS, "eventType": 60, "text": "load_batch", "domainId": 0}
    trace.raw("NVTX_EVENTS", globalTid=global_tid(tid=77), endGlobalTid=global_tid(), **row)
    row |= {"start": 5 * MS, "end": 7 * MS}
    trace.raw("NVTX_EVENTS", globalTid=global_tid(), endGlobalTid=global_tid(tid=77), **row)
    path = trace.write(tmp_path)
    assert_agreement(path)
    with ranks_of(path) as (rank,):
        window = rank.window.start_ns, rank.window.end_ns
        assert measured(rank, window)["data_loading_ns"] == 3 * MS


def test_what_goes_away_without_waits(tmp_path: Path) -> None:
    """Of two waits that overlap in what they take, the other one still takes its part.

    The last one holds the first 0.4 ms of the idle time, until its cost is used up; the first one,
    which lasts 1 ms, the rest.
    """
    trace = TraceBuilder().kernel(0, 10 * MS, launch=(0, US))
    trace.api("cudaDeviceSynchronize", 9 * MS, 10 * MS + 15 * US)  # takes 1 ms
    trace.api("cudaStreamSynchronize", 10 * MS + 20 * US, 10 * MS + 435 * US)  # takes 0.4 ms
    start = 11 * MS + 500 * US
    trace.kernel(start, start + MS, launch=(10 * MS + 440 * US, start))
    with ranks_of(trace.write(tmp_path)) as (rank,):
        causes, window = idle_causes(rank), rank.window
        costs = causes.attributable.costs
        assert costs.cost_ns.tolist() == [1000 * US, 400 * US]
        whole = causes.within(window)[IdleCause.SYNC]
        assert whole == 1000 * US
        assert details(rank, window, IdleCause.SYNC) == (
            IdleDetail("cudaDeviceSynchronize", 600 * US),
            IdleDetail("cudaStreamSynchronize", 400 * US),
        )
        assert causes.sync_ns_without(window, costs.call) == whole
        assert causes.sync_ns_without(window, costs.call[1:]) == 0
        assert causes.sync_ns_without(window, costs.call[:1]) == whole - 400 * US


@pytest.mark.parametrize(
    ("name", "launches", "sync_ms"),
    [
        ("Optimizer.step#DeepSpeedCPUAdam.step", False, 0),
        ("Optimizer.step#AdamW.step", True, 8),  # on the GPU: it could launch ahead
        ("lr_scheduler.step", False, 8),  # it needs no gradients
    ],
)
def test_an_optimizer_on_the_host_needs_what_was_waited_for(
    name: str, launches: bool, sync_ms: int, tmp_path: Path
) -> None:
    """8 ms in it, or before its first kernel, after a wait that lasts 10 ms."""
    trace = TraceBuilder().kernel(0, 11 * MS, launch=(0, US))
    trace.api("cudaStreamSynchronize", MS, 11 * MS + US)
    begin, end = 11 * MS + US, 19 * MS + US
    trace.nvtx(name, begin, end + 2 * US * launches)
    trace.kernel(end + 5 * US, 20 * MS, launch=(end, end + US))
    path = trace.write(tmp_path)
    assert_agreement(path)
    with ranks_of(path) as (rank,):
        found = measured(rank, (rank.window.start_ns, rank.window.end_ns))
        assert round(found["sync_ns"] / MS) == sync_ms
        assert round(found["host_code_ns"] / MS) == 8 - sync_ms


def test_stalls_are_found_without_calls_of_operations(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, MS, launch=False).kernel(99 * MS, 100 * MS, launch=False)
    for start in range(8):
        trace.api("cudaEventQuery", (2 + start) * MS, (2 + start) * MS + 5 * US)
    trace.api("cudaEventQuery", 20 * MS, 90 * MS)
    assert_agreement(trace.write(tmp_path))


def test_work_that_waits_in_one_gap_is_named_for_all_of_its_time(tmp_path: Path) -> None:
    """An allocation divides the wait of one kernel; both parts are the same kernel's."""
    trace = TraceBuilder().kernel(0, MS, launch=(0, US))
    trace.kernel(30 * MS, 31 * MS, name="late", launch=(2 * MS, 2 * MS + 10 * US))
    trace.api("cudaMalloc", 10 * MS, 12 * MS)
    path = trace.write(tmp_path)
    assert_agreement(path)
    with ranks_of(path) as (rank,):
        queued_ns = idle_causes(rank).within(rank.window)[IdleCause.QUEUED]
        assert queued_ns == 26 * MS - 30 * US
        waiting, *_ = details(rank, rank.window, IdleCause.QUEUED)
        assert waiting == IdleDetail("late on stream 7", queued_ns)


# Shares of the idle time, by causes.
SHARES: dict[str, dict[str, tuple[float, float]]] = {
    "pairs/a100_loader_0_*": {"data_loading waiting": (0.9, 1), "launch_bound": (0, 0.06)},
    "pairs/a100_loader_1_*": {"data_loading waiting": (0.9, 1), "launch_bound": (0, 0.06)},
    "pairs/a100_loader_3_*": {"data_loading waiting": (0.8, 1), "launch_bound": (0, 0.06)},
    "jacobi_mpi/*": {"mpi": (0.82, 0.84)},
    "rtx3090x9_3nodes_tree/*": {
        "setup": (0.39, 0.44),
        "waiting": (0.555, 0.605),  # 56 to 60 % when rounded
        "launch_bound": (0, 0.0005),
    },
    # 504 of 682 ms by another measurement; here also what steps 2 to 5 wait in ranges of warm-up
    "pairs/warm_up_and_upload.sqlite": {"setup": (0.717, 0.761)},
    "a100_single_dali_amp_bf16.sqlite": {"turnaround": (0.85, 0.87), "launch_bound": (0, 0.1)},
}


@pytest.mark.long
@pytest.mark.parametrize("pattern", SHARES)
def test_shares_of_real_exports(pattern: str, traces: Path) -> None:
    ranks = [rank for path in traces.glob(pattern) for rank in reference(path)]
    assert ranks
    for rank in ranks:
        for causes, (low, high) in SHARES[pattern].items():
            ns = sum(rank.causes[f"{cause}_ns"] for cause in causes.split())
            assert low <= ns / rank.idle_ns <= high


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "replayed", "most"),
    [
        ("h100x2_torchrun_nccl_on_compute_stream", [21.2, 27.3], [25.3, 31.4]),
        ("pairs/h100x2_per_layer_sync", [52.1, 39.4], [59.1, 45.3]),
    ],
)
def test_waits_as_a_replay_takes_them_out(
    path: str, replayed: list[float], most: list[float], traces: Path
) -> None:
    ranks = reference(traces / f"{path}.sqlite")
    for rank, sync, limit in zip(ranks, replayed, most, strict=True):
        # The replay let the GPU run ahead of stalls, too; they are a cause of their own.
        waits = rank.causes["sync_ns"] + rank.causes["stalled_ns"]
        assert waits / MS == pytest.approx(sync, rel=0.04)
        assert waits / MS <= limit
