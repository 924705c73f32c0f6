"""The kind of program that a process ran, by positive evidence; advice depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.kernel_names import function_name
from traceprof.patterns import lazy
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.trace.model.trace import Trace

# Kernels that only PyTorch has: its own, and those that its compiler generates.
_TORCH_KERNEL = lazy(
    r"\bat::|\bc10::|\bat_cuda_detail::|\Atriton_(?:(?:poi|red|per|tem)_fused|_\d)"
)
# Ranges that PyTorch opens itself: emit_nvtx, the profiler, torch.compile, torch.distributed.
_TORCH_RANGE = lazy(
    r"\A(?:aten|autograd|c10d|torch)::|\AOptimizer\.(?:step|zero_grad)#|\AProfilerStep#"
    r"|\ATorch-Compiled Region|\Atorch\.distributed\b"
)
_TORCH_COMMAND = lazy(
    r"(?:\A|[\s/])(?:torchrun|-m\s+(?:torch\.distributed\.(?:run|launch)|instrument))(?:\s|\Z)"
)
# Kernels that NVIDIA's compilers make of OpenACC and OpenMP: function, line, `gpu`.
_OF_DIRECTIVES = lazy(r"\w_\d+_gpu(?:__red)?\Z|\A__pgi_uacc_|\Anvkernel_\w+_F\d+L\d+_")
_DALI = lazy(r"(?:void )?dali::|\[DALI\]")  # a kernel's name, or a thread's
_PYTHON = lazy(r"(?:\A|/)(?:python[\d.]*(?:\.exe)?|pt_main_thread|torchrun)\Z")


class Program(Record, frozen=True):
    """Known facts about the program that a rank's process ran.

    False means not seen, which does not prove absence.

    Attributes:
        is_pytorch: whether something was seen that only PyTorch has.
        uses_mpi: whether the process was seen in MPI calls.
        uses_dali: whether NVIDIA DALI loads its data, by a kernel or a thread's name.
        uses_directives: whether it runs kernels made of directives, OpenACC's or OpenMP's.
        evidence: the evidence in prose, such as `kernel at::native::copy`.
    """

    is_pytorch: bool
    uses_mpi: bool
    uses_dali: bool = False
    evidence: tuple[str, ...] = ()
    uses_directives: bool = False


def program_of(trace: Trace, process: int, kernel_names: Iterable[str]) -> Program:
    """Identify the program of a process by its kernels, command and ranges, and MPI by its calls.

    Args:
        trace: the report.
        process: the process.
        kernel_names: of the kernels that it launched, demangled.
    """
    names = [*kernel_names]
    torch = _torch_evidence(trace, process, names)
    uses_mpi = process in trace.mpi_processes
    evidence = [*([torch] if torch else []), *(["calls of MPI"] if uses_mpi else [])]
    uses_dali = any(map(_DALI.match, (*names, *trace.thread_names.values())))
    uses_directives = any(map(_OF_DIRECTIVES.search, names))
    return Program(torch is not None, uses_mpi, uses_dali, tuple(evidence), uses_directives)


def _torch_evidence(trace: Trace, process: int, kernel_names: Iterable[str]) -> str | None:
    """Return evidence of PyTorch, None without any."""
    if process in trace.label_ranges:
        return "ranges of python -m instrument"
    for name in kernel_names:
        if _TORCH_KERNEL.search(name):
            return f"kernel {function_name(name)}"
    if _TORCH_COMMAND.search(" ".join(trace.session.command_line)):
        return "the command that was profiled"
    # This searches all ranges: only for Python programs whose kernels gave no evidence.
    program = trace.program(process)
    if program is None or not _PYTHON.search(program):
        return None
    ranges = trace.ranges(_TORCH_RANGE, process).get(process)
    return None if ranges is None or not len(ranges.names) else f"range {ranges.names[0]}"
