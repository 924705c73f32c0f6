"""What a report hides is not absent: findings are not applicable, `compare` says unknown."""

from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import pytest

from sample_traces.simulator import simulate_scenario
from sample_traces.simulator.kineto_writer import write_traces
from tests.support.builders import TraceBuilder, global_tid
from tests.support.databases import change
from tests.support.kept_claims import Kept
from tests.support.selection import rows_long_after
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Options, analyze_reports
from traceprof.communication.messages import looks_like_communication
from traceprof.comparison.ask import compare
from traceprof.trace.nsight import schema

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
LAUNCH = "cudaLaunchKernel_v7000"
WARNING = "Not all CUDA events might have been collected."
UNDONE = "in the recording: when the GPU was idle is not known"
"""How a reason ends that says how many launches have no operation."""
OF_RUNS = {"straggler", "uneven-kernels", "pipeline-bubble"}  # of which one rank has none


def steps_of(num: int = 8) -> TraceBuilder:
    """Build steps of 100 µs: 60 µs of compute, then 20 µs of communication that nothing hides."""
    builder = TraceBuilder()
    for step in range(num):
        begin = 100_000 * step
        builder.nvtx(f"step {step}", begin, begin + 90_000)
        builder.kernel(begin + 10_000, begin + 70_000, "gemm", launch=(begin + 10, begin + 20))
        launch = (begin + 30, begin + 40)
        builder.kernel(begin + 70_000, begin + 90_000, NCCL, stream=20, launch=launch)
    return builder


def launched_in_vain(builder: TraceBuilder, num: int = 1) -> TraceBuilder:
    """Add launches that no operation belongs to."""
    for place in range(num):
        builder.api(LAUNCH, place, place + 1)
    return builder


def in_graphs(num: int = 8) -> TraceBuilder:
    """Build the same steps, each a CUDA graph that was traced as a whole."""
    builder = TraceBuilder()
    for step in range(num):
        begin = 100_000 * step
        builder.nvtx(f"step {step}", begin, begin + 90_000)
        builder.graph(begin + 10_000, begin + 90_000, launch=(begin + 10, begin + 20))
    return builder


def unnamed(num: int) -> TraceBuilder:
    """Build a kernel of 1 ms times `num`, whose name is unknown."""
    return TraceBuilder().kernel(0, num * 1_000_000, "my_fft_stage3")


def analyzed(builder: TraceBuilder, path: Path) -> RunResult:
    return analyze_reports([builder.write(path)], Options(savings=False))


def unknown(result: RunResult, words: str) -> dict[str, str]:
    """Return how to show what is hidden, by the finding that it may hide."""
    return {gap.id: gap.how_to_collect for gap in result.not_applicable if words in gap.reason}


def alone(environment: str = "") -> TraceBuilder:
    """Build a process on one GPU with a kernel whose name is unknown, as launchers start it."""
    builder = unnamed(1)
    for text in environment.split():
        name = "PROCESS_0:ENVIRONMENT_VARIABLE"
        builder.raw(schema.CAPTURE_METADATA, name=name, value=text)
    return builder


def short_graph(length_ns: int) -> TraceBuilder:
    """Build a graph beside 11 ms: what takes less than a hundredth hides nothing."""
    builder = TraceBuilder().kernel(0, 9_890_000).kernel(10_990_000, 11_000_000)
    return builder.graph(9_900_000, 9_900_000 + length_ns)


def with_unnamed(name: str, share: float) -> TraceBuilder:
    """Build a kernel of an unknown name: one of a tenth of the time hides nothing."""
    begin = round(1_000_000 * (1 - share))
    return TraceBuilder().kernel(0, begin).kernel(begin, 1_000_000, name)


def lacking_one(warning: str) -> TraceBuilder:
    """One operation of 301 is lost: too few to doubt gaps without a warning."""
    builder = launched_in_vain(TraceBuilder())
    for number in range(300):
        builder.kernel(1_000_000 * number, 1_000_000 * (number + 1), grid=(9999, 1, 1))
    return builder.raw("DIAGNOSTIC_EVENT", text=warning)


def lacking_a_call() -> TraceBuilder:
    builder = steps_of(8).raw("DIAGNOSTIC_EVENT", text=WARNING)
    return builder.kernel(800_000, 801_000, "gemm", launch=False)


PROGRAMS = {
    "graphs": in_graphs(),
    "a graph of less than a hundredth": short_graph(100_000),
    "a graph of a hundredth": short_graph(120_000),
    "kernels beside a graph": steps_of().graph(12_000, 60_000),
    "little of an unknown name": with_unnamed("my_fft_stage3", 0.10),
    "an unknown name": with_unnamed("my_fft_stage3", 0.11),
    "little of a name that may communicate": with_unnamed("myHaloExchange", 0.10),
    "a name that may communicate": with_unnamed("myHaloExchange", 0.11),
    # A process on one GPU that nothing is beside does not communicate.
    "alone": alone(),
    "alone by torchrun": alone("RANK=0 WORLD_SIZE=1"),
    "alone by Slurm": alone("SLURM_PROCID=0 SLURM_NTASKS=1"),
    "known names": TraceBuilder().kernel(0, 1000),
    "a lost operation": lacking_one(WARNING),
    "a lost range": lacking_one("Not all NVTX events might have been collected."),
    "a lost call": lacking_a_call(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    result = analyzed(PROGRAMS[name], tmp_path / "t.sqlite")
    hidden = [cause for of_rank in result.measured.hidden.values() for cause in of_rank]
    found = [finding.id for finding in result.findings]
    gaps = [[*unknown(result, cause.reason)] for cause in hidden]
    assert all(not {*found} & {*hides} for hides in gaps)
    kept(
        [
            *(
                f"{cause.reason}; {cause.how_to_collect}\n  hides {', '.join(sorted(hides))}"
                for cause, hides in zip(hidden, gaps, strict=True)
            ),
            f"found: {', '.join(found) or 'nothing'}",
        ]
    )


@pytest.mark.parametrize(
    ("builder", "file"),
    [
        (alone().kernel(0, 10, device=1), "t"),
        (alone().kernel(0, 10, pid=2), "t"),
        (alone().kernel(0, 10, NCCL, stream=20), "t"),
        (alone().memcpy(0, 10, "PtoP"), "t"),
        (alone().api("cuIpcOpenMemHandle_v2", 0, 10), "t"),
        (alone().api("cudaDeviceEnablePeerAccess_v4000", 0, 10), "t"),
        (
            alone()
            .nvtx("ncclCommInitRank", 0, 10, domain="NCCL")
            .nvtx("ncclAllReduce", 20, 30, domain="NCCL")
            .kernel(40, 50, "my_fft_stage3", launch=(22, 24)),
            "t",
        ),
        (alone("RANK=1 WORLD_SIZE=2"), "t"),
        (alone("RANK=0"), "t"),
        (alone("SLURM_PROCID=0 SLURM_NTASKS=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2"), "t"),
        (alone("RANK=1 WORLD_SIZE=1"), "t"),
        (alone(), "rank_0"),
        (alone().raw("MPI_P2P_EVENTS", start=0, end=10, globalTid=global_tid(1000), textId=1), "t"),
    ],
)
def test_unknown_kernels_may_communicate_where_there_is_anything_to_communicate_with(
    tmp_path: Path, builder: TraceBuilder, file: str
) -> None:
    gaps = unknown(analyzed(builder, tmp_path / f"{file}.sqlite"), "kernels with unknown names")
    assert "exposed-communication" in gaps or "nccl-serialization" in gaps


def test_unknown_kernels_may_communicate_with_another_report(tmp_path: Path) -> None:
    paths = [unnamed(num).write(tmp_path / f"{num}.sqlite") for num in (1, 2)]
    options = Options(savings=False)
    assert "exposed-communication" in unknown(analyze_reports(paths, options), "unknown names")
    (tmp_path / "1.sqlite").write_bytes(b"")
    failed = analyze_reports(paths, options)
    assert failed.failed
    assert "exposed-communication" in unknown(failed, "unknown names")


@pytest.mark.parametrize(
    ("build", "hidden"), [(in_graphs, OF_RUNS), (unnamed, OF_RUNS - {"uneven-kernels"})]
)
def test_what_is_hidden_of_two_ranks_hides_what_only_several_have(
    tmp_path: Path, build: Callable[[int], TraceBuilder], hidden: set[str]
) -> None:
    paths = [build(num).write(tmp_path / f"{num}.sqlite") for num in (8, 9)]
    result = analyze_reports(paths, Options(savings=False))
    assert {gap.id for gap in result.not_applicable} >= hidden


def test_a_warning_hides_nothing_where_every_launch_has_its_operation(tmp_path: Path) -> None:
    """Nsight Systems warns whenever it stops while events are on their way."""
    builder = steps_of(1001).raw("DIAGNOSTIC_EVENT", text=WARNING)
    # The last one was still queued when the capture ended, and one was captured into a graph.
    builder.api(LAUNCH, 100_100_000, 100_100_010)
    builder.api("cudaStreamBeginCapture_v10000", 100, 110).api(LAUNCH, 120, 130)
    builder.api("cudaStreamEndCapture_v10000", 140, 150)
    launched_in_vain(builder)  # one of 2003: it failed
    result = analyzed(builder, tmp_path / "warned.sqlite")
    assert not unknown(result, "lost events")
    assert {"gpu-idle", "exposed-communication"} <= {one.id for one in result.findings}
    lost = analyzed(launched_in_vain(builder, 2), tmp_path / "lost.sqlite")
    assert "gpu-idle" in unknown(lost, "lost events")


def _without_half_of_the_kernels(path: Path, folder: Path) -> Path:
    """Return a copy of an export whose diagnostics say that events were lost."""
    copy = folder / path.name
    copyfile(path, copy)
    change(copy, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2")
    change(copy, "CREATE TABLE IF NOT EXISTS DIAGNOSTIC_EVENT (text TEXT)")
    change(copy, "INSERT INTO DIAGNOSTIC_EVENT (text) VALUES (?)", WARNING)
    return copy


def _cut_trace(path: Path, folder: Path) -> Path:
    trace = write_traces(path, folder, "whole")[0]
    text = trace.read_bytes()
    trace.write_bytes(text[: len(text) * 9 // 10])
    return trace


@pytest.mark.parametrize(
    ("name", "lose", "why"),
    rows_long_after(
        2,
        [
            ("full-precision-matmul", _without_half_of_the_kernels, UNDONE),
            ("launch-bound", _cut_trace, "the trace was cut short"),
            ("launch-bound", _without_half_of_the_kernels, UNDONE),
            ("exposed-late-launch", _without_half_of_the_kernels, UNDONE),
            ("host-stall", _without_half_of_the_kernels, UNDONE),
        ],
    ),
)
def test_no_finding_counts_gaps_where_events_were_lost(
    name: str, lose: Callable[[Path, Path], Path], why: str, tmp_path: Path
) -> None:
    export = tmp_path / f"{name}.sqlite"
    simulate_scenario(name, export)
    (tmp_path / "lost").mkdir()
    lost = analyze_reports([lose(export, tmp_path / "lost")], Options(savings=False))
    assert not [one.id for one in lost.findings if FINDINGS[one.id].counts_gaps]
    assert "gpu-idle" in unknown(lost, why)
    whole = analyze_reports([export], Options(savings=False))
    made, still_made = ({one.id for one in result.findings} for result in (whole, lost))
    assert made
    assert still_made == made & {"full-precision-matmul"}


def test_lost_events_of_one_rank_leave_other_ranks_alone(tmp_path: Path) -> None:
    """Each rank idles for 30 of 100 µs, and rank 1's record is not whole."""
    lost = launched_in_vain(steps_of(9)).raw("DIAGNOSTIC_EVENT", text=WARNING)
    builders = steps_of(8), lost
    paths = [one.write(tmp_path / f"{rank}.sqlite") for rank, one in enumerate(builders)]
    result = analyze_reports(paths, Options(savings=False))
    assert {(one.id, one.rank) for one in result.findings} >= {
        ("gpu-idle", 0),
        ("exposed-communication", 0),
    }
    assert 1 not in {one.rank for one in result.findings}
    gaps = {(gap.id, gap.rank) for gap in result.not_applicable}
    assert gaps >= {("gpu-idle", 1), ("exposed-communication", 1)}
    (idle,) = [one for one in result.verdict.attributions if (one.rank, one.part) == (1, "idle")]
    assert idle.finding is None
    assert UNDONE in (idle.sentence or "")


def test_a_finding_in_a_graph_is_not_gone(tmp_path: Path) -> None:
    before = steps_of().write(tmp_path / "before.sqlite")
    after = in_graphs().write(tmp_path / "after.sqlite")
    gates = ["finding:exposed-communication", "finding:nccl-serialization"]
    comparison = compare(str(before), str(after), gates=gates)
    changes = {change.id: change for change in comparison.findings}
    assert changes["exposed-communication"].status == "unknown"
    assert changes["exposed-communication"].came_ns is None
    assert [gate.outcome for gate in comparison.gates] == ["not met", "not met"]
    other = compare(str(after), str(before))
    assert {one.id: one.status for one in other.findings}["exposed-communication"] == "unknown"


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("void my::all_reduce_rows<float>(float*)", True),
        ("halo_exchange_kernel", True),
        ("alltoall_v2", True),
        ("jacobi_kernel", False),
        ("semi_discrete_step_257_gpu", False),
        ("reduce_rows", False),
    ],
)
def test_a_name_may_look_like_communication(name: str, *, looks: bool) -> None:
    assert looks_like_communication(name) == looks
