"""Which reports are of one run, which kind of program it is, and where a process hangs."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support import profiler_events
from tests.support.builders import (
    ALL_REDUCE,
    TraceBuilder,
    call,
    global_pid,
    global_tid,
    prepare,
    session,
)
from traceprof.analysis import analyze_reports
from traceprof.run.opening import open_report
from traceprof.run.program import Program
from traceprof.run.recognition import (
    ReportIdentity,
    choose_numbers,
    number_runs,
    program,
    rank_of_environment,
    rank_of_file,
)
from traceprof.trace.open import open_trace

S = 1_000_000_000


def report(
    start: int | None, *, host: str = "a", command: str = "python train.py", ids: str = ""
) -> ReportIdentity:
    captured = replace(session(host, start), command_line=tuple(command.split()))
    return ReportIdentity(Path("r.sqlite"), captured, S, 21 * S, set(ids.split()))


@pytest.mark.parametrize(
    ("reports", "runs"),
    [
        ([report(0), report(S, host="b", command="python train.py --local-rank 1")], [0, 0]),
        ([report(0), report(3600 * S), report(S), report(3601 * S)], [0, 1, 0, 1]),
        ([report(0), report(0, command="python serve.py")], [0, 1]),
        # A common communicator decides, whatever else is said.
        ([report(0, ids="0x1"), report(3600 * S, ids="0x1 0x2")], [0, 0]),
        ([report(0, ids="0x1"), report(0, ids="0x2")], [0, 0]),
        ([report(None), report(0)], [0, 0]),  # nothing speaks against it
        ([], []),
    ],
)
def test_reports_of_one_run(reports: list[ReportIdentity], runs: list[int]) -> None:
    assert number_runs(reports) == runs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/usr/bin/python3.11 -u train.py --lr 1", "train.py"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("./jacobi", "jacobi"),
        ("python", "python"),
        ("", None),
    ],
)
def test_the_program_of_a_command_line(words: str, expected: str | None) -> None:
    assert program(words.split()) == expected


def test_the_environment_tells_a_rank() -> None:
    assert rank_of_environment({"SLURM_PROCID": "5", "RANK": "3"}) == 3
    assert rank_of_environment({"RANK": "", "OMPI_COMM_WORLD_RANK": "7"}) == 7
    assert rank_of_environment({"RANK": "-1"}) is None
    assert rank_of_environment({}) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank_3.sqlite", 3),
        ("run.rank12.sqlite", 12),
        ("Rank-0.sqlite", 0),
        ("report1.sqlite", None),
        # torchtitan, Megatron-LM, vLLM, SGLang
        ("rank3_trace.json.gz", 3),
        ("rank-3.json.gz", 3),
        ("9f1c-rank-3.1767189312.pt.trace.json.gz", 3),
        ("dp0_pp1_tp1_dcp0_ep1_rank3.1767189312.pt.trace.json.gz", 3),
        ("bs_8_rank3.json.gz", 3),
        ("1767189312.41-TP-3-EXTEND.trace.json.gz", 3),
        ("1767189312.41-TP-3-DP-1-PP-0-EP-3.trace.json.gz", 3),
        ("1767189312.41-TP-3-PP-1.trace.json.gz", None),
        ("HTTP-3.json", None),
    ],
)
def test_a_file_name_tells_a_rank(name: str, expected: int | None) -> None:
    assert rank_of_file(Path("rank_9") / name) == expected


def test_the_first_source_that_tells_all_apart_counts() -> None:
    sources: dict[str, list[int | None]] = {
        "nccl": [0, None, 2],
        "mpi": [1, 1, 2],
        "environment": [2, 0, 1],
    }
    assert choose_numbers(sources.items(), 3) == ([2, 0, 1], "environment")
    assert choose_numbers({"mpi": [None, None]}.items(), 2) == ([0, 1], "order")
    assert choose_numbers([], 0) == ([], "order")


def programs(path: Path) -> list[Program]:
    with closing(open_trace(path)) as trace:
        return [rank.program for rank in open_report(trace)]


AUTOGRAD = "aten::add, seq = 12"
SEEN: list[tuple[Mapping[str, str | None], bool]] = [
    ({"kernel": "void at::native::elementwise_kernel<4, at::native::FillFunctor<float>>"}, True),
    *(({"kernel": name}, True) for name in ("triton_poi_fused_add_0", "triton__0d1d2de3de")),
    *(({"kernel": name}, False) for name in ("triton_matmul", "jacobi_kernel(float*)")),
    ({"kernel": "void cat::native::meow()"}, False),
    *(({"program": name, "range": AUTOGRAD}, True) for name in ("/bin/python3", "python")),
    *(({"program": name, "range": AUTOGRAD}, False) for name in ("./jacobi", None)),
    *(({"program": "python", "range": text}, False) for text in ("step 1", "forward")),
    ({"label": "optimizer step"}, True),
    ({"command": "torchrun --nproc-per-node 8 train.py"}, True),
    ({"command": "/opt/bin/python -m torch.distributed.run train.py"}, True),
    ({"command": "bash -c cd a && torchrun train.py"}, True),
    ({"command": "python train_torchrun.py"}, False),
    ({"command": "mpirun -np 4 ./jacobi"}, False),
]


@pytest.mark.parametrize(("seen", "is_pytorch"), SEEN)
def test_what_tells_that_a_program_uses_pytorch(
    seen: Mapping[str, str | None], is_pytorch: bool, tmp_path: Path
) -> None:
    trace = TraceBuilder().kernel(0, 10, seen.get("kernel") or "gemm")
    trace.raw("PROCESSES", globalPid=global_pid(), pid=1000, name=seen.get("program"))
    if range_ := seen.get("range"):
        trace.nvtx(range_, 0, 5)
    if label := seen.get("label"):
        trace.label(label, 0, 5)
    for number, word in enumerate((seen.get("command") or "").split()):
        name = f"ARGUMENT_{number - 1}" if number else "COMMAND"
        trace.raw("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=word)
    [program] = programs(trace.write(tmp_path))
    assert (program.is_pytorch, program.uses_mpi) == (is_pytorch, False)
    assert len(program.evidence) == is_pytorch


@pytest.mark.parametrize(("name", "is_pytorch"), [("aten::mm", True), ("myblas::mm", False)])
def test_operators(name: str, is_pytorch: bool, tmp_path: Path) -> None:
    """A multiplication of cuBLAS does not tell who called it."""
    gpu = profiler_events.kernel(20, 30, name="ampere_sgemm_128x64_nn")
    host = profiler_events.event("cpu_op", name, 2, 8, (profiler_events.PID, 1))
    [program] = programs(profiler_events.write(tmp_path / "trace.json", [gpu, host]))
    assert program.is_pytorch == is_pytorch
    assert program.evidence == ((f"operator {name}",) if is_pytorch else ())


def test_mpi_of_one_of_two_processes(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 10).kernel(0, 10, pid=2000)
    thread = global_tid(pid=2000)
    trace.raw("MPI_COLLECTIVES_EVENTS", start=1, end=2, globalTid=thread, textId=None)
    trace.raw("MPI_OTHER_EVENTS", start=1, end=2, globalTid=None, textId=None)
    first, second = programs(trace.write(tmp_path))
    assert not first.uses_mpi
    assert second.uses_mpi
    assert second.evidence == ("calls of MPI",)


@pytest.mark.parametrize(
    ("name", "is_pytorch", "uses_mpi"),
    [
        ("a100x4_ddp_baseline_rank0", True, False),
        ("tiny_3.24.14", True, False),
        ("cloverleaf_3.13.2", False, False),
        ("streams_3.0.0", False, False),
        ("v100x4_mpi_peer_copies", False, True),
        ("pairs/warm_up_and_upload", True, False),
    ],
)
def test_real_programs(name: str, is_pytorch: bool, uses_mpi: bool, traces: Path) -> None:
    for found in programs(traces / f"{name}.sqlite"):
        assert (found.is_pytorch, found.uses_mpi) == (is_pytorch, uses_mpi)


def notes(builder: TraceBuilder, path: Path) -> list[str]:
    found = [note for _, note in analyze_reports([builder.write(path)], jobs=1).notes]
    return [note for note in found if "open call" in note]


def test_the_last_open_call_and_since_when(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=9_000_000_000)
    builder.kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10, 0xABC, 64)
    call(builder, "ncclAllReduce", 1_500_000_000, None, 0xABC, 4096)
    (note,) = notes(builder, tmp_path / "hung.sqlite")
    assert note.startswith(
        "rank 0: the last open call is AllReduce (4.1 kB, communicator 0x0000000000000abc), since"
        " 1.500000 s, for 7.50 s: it had not returned"
    )


def test_a_group_whose_end_never_returned(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=100).kernel(20, 30, launch=(3, 5))
    call(builder, "ncclGroupStart", 0, 1)
    call(builder, "ncclSend", 2, 3, 7, 100, 3, schema=902)
    call(builder, "ncclGroupEnd", 40, 100)  # Nsight lets it end with the capture
    (note,) = notes(builder, tmp_path / "t.sqlite")
    assert "rank 0: the last open call is Send (100 B, communicator 0x" in note
    assert "since 0.000000 s, for 60 ns" in note


def test_calls_that_returned_are_not_mentioned(tmp_path: Path) -> None:
    builder = prepare(TraceBuilder()).machine(end=100).kernel(20, 30, ALL_REDUCE, launch=(3, 5))
    call(builder, "ncclAllReduce", 0, 10, 7, 4096)
    assert notes(builder, tmp_path / "t.sqlite") == []
