"""Advice on stalls of the host, by what held its threads up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.findings import bullets
from traceprof.host.rank_stalls import BLOCKED, GARBAGE, OFF_CORE, PROCESS, THREAD, UNKNOWN
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW_CORES, QUOTA, SLICES = "few cores", "quota", "time slices"
"""What held threads up, as only the stalls of a run together show it."""

_CORES = (
    "Give the job more cores (srun --cpus-per-task, the container's CPU request), and each rank"
    " its own: deepspeed --bind_cores_to_rank, torchrun --numa-binding, numactl, srun"
    " --cpu-bind=cores. `traceprof doctor` counts them"
)
_THREADS = (
    "Keep the total number of threads of all ranks below the number of"
    " cores: OMP_NUM_THREADS=1 or a few, and fewer"
    " DataLoader(num_workers=…)"
)
_LIFTED = (
    "Raise or remove the container's CPU quota (cpu.max of its cgroup, a pod's limits.cpu): its"
    " cpu.stat counts nr_throttled"
)
_COLLECT = (
    "Choose when to collect garbage: gc.collect() and gc.freeze() after the"
    " first step, gc.disable(), then gc.collect() every N steps, on all"
    " ranks in the same step"
)
_OTHERS = "Move other processes off these cores: other jobs, monitoring, preprocessing, compilers"
_LOCKS = (
    "Do not wait in the launching thread: let a thread that launches"
    " nothing write files, log and wait for locks and sockets"
)
_PAGES = (
    "Page faults and the allocator also hold up one thread: reuse pinned"
    " memory (pin_memory=True, buffers made once), and let malloc keep its"
    " memory (MALLOC_TRIM_THRESHOLD_, jemalloc or tcmalloc by LD_PRELOAD)"
)
_GIL = (
    "Python's lock (GIL) holds all threads up while one computes in Python: move loading and"
    " logging to other processes"
)

_BY_REASON: dict[str, tuple[str, ...]] = {
    GARBAGE: (_COLLECT,),
    BLOCKED: (_LOCKS,),
    QUOTA: (_LIFTED, _CORES, _THREADS),
    FEW_CORES: (_CORES, _THREADS, _LIFTED),
    SLICES: (_CORES, _OTHERS, _THREADS),
    OFF_CORE: (_CORES, _OTHERS, _THREADS, _LIFTED),
    PROCESS: (_COLLECT, _CORES, _THREADS, _LIFTED, _GIL),
    THREAD: (_PAGES, _CORES, _LOCKS),
    UNKNOWN: (_CORES, _THREADS, _COLLECT, _LIFTED, _PAGES),
}
_TORCH_ONLY = {_COLLECT, _GIL}
_SHOWS = {
    Part.THREAD_SWITCHES: "Records of when its threads were on a core show whether they were kept"
    " off it: {}",
    Part.SYSTEM_CALLS: "System calls show whether threads waited for a lock or a file: {}",
}


def advice(reason: str, *, is_pytorch: bool, missing: tuple[Part, str] | None) -> tuple[str, ...]:
    """Return what to do, most promising first.

    Args:
        reason: what held the threads up.
        is_pytorch: whether the program is known to be PyTorch.
        missing: a part of a trace that would say more, and how to record it; None for none.
    """
    lines = [line for line in _BY_REASON[reason] if is_pytorch or line not in _TORCH_ONLY]
    if missing is not None:
        part, how = missing
        lines.append(_SHOWS[part].format(how))
    return tuple(lines)


def page_advice() -> str:
    """Return all advice for the page, in Markdown."""
    by_lines: dict[Sequence[str], list[str]] = {}
    for reason, lines in _BY_REASON.items():
        by_lines.setdefault(lines, []).append(reason)
    return "\n".join(
        f"\n*{', '.join(reasons)}*\n\n{bullets(lines)}" for lines, reasons in by_lines.items()
    ).strip()
