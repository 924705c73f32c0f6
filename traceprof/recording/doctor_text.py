"""A diagnosis as text."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.recording.mending import findings
from traceprof.recording.versions import is_cuda_too_new
from traceprof.units import counted, duration, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.recording.doctor import Diagnosis
    from traceprof.run.machines import Gpu

_UNKNOWN = "unknown"
_NAMES = {
    "nsys": "Nsight Systems (nsys)",
    "driver": "NVIDIA's driver",
    "cuda": "CUDA that PyTorch was built for",
    "torch": "PyTorch (torch)",
    "nccl": "NCCL that came with PyTorch",
    "nvtx": "nvtx, which writes ranges",
    "nsys_cuda": "newest CUDA that nsys knows",
}


def render(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as lines, each table with a title."""
    parts = [
        (f"{diagnosis.host}: what can be recorded", _recordable(diagnosis)),
        ("Versions", _versions(diagnosis)),
        ("Permissions", _permissions(diagnosis)),
        ("Space and ranges", _space(diagnosis)),
        ("Cores", _cores(diagnosis)),
        ("GPUs", _gpus(diagnosis)),
        ("Network cards", _cards(diagnosis)),
    ]
    lines: list[str] = []
    for title, rows in parts:
        aligned = _aligned([*rows])
        if aligned:
            lines += [one_line(title), *aligned, ""]
    sentences = (*diagnosis.misfits, *findings(diagnosis), *_lacking(diagnosis))
    lines += [f"→ {one_line(misfit)}" for misfit in sentences]
    lines.append(f"→ {_next(diagnosis)}")
    return "\n".join(lines).rstrip() + "\n"


def _recordable(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    for item in diagnosis.recordable:
        yield "yes" if item.can else "no", item.what, item.missing and f"needs {item.missing}"


def _next(diagnosis: Diagnosis) -> str:
    """Return how to record on this machine."""
    command = "traceprof record --steps 10:20 -- torchrun … train.py"
    if is_cuda_too_new(diagnosis.versions):
        return f"record a training: {command.replace('record', 'record --with torch')}"
    if diagnosis.versions.nsys:
        return f"record a training: {command} (with Nsight Systems)"
    if diagnosis.versions.torch:
        return f"record a training: {command} (with torch.profiler, as nsys is not on PATH)"
    return "nothing can be recorded: nsys is not on PATH, and this Python has no torch"


def _versions(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    for field in fields(diagnosis.versions):
        yield _NAMES[field.name], getattr(diagnosis.versions, field.name) or "not found"


def _permissions(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    words = {None: _UNKNOWN, True: "yes", False: "no"}
    permissions = diagnosis.permissions
    yield "own processes may be sampled", words[permissions.may_sample]
    yield "kernel.perf_event_paranoid", _number(permissions.perf_event_paranoid)
    yield "GPU counters for administrators only", words[permissions.counters_for_admins_only]
    yield "kernel.yama.ptrace_scope", _number(permissions.ptrace_scope)


def _space(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    space, ranges = diagnosis.space, diagnosis.ranges
    if space is not None:
        yield f"free in {space.folder}", _bytes(space.folder_bytes)
        yield f"free in {space.temporary}, where nsys collects", _bytes(space.temporary_bytes)
        yield "shared memory", _bytes(space.shared_memory_bytes)
    if ranges is not None and not ranges.failure:
        yield "ranges of instrument, tried", "recorded" if ranges.of_instrument else "not recorded"
        yield "ranges of nvtx.annotate, tried", "recorded" if ranges.of_nvtx else "not recorded"


def _bytes(size: int | None) -> str:
    return _UNKNOWN if size is None else size_text(size)


def _cores(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    cores = diagnosis.cores
    yield "of this machine", str(cores.num_cores)
    yield "that a job may run on", f"{cores.num_allowed} ({cores.allowed})"
    yield (
        "limit of the control group",
        "none" if cores.quota is None else counted(cores.quota, "core"),
    )
    if cores.num_throttled is not None:
        lost = "" if cores.throttled_ns is None else f", for {duration(cores.throttled_ns)}"
        yield (
            "stopped at that limit",
            f"in {cores.num_throttled} of {cores.num_periods} periods{lost}",
        )
    yield "ranks expected", str(cores.num_ranks) if cores.num_ranks else _UNKNOWN
    yield "OMP_NUM_THREADS", _number(cores.omp_num_threads, "not set")
    for number, of_node in enumerate(cores.numa_nodes):
        near = [gpu.index for gpu in diagnosis.gpus if gpu.numa_node == number]
        gpus = f": GPUs {' '.join(map(str, near))}" if near else ""
        yield f"NUMA node {number}", f"{of_node}{gpus}"


def _lacking(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield how the cores can slow ranks down."""
    cores = diagnosis.cores
    lack = cores.lack(cores.num_ranks)
    if lack is not None:
        yield (
            f"cores are few: {lack}. Ranks take each other's core, and GPUs wait: give the job more"
            " cores, or each rank fewer threads (OMP_NUM_THREADS)"
        )
    if cores.num_throttled:
        yield (
            "the control group was stopped for having used up its CPU quota: raise cpu.max, or a"
            " pod's limits.cpu"
        )


def _gpus(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    if not diagnosis.gpus:
        yield ("none found",)
        return
    yield "GPU", "name", "PCIe", "NVLink", "NUMA node", "paths to GPU 0, 1, …"
    for gpu in diagnosis.gpus:
        row = diagnosis.paths[gpu.index] if gpu.index < len(diagnosis.paths) else ()
        paths = " ".join(path or "?" for path in row)
        yield str(gpu.index), gpu.name, _pcie(gpu), _nvlink(gpu), _number(gpu.numa_node), paths


def _pcie(gpu: Gpu) -> str:
    if gpu.pcie_generation is None or gpu.pcie_width is None:
        return _UNKNOWN
    return f"generation {gpu.pcie_generation}, x{gpu.pcie_width}"


def _nvlink(gpu: Gpu) -> str:
    if gpu.num_nvlinks is None:
        return _UNKNOWN
    rate = "" if gpu.nvlink_gb_per_s is None else f" of {gpu.nvlink_gb_per_s:g} GB/s"
    return f"{counted(gpu.num_nvlinks, 'link')}{rate}" if gpu.num_nvlinks else "none"


def _cards(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    if not diagnosis.network_cards:
        yield ("none found (InfiniBand or RoCE)",)
        return
    yield "card", "nearest GPUs"
    for card in diagnosis.network_cards:
        yield card.name, " ".join(map(str, card.nearest_gpus)) or _UNKNOWN


def _number(value: int | None, unknown: str = _UNKNOWN) -> str:
    return unknown if value is None else str(value)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows with their columns under each other."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
