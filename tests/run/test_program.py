"""Which kind of program a rank ran."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_pid, global_tid
from traceprof.run.opening import open_report
from traceprof.run.program import Program
from traceprof.trace.open import open_trace


def programs(path: Path) -> list[Program]:
    trace = open_trace(path)
    try:
        return [rank.program for rank in open_report(trace)]
    finally:
        trace.close()


@pytest.mark.parametrize(
    ("kernel", "is_pytorch"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", True),
        ("triton_poi_fused_add_0", True),
        ("triton__0d1d2de3de", True),
        ("triton_matmul", False),
        ("jacobi_kernel(float*)", False),
        ("void cat::native::meow()", False),
    ],
)
def test_kernels(kernel: str, is_pytorch: bool, tmp_path: Path) -> None:
    [program] = programs(TraceBuilder().kernel(0, 10, kernel).write(tmp_path))
    assert program.is_pytorch == is_pytorch
    assert not program.uses_mpi
    assert len(program.evidence) == is_pytorch


@pytest.mark.parametrize(
    ("name", "is_pytorch"),
    [("/usr/bin/python3.11", True), ("python", True), ("./jacobi", False), (None, False)],
)
def test_ranges_of_pytorch(name: str | None, is_pytorch: bool, tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 10).nvtx("aten::add, seq = 12", 0, 5)
    trace.raw("PROCESSES", globalPid=global_pid(), pid=1000, name=name)
    [program] = programs(trace.write(tmp_path))
    assert program.is_pytorch == is_pytorch


def test_ranges_of_anything_else(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 10).nvtx("step 1", 0, 5).nvtx("forward", 0, 5)
    trace.raw("PROCESSES", globalPid=global_pid(), pid=1000, name="python")
    [program] = programs(trace.write(tmp_path))
    assert program == type(program)(is_pytorch=False, uses_mpi=False)


def test_labels(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 10).label("optimizer step", 0, 5)
    [program] = programs(trace.write(tmp_path))
    assert program.is_pytorch


@pytest.mark.parametrize(
    ("words", "is_pytorch"),
    [
        (["torchrun", "--nproc-per-node", "8", "train.py"], True),
        (["/opt/bin/python", "-m", "torch.distributed.run", "train.py"], True),
        (["bash", "-c", "cd a && torchrun train.py"], True),
        (["python", "train_torchrun.py"], False),
        (["mpirun", "-np", "4", "./jacobi"], False),
    ],
)
def test_commands(words: list[str], is_pytorch: bool, tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 10)
    names = ["COMMAND", *(f"ARGUMENT_{number}" for number in range(len(words)))]
    for name, word in zip(names, words, strict=False):
        trace.raw("META_DATA_CAPTURE", name=f"PROCESS_0:{name}", value=word)
    [program] = programs(trace.write(tmp_path))
    assert program.is_pytorch == is_pytorch


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
    for program in programs(traces / f"{name}.sqlite"):
        assert (program.is_pytorch, program.uses_mpi) == (is_pytorch, uses_mpi)
