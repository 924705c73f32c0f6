"""The program of a process: its kind, on which advice depends, and its main compute.

Main compute is the program's actual work, without uploads and set-up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof import intervals
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import is_main_compute, kernel_kind
from traceprof.structs import Record
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.operations import Kernels, Operations, RankOperations
from traceprof.trace.model.trace import Trace

# Kernels that only PyTorch has: its own, and those that its compiler generates.
_TORCH_KERNEL = re.compile(
    r"\bat::|\bc10::|\bat_cuda_detail::|\Atriton_(?:(?:poi|red|per|tem)_fused|_\d)"
)
# Ranges that PyTorch opens itself: emit_nvtx, the profiler, torch.compile, torch.distributed.
_TORCH_RANGE = re.compile(
    r"\A(?:aten|autograd|c10d|torch)::|\AOptimizer\.(?:step|zero_grad)#|\AProfilerStep#"
    r"|\ATorch-Compiled Region|\Atorch\.distributed\b"
)
_TORCH_COMMAND = re.compile(
    r"(?:\A|[\s/])(?:torchrun|-m\s+(?:torch\.distributed\.(?:run|launch)|instrument))(?:\s|\Z)"
)
# Kernels that NVIDIA's compilers make of OpenACC and OpenMP: function, line, `gpu`.
_OF_DIRECTIVES = re.compile(r"\w_\d+_gpu(?:__red)?\Z|\A__pgi_uacc_|\Anvkernel_\w+_F\d+L\d+_")
_DALI = re.compile(r"(?:void )?dali::|\[DALI\]")  # a kernel's name, or a thread's
# PyTorch's fused=True, and apex; foreach=True has functors of other names.
_FUSED_OPTIMIZER = re.compile(r"\bFused(?:Adam|Sgd|Adagrad)MathFunctor\b|\bAdamFunctor\b")
_COMPILED = re.compile(r"triton_(?:poi|red|per|tem)_fused")
_PYTHON = re.compile(r"(?:\A|/)(?:python[\d.]*(?:\.exe)?|pt_main_thread|torchrun)\Z")


class Program(Record, frozen=True):
    """Known facts about the program that a rank's process ran; False means not seen."""

    is_pytorch: bool  # whether something was seen that only PyTorch has
    uses_mpi: bool  # whether the process was seen in MPI calls
    uses_dali: bool = False  # whether NVIDIA DALI loads its data, by a kernel or a thread's name
    evidence: tuple[str, ...] = ()  # the evidence in prose, such as `kernel at::native::copy`
    uses_directives: bool = False  # whether it uses OpenACC or OpenMP, by a kernel's name
    has_fused_optimizer: bool = False  # whether one is in use, by a kernel's name
    is_compiled: bool = False  # whether torch.compile made some of its kernels


def program_of(trace: Trace, process: int, kernel_names: Iterable[str]) -> Program:
    """Identify the program of a process by its kernels, command, ranges and MPI calls."""
    names = [*kernel_names]
    torch = _torch_evidence(trace, process, names)
    uses_mpi = process in trace.mpi_processes
    evidence = [*([torch] if torch else []), *(["calls of MPI"] if uses_mpi else [])]
    return Program(
        is_pytorch=torch is not None,
        uses_mpi=uses_mpi,
        uses_dali=any(map(_DALI.match, (*names, *trace.thread_names.values()))),
        evidence=tuple(evidence),
        uses_directives=any(map(_OF_DIRECTIVES.search, names)),
        has_fused_optimizer=any(map(_FUSED_OPTIMIZER.search, names)),
        is_compiled=any(map(_COMPILED.match, names)),
    )


def _torch_evidence(trace: Trace, process: int, kernel_names: Iterable[str]) -> str | None:
    if process in trace.label_ranges:
        return "ranges of python -m instrument"
    for name in kernel_names:
        if _TORCH_KERNEL.search(name):
            return f"kernel {function_name(name)}"
    if _TORCH_COMMAND.search(" ".join(trace.session.command_line)):
        return "the command that was profiled"
    operators = trace.operators(process)
    if operators is not None:
        for key in operators.packed_name.distinct.tolist():
            if _TORCH_RANGE.search(operators.names[key]):
                return f"operator {operators.names[key]}"
    # This searches all ranges: only for Python programs whose kernels gave no evidence.
    program = trace.program(process)
    if program is None or not _PYTHON.search(program):
        return None
    ranges = trace.ranges(_TORCH_RANGE, process).get(process)
    return None if ranges is None or not len(ranges) else f"range {ranges.texts[0]}"


_TRIAL = re.compile(r"\bredzone_checker")  # of XLA and TensorFlow, after an algorithm was tried
_MIN_REPEATED = 10  # times: what a program does before its first recognised kernel is a loop
_MIN_OTHER = 0.2  # of the kernels' time: a loop that takes less comes before the program
_MOST = 0.5  # of the compute time: what kernels hold that stand for all of a program


class MainSpan(Record, frozen=True):
    """When a rank's main compute ran, after any warm-up."""

    start_ns: int  # the start of its first operation
    whole_ns: tuple[int, int]  # span of what stands for all of the program


Groups: TypeAlias = "list[tuple[Operations, Mask]]"
"""Kernels, then CUDA graphs that were traced as a whole, each with those that are meant."""


def main_compute(
    operations: RankOperations, names: Mapping[int, str], communicates: Mapping[int, str]
) -> tuple[Groups, Groups]:
    """Return the main compute, and operations from whose first to whose last a period is to repeat.

    Main compute is matrix multiplications, else the kernel, or all CUDA graphs, with most time. The
    others are the same, if they were recognised; else those with most time, until they make half.
    `names`, `communicates`: demangled names and operations by kernels' name ids.
    """
    kernels = operations.kernels
    name_of_signature = kernels.name_of_signature.tolist()
    signature = kernels.signature
    num_signatures = len(name_of_signature)
    is_run = np.bincount(signature, minlength=num_signatures) > 0
    used = [
        index
        for index in np.flatnonzero(is_run).tolist()
        if name_of_signature[index] not in communicates
    ]
    texts = {index: names[name_of_signature[index]] for index in used}
    is_main = {text: is_main_compute(text) for text in {*texts.values()}}
    if any(is_main.values()):
        chosen = [index for index, text in texts.items() if is_main[text]]
        mask = _have(signature, chosen, num_signatures)
        mask |= _other_program(kernels, int(mask.argmax()), texts)
        recognised: Groups = [(kernels, mask)]
        return recognised, recognised
    time = np.bincount(signature, kernels.length_ns, minlength=num_signatures)
    time_of: dict[str, float] = {}
    if len(operations.graphs):
        time_of[""] = float(operations.graphs.length_ns.sum())
    for index, text in texts.items():
        time_of[text] = time_of.get(text, 0.0) + float(time[index])
    by_time = sorted(time_of, key=lambda text: (-time_of[text], text))
    held = np.cumsum([time_of[text] for text in by_time])
    num_most = int(np.searchsorted(held, _MOST * sum(time_of.values()))) + 1

    def groups(of: Collection[str]) -> Groups:
        chosen = [index for index, text in texts.items() if text in of]
        are_graphs_meant = np.full(len(operations.graphs), "" in of)
        meant = _have(signature, chosen, num_signatures)
        return [(kernels, meant), (operations.graphs, are_graphs_meant)]

    return groups(by_time[:1]), groups(by_time[:num_most])


def _other_program(kernels: Kernels, first: int, texts: Mapping[int, str]) -> Mask:
    """Kernels of unknown names that a program repeats before the first that is recognised.

    All are False where they take little: then they prepare what comes.
    """
    before = kernels.signature[:first]
    count = np.bincount(before, minlength=len(kernels.name_of_signature))
    repeated = [index for index in texts if count[index] >= _MIN_REPEATED]
    chosen = [index for index in repeated if not kernel_kind(texts[index]).is_known]
    mask = _have(kernels.signature, chosen, len(count))
    held_ns = kernels.length_ns[:first][mask[:first]].sum()
    return mask if held_ns >= _MIN_OTHER * kernels.length_ns.sum() else np.zeros_like(mask)


def main_span(
    operations: RankOperations,
    names: Mapping[int, str],
    communicates: Mapping[int, str],
    launched_by: tuple[Int64, Int64],
    calls: ApiCalls | None,
    warm_up: Intervals,
) -> MainSpan | None:
    """Return when the main compute ran, after any warm-up; None if there is none."""
    main, standing = main_compute(operations, names, communicates)
    tried_ns = _tried_until(operations.kernels, main[0][1], names)
    start_ns = _first(main, launched_by, calls, warm_up, tried_ns)
    if start_ns is None:
        return None
    begin_ns = _first(standing, launched_by, calls, warm_up, tried_ns)
    # What stands for all includes the main compute, which is there.
    ends = [int(group.ends(chosen).max()) for group, chosen in standing if chosen.any()]
    return MainSpan(start_ns, (start_ns if begin_ns is None else begin_ns, max(ends)))


def is_trial(name: str) -> bool:
    """Whether a kernel checks the memory of an algorithm that a library tried: set-up."""
    return _TRIAL.search(name) is not None


def _tried_until(kernels: Kernels, is_main: Mask, names: Mapping[int, str]) -> int:
    """When the trials of algorithms were over that most main compute follows; 0 without any."""
    trials = np.flatnonzero(kernels.are_named(key for key, name in names.items() if is_trial(name)))
    before = np.cumsum(is_main)
    held = np.diff(before[trials], prepend=0, append=before[-1:])
    most = int(held.argmax()) if len(trials) else 0
    return int(kernels.ends(trials[most - 1 : most])[0]) if most else 0


def _first(
    groups: Iterable[tuple[Operations, Mask]],
    launched_by: tuple[Int64, Int64],
    calls: ApiCalls | None,
    warm_up: Intervals,
    tried_ns: int,
) -> int | None:
    first: list[int] = []
    warm: list[int] = []
    for (group, chosen), call in zip(groups, launched_by, strict=False):
        if not chosen.any():
            continue
        start = group.start_ns[chosen]
        warm.append(int(start[0]))
        is_cold = (call[chosen] >= 0) & (start >= tried_ns)
        if len(warm_up) and calls is not None and is_cold.any():
            launched = calls.start_ns[np.maximum(call[chosen], 0)]
            is_cold &= _are_outside(launched, warm_up)
        if is_cold.any():
            first.append(int(start[is_cold.argmax()]))
    return min(first or warm, default=None)


def first_launch(
    devices: Iterable[RankOperations],
    names: Mapping[int, str],
    communicates: Mapping[int, str],
    calls: ApiCalls,
    warm_up: Intervals,
) -> int | None:
    """Return when a process first launched main compute, on any of its devices; None if never.

    Launches during the warm-up count only if there are no others.
    """
    first: list[int] = []
    for operations in devices:
        main, _ = main_compute(operations, names, communicates)
        call = np.concatenate([calls.that_launched(group)[chosen] for group, chosen in main])
        launched = calls.start_ns[call[call >= 0]]
        cold = launched[_are_outside(launched, warm_up)]
        launched = cold if len(cold) else launched
        if len(launched):
            first.append(int(launched.min()))
    return min(first, default=None)


def _are_outside(times_ns: Int64, covered: Intervals) -> Mask:
    return intervals.covered_within(covered, times_ns, times_ns + 1) == 0


def _have(signature: npt.NDArray[np.int64], chosen: list[int], num_signatures: int) -> Mask:
    has = np.zeros(num_signatures, np.bool_)
    has[chosen] = True
    return has[signature]
