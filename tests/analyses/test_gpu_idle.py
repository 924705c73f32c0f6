"""What gpu-idle says of causes; `tests.host.test_idle_causes` holds the numbers to a reference."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_tid
from tests.support.claims import only_finding, switched
from tests.support.kept_claims import Kept
from tests.support.selection import known
from tests.support.traces import ranks_of
from traceprof.analyses import gpu_idle
from traceprof.analyses.gpu_idle import GpuIdleResult, removing
from traceprof.analyses.verdict.three_lines import _place, short_action, three_lines
from traceprof.analyses.verdict.yields import cause_of
from traceprof.analysis import analyze_reports
from traceprof.findings import Finding, NotApplicable
from traceprof.host.idle_causes import IdleCause
from traceprof.run.opening import Rank, Window, open_run
from traceprof.trace.nsight import schema
from traceprof.trace.open import open_trace

US, MS = 1_000, 1_000_000
TORCH = "at::native::add"


def opened(path: Path) -> Rank:
    (rank,) = open_run([open_trace(path)]).ranks
    return rank


def judged(tmp_path: Path, builder: TraceBuilder, window: Window | None = None) -> GpuIdleResult:
    rank = opened(builder.write(tmp_path))
    result = gpu_idle.run(rank, window or rank.window)
    assert sum(result.by_cause.values()) == result.metrics.idle_ns
    return result


def claims(tmp_path: Path, builder: TraceBuilder) -> list[Finding | NotApplicable]:
    return gpu_idle.findings(judged(tmp_path, builder))


def one(result: GpuIdleResult) -> Finding:
    return only_finding(gpu_idle.findings(result))


def late(kernel: str = TORCH) -> TraceBuilder:
    """A gap of 80 us in which the host launches."""
    builder = TraceBuilder().kernel(0, 100 * US, kernel, launch=(0, US))
    return builder.kernel(180 * US, 300 * US, kernel, launch=(100 * US, 170 * US))


def sampled(times_ms: Iterable[int], *symbols: str) -> TraceBuilder:
    """A gap of 8.7 ms on a core, with samples of a call chain, the innermost function first."""
    builder = switched(late("f"), (0, 1))
    builder.kernel(9 * MS, 10 * MS, "f", launch=(9 * MS - US, 9 * MS))
    for depth, text in enumerate(symbols):
        builder.raw("StringIds", id=90_000 + depth, value=text)
    for sample, time in enumerate(times_ms):
        builder.raw("COMPOSITE_EVENTS", id=sample, start=time * MS, globalTid=global_tid())
        for depth in range(len(symbols)):
            chain = {"id": sample, "symbol": 90_000 + depth, "stackDepth": depth}
            builder.raw("SAMPLING_CALLCHAINS", **chain)
    return builder


def test_a_gpu_that_works_for_another_process_is_not_lost(tmp_path: Path, kept: Kept) -> None:
    """Two processes take turns on GPU a, a third one has GPU b; both are idle for 10 us a time."""
    builder = TraceBuilder()
    for place, (pid, gpu) in enumerate([(1000, "a"), (1050, "a"), (1100, "b")]):
        row = {"gpuId": ord(gpu), "cudaId": 0, "pid": pid, "uuid": f"GPU-{gpu}"}
        builder.raw(schema.CUDA_DEVICES, **row)
        for turn in range(6):
            start = (100 * turn + 50 * (place % 2)) * US
            builder.kernel(start, start + 40 * US, pid=pid, launch=(start, start + US))
    ranks = open_run([open_trace(builder.write(tmp_path))]).ranks
    kept(claim for rank in ranks for claim in gpu_idle.findings(gpu_idle.run(rank, rank.window)))


def several_launches() -> TraceBuilder:
    """Launching makes most of the idle time, and the longest gap is another one."""
    builder = TraceBuilder().kernel(0, 600 * US, TORCH, launch=(0, US))
    for start in (1000, 2000, 3000):  # 400 us each of launching
        begin, end = (start - 400) * US, start * US
        builder.kernel(end, end + 600 * US, TORCH, launch=(begin - US, end - US))
    return builder.kernel(4500 * US, 4600 * US, TORCH, launch=(10 * US, 11 * US))  # in the queue


def in_mpi() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 100 * US, "jacobi", launch=(0, US))
    builder.raw("StringIds", id=90_000, value="MPI_Allreduce")
    row = {"start": 90 * US, "end": 8 * MS, "globalTid": global_tid(), "textId": 90_000}
    builder.raw("MPI_COLLECTIVES_EVENTS", **row)
    return builder.kernel(8 * MS, 9 * MS, "jacobi", launch=(8 * MS - US, 8 * MS))


def reading_pages() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, MS, "f", launch=(-9 * US, -8 * US))
    builder.api("cudaDeviceSynchronize_v3020", -5 * US, MS + US)
    switched(builder, (0, 1))
    for start in (3 * MS, 5 * MS, 7 * MS):
        builder.memcpy(start, start + US, "unified DtoH", launch=False, stream=0)
    return builder


def queued() -> TraceBuilder:
    """A CUDA graph launched 65 ms before it runs, and a copy that waits for 2 ms."""
    builder = TraceBuilder().kernel(0, MS, launch=(0, US))
    builder.graph(66 * MS, 67 * MS, launch=(500 * US, 600 * US), stream=9)
    builder.memcpy(69 * MS, 70 * MS, "HtoD", launch=(700 * US, 710 * US), stream=11)
    return builder.api("cudaStreamSynchronize", 720 * US, 70 * MS)


def one_after_the_other() -> TraceBuilder:
    builder = TraceBuilder()
    for start in range(0, 250 * US, 25 * US):
        builder.kernel(start, start + 10 * US, TORCH, launch=(-9 * US, -8 * US))
    return builder


def sleeping_loader() -> TraceBuilder:
    """Behind a wait: both have to go."""
    builder = TraceBuilder().kernel(0, 10 * MS, TORCH, launch=(0, US))
    builder.api("cudaDeviceSynchronize", 2 * US, 10 * MS)
    builder.nvtx("dataloader next", 10 * MS, 12 * MS)
    return builder.kernel(14 * MS, 15 * MS, TORCH, launch=(12 * MS, 14 * MS))


def clocks_that_disagree() -> TraceBuilder:
    """Launches that come before everything else are no evidence that work was queued."""
    builder = TraceBuilder().kernel(0, 100).kernel(5 * MS, 9 * MS, launch=(10, 20))
    return builder.memcpy(3 * MS, 3001 * US, "DtoH", bytes=4, pageable=True, launch=(30, MS))


def without_calls() -> TraceBuilder:
    return TraceBuilder().kernel(0, 100).kernel(160, 300).without("CUPTI_ACTIVITY_KIND_RUNTIME")


def silent() -> TraceBuilder:
    return TraceBuilder().kernel(0, MS, launch=(0, US)).kernel(9 * MS, 10 * MS)


def host_code(num_gaps: int) -> TraceBuilder:
    """Kernels of 100 µs, and gaps of 20 ms in which the launching thread runs."""
    builder = switched(TraceBuilder(), (0, 1))
    for number in range(num_gaps + 1):
        now = number * 20 * MS
        builder.kernel(now + US, now + 100 * US, f"fill_{number}", launch=(now, now + US))
    return builder


def allocating(call: str) -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(6):
        now = number * 2 * MS
        builder.api(call, now, now + MS)
        builder.kernel(now + 1_020 * US, now + 2 * MS, "solve", launch=(now + MS, now + 1_010 * US))
    return builder


def of_directives(kernel: str, *calls: str) -> TraceBuilder:
    """Per kernel of 2 µs an allocation of 12 µs, if any, and launching; a wait ends with it."""
    builder = TraceBuilder()
    for number in range(40):
        now = number * 50 * US
        for name in calls[:-1]:
            builder.api(name, now, now + 12 * US)
        builder.kernel(now + 40 * US, now + 42 * US, kernel, launch=(now + 14 * US, now + 39 * US))
        builder.api(calls[-1], now + 41 * US, now + 43 * US)
    return builder


def sleeping(call: str, num_gaps: int) -> TraceBuilder:
    builder = TraceBuilder().raw("StringIds", id=90_000, value=call)
    for number in range(num_gaps + 1):
        now = number * 20 * MS
        builder.kernel(now + US, now + MS, launch=(now, now + US))
        row = {"start": now + 2 * US, "end": now + 20 * MS - US, "globalTid": global_tid()}
        builder.raw("OSRT_API", **row, nameId=90_000)
    return builder


def checkpoint(kernel: str) -> TraceBuilder:
    """How to save is said to programs of PyTorch only; what came once in others recurs perhaps."""
    builder = TraceBuilder().kernel(US, MS, kernel, launch=(0, US))
    switched(builder, (0, 1)).nvtx("save_checkpoint", MS + 2 * US, 20 * MS - 2 * US)
    return builder.kernel(20 * MS + US, 21 * MS, kernel, launch=(20 * MS, 20 * MS + US))


def set_up(call: str) -> TraceBuilder:
    builder = TraceBuilder().kernel(0, MS, TORCH, launch=(0, US))
    builder.kernel(20 * MS, 21 * MS, TORCH, launch=(20 * MS - US, 20 * MS))
    return (builder.nvtx if call.startswith("nccl") else builder.api)(call, MS + US, 19 * MS)


def loading(kernel: str = TORCH, *, pageable: bool = True) -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 10 * MS, TORCH, launch=(0, US))
    builder.nvtx("dataloader next", 10 * MS, 19 * MS)
    builder.memcpy(19 * MS, 20 * MS, pageable=pageable, launch=(19 * MS, 19 * MS + US))
    return builder.kernel(20 * MS, 30 * MS, kernel, launch=(19 * MS + 2 * US, 19 * MS + 3 * US))


# Where MPI is not traced, its progress loops are no code of the host's own.
IN_MPI, APART = range(2, 9), (-4, -3, -2, -1, 2, 8)
PROGRAMS = {
    "late launches": late(),
    "several late launches": several_launches(),
    "MPI": in_mpi(),
    "pages that the host reads": reading_pages(),
    "queued": queued(),
    "one kernel after the other": one_after_the_other(),
    "a loader that sleeps": sleeping_loader(),
    "clocks that disagree": clocks_that_disagree(),
    "without calls": without_calls(),
    "silence": silent(),
    "hardly idle": TraceBuilder().kernel(0, 9901).kernel(9999, 20_000),
    "no time": TraceBuilder().kernel(5, 5),
    "host code, once": host_code(1),
    "host code": host_code(3),
    "allocations from a pool": allocating("cudaMallocAsync_v11020"),
    "allocations": allocating("cudaMalloc_v3020"),
    "directives that allocate": of_directives(
        "fill_42_gpu", "cuMemAlloc_v2", "cuStreamSynchronize"
    ),
    "waiting directives": of_directives("fill_42_gpu", "cuStreamSynchronize"),
    "directives": of_directives("fill_42_gpu", "cudaEventRecord"),
    "no directives": of_directives("fill", "cuMemAlloc_v2", "cuStreamSynchronize"),
    "a sleep of its own, once": sleeping("nanosleep", 1),
    "a sleep of its own": sleeping("nanosleep", 3),
    "a wait for a condition, once": sleeping("pthread_cond_wait", 1),
    "a wait for a condition": sleeping("pthread_cond_wait", 3),
    "a checkpoint of PyTorch": checkpoint(TORCH),
    "a checkpoint": checkpoint("f"),
    "set-up of a library": set_up("cuLibraryLoadData"),
    "set-up of NCCL": set_up("ncclCommInitRank"),
    "samples in MPI": sampled(IN_MPI, "opal_progress", "PMPI_Barrier", "main"),
    "samples in an exchange": sampled(IN_MPI, "opal_progress", "exchange", "main"),
    "samples in MPI that are far apart": sampled(APART, "opal_progress", "PMPI_Barrier", "main"),
    "loading": loading(),
    "loading, pinned": loading(pageable=False),
    "loading by DALI": loading("void dali::kernels::warp<int>"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    kept(claims(tmp_path, PROGRAMS[name]))


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("tokenize", "tokenize"),
        ("init_matrix(std::vector<double, std::allocator<double> >&, int, int)", "init_matrix"),
        ("std::engine<unsigned long, 32ul, (8 > 0)>::rand()", "std::engine::rand"),
        ("(anonymous namespace)::work(int)", "{unnamed}::work"),
        ("operator new(unsigned long)", "operator new(unsigned long)"),
        ("[Broken backtraces]", "[Broken backtraces]"),
    ],
)
def test_functions_of_host_code(tmp_path: Path, symbol: str, name: str) -> None:
    builder = sampled(range(1, 4), symbol, "main")
    finding = one(judged(tmp_path, builder))
    assert f"the host ran code of its own ({name})" in finding.title
    assert _place(finding) == f" ({name})"


def test_one_sample_of_each_thread_says_nothing_of_mpi(tmp_path: Path) -> None:
    builder = late("f").api("cudaEventQuery", 0, US, tid=2)
    start = 9 * MS
    builder.kernel(start, start + MS, "f", launch=(start - US, start))
    builder.raw("StringIds", id=90_000, value="MPI_Barrier")
    for sample, thread in enumerate((global_tid(), global_tid(tid=2))):
        builder.raw("COMPOSITE_EVENTS", id=sample, start=2 * MS, globalTid=thread)
        builder.raw("SAMPLING_CALLCHAINS", id=sample, symbol=90_000, stackDepth=0)
    assert "MPI" not in one(judged(tmp_path, builder)).title


@pytest.mark.parametrize(("num_late", "assumed"), [(1, ()), (9, ("launch=0",))])
def test_launches_without_cost_leave_the_gpus_own_gaps(
    num_late: int, assumed: tuple[str, ...], tmp_path: Path
) -> None:
    """Beside such gaps, what launches without cost gain is no limit: fewer kernels gain more."""
    builder = TraceBuilder()
    for number in range(10):
        start = number * 25 * US
        launch = (-13, -1) if number >= 10 - num_late else (-9 - start // US, -8 - start // US)
        builder.kernel(
            start, start + 10 * US, TORCH, launch=(start + launch[0] * US, start + launch[1] * US)
        )
    result = judged(tmp_path, builder)
    assert result.by_cause[IdleCause.LAUNCH_BOUND] > 0
    assert removing(None, [result]) == assumed


@pytest.mark.parametrize("first", [150, 800])
def test_what_idles_in_the_mean_step_is_named_beside_a_slow_first_one(
    first: int, tmp_path: Path
) -> None:
    """The first of eight steps loads a library for long, the others wait 10 ms for data.

    Which is a third of all idle time, or a twelfth.
    """
    builder = TraceBuilder().api("cuLibraryLoadData", 21 * MS, (21 + first) * MS)
    now = 0
    for number in range(8):
        length = 40 + first if number == 0 else 30
        builder.nvtx(f"step {number}", now, now + length * MS)
        builder.kernel(now, now + 19 * MS, TORCH, launch=(now, now + US))
        if number:
            builder.nvtx("load batch", now + 19 * MS, now + 29 * MS)
        late = now + (22 + first if number == 0 else 29) * MS
        builder.kernel(late, late + MS, TORCH, launch=(late - US, late))
        now += length * MS
    result = judged(tmp_path, builder)
    assert result.main_causes[0] is IdleCause.SETUP
    assert result.other_in_step is IdleCause.DATA_LOADING
    assert result.in_step[IdleCause.DATA_LOADING] == pytest.approx(10 * MS, rel=0.01)
    finding = one(result)
    assert "; but 10 ms of 10 ms in the mean step because the host waited" in finding.title
    assert "processes load" in finding.advice[0]
    assert removing(None, [result]) == ("no-data-loading",)
    # The verdict quotes the mean step: its cause, and the advice on that.
    assert (finding.metrics["step_cause"], cause_of(finding)) == ("data_loading",) * 2
    said = three_lines(analyze_reports([builder.write(tmp_path / "again.sqlite")]))
    assert said is not None
    assert "the host waits for data to be loaded (load batch)" in said.problem
    assert "processes load" in known(said.action)


def test_what_tells_the_largest_unknown_part_comes_before_what_to_do(
    tmp_path: Path, kept: Kept
) -> None:
    """10 ms of silence before each kernel, then 6 ms of launching."""
    builder = TraceBuilder()
    for number in range(8):
        begin = number * 20 * MS
        launches = ((begin + at * US, begin + (at + 390) * US) for at in range(10_000, 16_000, 400))
        for launch in launches:
            builder.api("cudaEventQuery_v3020", *launch)
        launch = begin + 15_990 * US, begin + 16 * MS
        builder.kernel(begin + 16 * MS, begin + 20 * MS, launch=launch)
    found = claims(tmp_path, builder)
    kept(found)
    assert "--cpuctxsw=process-tree" in known(short_action(only_finding(found)))


def test_a_window_beyond_the_rank(tmp_path: Path, kept: Kept) -> None:
    beyond, before = Window(-50 * US, 310 * US), Window(-50 * US, -10 * US)
    results = [judged(tmp_path / f"{one}.sqlite", late(), one) for one in (beyond, before)]
    kept(claim for result in results for claim in gpu_idle.findings(result))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jacobi_mpi/rank_0", "the host was in MPI (MPI_"),
        ("pairs/a100_loader_0_baseline", "the host waited for data to be loaded"),
        ("pairs/h100x2_per_layer_sync", "(cudaStreamSynchronize"),
        ("rtx3090x9_3nodes_tree/report_0", "set something up for the first time (ncclCommInitRank"),
    ],
)
def test_what_is_said_of_real_traces(name: str, said: str, traces: Path) -> None:
    with ranks_of(traces / f"{name}.sqlite") as ranks:
        for rank in ranks:
            finding = one(gpu_idle.run(rank, rank.window))
            assert said in finding.title
            is_torch = any("torch" in line.lower() for line in finding.advice)
            assert is_torch <= rank.program.is_pytorch
