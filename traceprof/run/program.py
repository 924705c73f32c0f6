"""Which kind of program a process ran, by positive evidence: what may be advised depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.kernel_names import function_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.trace.model.trace import Trace

# Kernels that only PyTorch has: its own, and those that its compiler writes.
_TORCH_KERNEL = re.compile(r"\bat::|\bc10::|\bat_cuda_detail::|\Atriton_(?:poi|red|per|tem)_fused")
# Ranges that PyTorch opens itself: emit_nvtx, the profiler, torch.compile, torch.distributed.
_TORCH_RANGE = re.compile(
    r"\A(?:aten|autograd|c10d|torch)::|\AOptimizer\.(?:step|zero_grad)#|\AProfilerStep#"
    r"|\ATorch-Compiled Region|\Atorch\.distributed\b"
)
_TORCH_COMMAND = re.compile(
    r"(?:\A|[\s/])(?:torchrun|-m\s+(?:torch\.distributed\.(?:run|launch)|instrument))(?:\s|\Z)"
)
_PYTHON = re.compile(r"(?:\A|/)(?:python[\d.]*(?:\.exe)?|pt_main_thread|torchrun)\Z")


@dataclass(frozen=True, slots=True)
class Program:
    """What is known of the program that a rank's process ran.

    What is false was not seen, which does not mean that it was not there.

    Attributes:
        is_pytorch: whether something was seen that only PyTorch has.
        uses_mpi: whether the process was seen in MPI.
        evidence: what was seen, in prose, such as `kernel at::native::copy`.
    """

    is_pytorch: bool
    uses_mpi: bool
    evidence: tuple[str, ...] = ()


def program_of(trace: Trace, process: int, kernel_names: Iterable[str]) -> Program:
    """Look for what tells the program of a process: kernels, command and ranges; MPI by its calls.

    Args:
        trace: the report.
        process: whose program.
        kernel_names: of the kernels that it launched, demangled.
    """
    torch = _torch_evidence(trace, process, kernel_names)
    uses_mpi = process in trace.mpi_processes
    evidence = [*([torch] if torch else []), *(["calls of MPI"] if uses_mpi else [])]
    return Program(torch is not None, uses_mpi, tuple(evidence))


def _torch_evidence(trace: Trace, process: int, kernel_names: Iterable[str]) -> str | None:
    """Return what only PyTorch has, None where nothing was seen."""
    if process in trace.label_ranges:
        return "ranges of python -m instrument"
    for name in kernel_names:
        if _TORCH_KERNEL.search(name):
            return f"kernel {function_name(name)}"
    if _TORCH_COMMAND.search(" ".join(trace.session.command_line)):
        return "the command that was profiled"
    # All ranges have to be looked through: only where Python ran, whose kernels told nothing.
    program = trace.program(process)
    if program is None or not _PYTHON.search(program):
        return None
    ranges = trace.ranges(_TORCH_RANGE).get(process)
    return None if ranges is None or not len(ranges.names) else f"range {ranges.names[0]}"
