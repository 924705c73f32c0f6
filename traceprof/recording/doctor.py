"""Diagnosis of this machine: what it can record, what is missing, its GPUs and links."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec

from traceprof.errors import TraceprofError, one_line
from traceprof.recording import nsys as nsys_module
from traceprof.recording import nvidia_smi
from traceprof.recording.job import file_stem, write_whole
from traceprof.recording.machine import (
    Machine,
    Space,
    counters_restricted,
    look_at_cores,
    look_at_machine,
    look_for_space,
    network_cards,
    paranoid_level,
    permits_sampling,
    ptrace_scope,
    throttled_since,
)
from traceprof.recording.nsys import Nsys
from traceprof.recording.training import MIN_TORCH, PACKAGE, Training, numbers, this_python
from traceprof.run.machines import PREFIX, SUFFIX, Cores, Gpu
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.conversion import FIRST_WITH_BLOBS, export
from traceprof.trace.programs import captured
from traceprof.trace.temporary_folder import TemporaryFolder
from traceprof.units import counted, duration, size_text

_MIN_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""Of NVIDIA's CUDA compatibility guide: the oldest Linux driver for each major version."""


@dataclass(frozen=True)
class Versions:
    """Versions as texts, each with what it is of; empty if that is missing or unknown."""

    nsys: Annotated[str, "Nsight Systems (nsys)"] = ""
    driver: Annotated[str, "NVIDIA's driver"] = ""
    cuda: Annotated[str, "CUDA that PyTorch was built for"] = ""
    torch: Annotated[str, "PyTorch (torch)"] = ""
    nccl: Annotated[str, "NCCL that came with PyTorch"] = ""
    nvtx: Annotated[str, "nvtx, which writes ranges"] = ""
    nsys_cuda: Annotated[str, "newest CUDA that nsys knows"] = ""


def find_versions(nsys: str, driver: str, nsys_cuda: str, training: Training) -> Versions:
    """Return the versions in the environment of a Python.

    `nsys_cuda`: the newest CUDA that Nsight Systems knows.
    """
    torch, nvtx = (training.versions.get(name, "") for name in ("torch", "nvtx"))
    nccl = (training.versions.get(f"nvidia-nccl-cu{major}") for major in (13, 12, 11))
    return Versions(
        nsys, driver, training.cuda, torch, next(filter(None, nccl), ""), nvtx, nsys_cuda
    )


def misfits(versions: Versions) -> list[str]:
    """Return sentences about incompatible versions, and what to do about them."""
    sentences = []
    cuda, driver = numbers(versions.cuda), numbers(versions.driver)
    needed = _MIN_DRIVERS.get(cuda[0]) if cuda else None
    if needed and driver and driver < needed:
        sentences.append(
            f"PyTorch is built for CUDA {versions.cuda}, which needs driver {needed[0]}.{needed[1]}"
            f" or later, and {versions.driver} is loaded: install another PyTorch or driver"
        )
    if is_cuda_too_new(versions):
        sentences.append(
            f"GPU work may be lost: this nsys knows CUDA up to {versions.nsys_cuda}, and PyTorch is"
            f" built for CUDA {versions.cuda}: install the Nsight Systems that came with that CUDA,"
            " or a later one, or record with --with torch"
        )
    if versions.torch and numbers(versions.torch) < MIN_TORCH:
        sentences.append(f"instrument needs torch 2.4 or later, and {versions.torch} is installed")
    return sentences


def is_cuda_too_new(versions: Versions) -> bool:
    """Return whether PyTorch's CUDA is newer than what nsys knows, where there is a driver."""
    known = numbers(versions.nsys_cuda)[:2]
    return bool(versions.driver and known) and known < numbers(versions.cuda)[:2]


_OURS, _OWN = "traceprof probe", "probe of nvtx"
_PROGRAM = f"""
from instrument.core import nvtx_ranges
nvtx_ranges.push(nvtx_ranges.prepare({_OURS!r}))
nvtx_ranges.pop()
import nvtx
with nvtx.annotate({_OWN!r}, domain="probe"):
    pass
"""
_FLAGS = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
_TRIES = 2  # nsys fails for a reason of its own once in some hundred recordings


@dataclass(frozen=True)
class ProbedRanges:
    """The ranges that a recording for a try has."""

    of_instrument: bool  # whether those of `instrument` are in it
    of_nvtx: bool  # whether those that a program opens by `nvtx.annotate` are
    failure: str = ""  # why there is no recording; empty if there is one


def probe_ranges(nsys: Nsys, python: str = sys.executable) -> ProbedRanges:
    """Record a program of a Python that opens two ranges; takes some seconds."""
    failure = ""
    for _ in range(_TRIES):
        try:
            with closing(TemporaryFolder()) as folder:
                names, failure = _recorded_names(nsys, python, folder.path)
        except (TraceprofError, OSError, sqlite3.Error) as error:
            failure = str(error)
            continue
        if not failure:
            return ProbedRanges(_OURS in names, _OWN in names)
    return ProbedRanges(of_instrument=False, of_nvtx=False, failure=failure)


def _works_in(folder: Path) -> dict[str, str]:
    return {"TMPDIR": str(folder)}


def _end_all(variables: Mapping[str, str]) -> None:
    """End the processes with these variables: the agent of nsys goes on when nsys is ended."""
    wanted = {os.fsencode(f"{name}={value}") for name, value in variables.items()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is of somebody else
            if wanted <= {*(process / "environ").read_bytes().split(b"\0")}:
                os.kill(int(process.name), signal.SIGKILL)


def _recorded_names(nsys: Nsys, python: str, folder: Path) -> tuple[set[str], str]:
    """Return the names of recorded ranges, and why there is no recording."""
    report = folder / "probe.nsys-rep"
    flags = [flag for flag in _FLAGS if flag[2:].partition("=")[0] in nsys.options]
    command = (nsys.path, "profile", *flags, f"--output={folder / 'probe'}", python)
    program = folder / "probe.py"
    program.write_text(_PROGRAM)
    try:
        # What nsys collects lies in this folder, too, so that it is removed with it.
        done = captured(*command, PACKAGE, program, environment=os.environ | _works_in(folder))
    except BaseException:
        _end_all(_works_in(folder))
        raise
    if not report.exists():
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return set(), lines[-1] if lines else f"the exit status of nsys is {done.returncode}"
    target, _ = export(nsys.path, report, folder)
    with closing(sqlite3.connect(target)) as database:
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({schema.NVTX.name})")}
        names = set[str]()
        if "text" in columns:
            names |= {row[0] for row in database.execute("SELECT text FROM NVTX_EVENTS")}
        if "textId" in columns:
            query = "SELECT value FROM StringIds WHERE id IN (SELECT textId FROM NVTX_EVENTS)"
            names |= {row[0] for row in database.execute(query)}
    return names, ""


SCHEMA = "traceprof.doctor/1"
_FIRST_WITH_STALLS, _FIRST_DRIVER_WITH_STALLS = (2026,), (550,)


@dataclass(frozen=True)
class Permissions:
    """Permissions that the system grants; None if unknown."""

    perf_event_paranoid: int | None  # setting of the kernel; up to 2, own processes may be sampled
    may_sample: bool | None  # whether they may be sampled, as nsys reports
    counters_for_admins_only: bool | None  # the driver's NVreg_RestrictProfilingToAdminUsers
    # setting of Yama; 0 or 1 lets a tool inspect the processes that it starts
    ptrace_scope: int | None


@dataclass(frozen=True)
class Card:
    """A network card."""

    name: str  # such as `mlx5_0`
    nearest_gpus: tuple[int, ...] = ()  # indices of the GPUs with the shortest path to it


@dataclass(frozen=True)
class Recordable:
    """A kind of data that a report may hold."""

    what: str  # the data, a noun
    can: bool  # whether it can be recorded here
    # the missing tool or permission, and how to get it; empty if nothing is missing
    missing: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a machine; analyses read `host`, `gpus`, `paths`, `cores` from its file."""

    schema: str  # of this document
    host: str  # the machine's name
    versions: Versions  # of the programs and libraries that a recording depends on
    misfits: tuple[str, ...]  # incompatible versions
    permissions: Permissions  # what the system permits
    gpus: tuple[Gpu, ...]  # in order of index
    # by indices of two GPUs, as `nvidia-smi topo -m` names the path
    paths: tuple[tuple[str, ...], ...]
    network_cards: tuple[Card, ...]  # InfiniBand and RoCE cards
    cores: Cores  # that this process, and what it starts, may use
    recordable: tuple[Recordable, ...]  # the data that can be recorded, or not
    space: Space | None = None  # for a recording; None if no folder was named
    # those that nsys recorded when it was tried; None if it was not
    ranges: ProbedRanges | None = None
    training: str = ""  # the Python that it is about, with versions where that was asked
    lacks: tuple[str, ...] = ()  # sentences: what a recording of that Python would not have


def diagnose(
    folder: Path | None = None,
    *,
    tries_nsys: bool = False,
    training: Training | None = None,
    lacks: Sequence[str] = (),
) -> Diagnosis:
    """Examine this machine and an environment of Python without changing them.

    The folder need not exist. `tries_nsys`: record a small program, which takes some seconds.
    `training`: the Python whose environment it is; None for this one. `lacks`: sentences about what
    a recording of that Python would not have.
    """
    asked = this_python() if training is None else training
    lack = asked.lacks_instrument if training is None else ""
    nsys = nsys_module.find()
    machine = look_at_machine(None if nsys is None else nsys.may_sample)
    gpus, driver, paths, cards = _hardware()
    version, cuda = ("", "") if nsys is None else (nsys.version_text, nsys.newest_cuda)
    versions = find_versions(version, driver, cuda, asked)
    return Diagnosis(
        SCHEMA,
        socket.gethostname(),
        versions,
        tuple(misfits(versions)),
        Permissions(paranoid_level(), machine.may_sample, counters_restricted(), ptrace_scope()),
        tuple(gpus),
        paths,
        cards,
        look_at_cores(len(gpus)),
        tuple(recordable_data(versions, machine, has_gpus=bool(gpus))),
        None if folder is None else look_for_space(folder),
        probe_ranges(nsys, asked.executable) if tries_nsys and nsys is not None else None,
        f"{sys.executable}, which runs traceprof" if training is None else str(training),
        (*lacks, *([f"{lack}: install traceprof again"] if lack else [])),
    )


def file_name(host: str) -> str:
    """Return the file name of a machine's diagnosis beside its reports."""
    return f"{PREFIX}{file_stem(host)}{SUFFIX}"


def as_bytes(diagnosis: Diagnosis) -> bytes:
    """Return a diagnosis as JSON."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2) + b"\n"


def store(folder: Path, diagnosis: Diagnosis) -> Path:
    """Write a diagnosis into the folder of the reports, whole or not at all; return the file."""
    file = folder / file_name(diagnosis.host)
    write_whole(file, as_bytes(diagnosis))
    return file


def store_throttling(folder: Path, before: Diagnosis) -> Path:
    """Write a diagnosis anew, with how its job was throttled since it was made; return the file."""
    after = look_at_cores(len(before.gpus))
    return store(folder, replace(before, cores=throttled_since(before.cores, after)))


def _hardware() -> tuple[list[Gpu], str, tuple[tuple[str, ...], ...], tuple[Card, ...]]:
    gpus, driver = nvidia_smi.gpus()
    topology = nvidia_smi.parse_topology(nvidia_smi.topology() if gpus else "")
    nodes = topology.numa_nodes
    gpus = [msgspec.structs.replace(gpu, numa_node=nodes.get(gpu.index)) for gpu in gpus]
    paths = nvidia_smi.gpu_paths(topology.matrix, len(gpus)) if topology.matrix else ()
    cards = nvidia_smi.nearest_gpus(topology)
    listed = {name: cards.get(name, ()) for name in (*network_cards(), *cards)}
    return gpus, driver, paths, tuple(Card(name, near) for name, near in sorted(listed.items()))


def recordable_data(
    versions: Versions, machine: Machine, *, has_gpus: bool
) -> Iterator[Recordable]:
    """Yield the data that a report of this machine may hold, and what is missing for the rest."""
    has_nsys = bool(versions.nsys)
    no_nsys = "Nsight Systems: put `nsys` on PATH"
    yield _if(
        "ranges, steps and communication of instrument",
        has_nsys or bool(versions.torch),
        "nsys on PATH, or torch in this Python",
    )
    no_gpu = "a GPU with NVIDIA's driver"
    yield _if("GPU work", has_gpus, no_gpu)
    yield _if(
        "when the host slept, and what it ran",
        has_nsys and machine.may_sample is not False,
        no_nsys
        if not has_nsys
        else "permission: sysctl kernel.perf_event_paranoid=2, or CAP_SYS_ADMIN",
    )
    counters = "permission: root, or NVreg_RestrictProfilingToAdminUsers=0 for the driver"
    yield _if(
        "counters of the GPUs' links",
        has_nsys and has_gpus and machine.may_count,
        no_nsys if not has_nsys else no_gpu if not has_gpus else counters,
    )
    yield _if(
        "counters of network cards",
        has_nsys and bool(machine.network_cards),
        no_nsys if not has_nsys else "an InfiniBand or RoCE card",
    )
    nsys, driver = numbers(versions.nsys), numbers(versions.driver)
    yield _if(
        "sizes of NCCL's messages without instrument",
        nsys >= FIRST_WITH_BLOBS,
        "Nsight Systems 2024.5 or later (instrument's labels have them)",
    )
    yield _if(
        "records of a full command buffer",
        nsys >= _FIRST_WITH_STALLS and driver >= _FIRST_DRIVER_WITH_STALLS,
        "Nsight Systems 2026 or later and a driver of CUDA 12.4 or later (else they are inferred)",
    )
    yield _if("traces of torch.profiler", bool(versions.torch), "torch in this Python")


def _if(what: str, can: bool, missing: str) -> Recordable:
    return Recordable(what, can, "" if can else missing)


_MIN_FREE_BYTES = 1 << 30  # a report of a GPU training takes some MB a second and rank
_MIN_SHARED_BYTES = 1 << 30  # containers have 64 MB by default
_MAX_PTRACE_SCOPE = 1


def findings(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a sentence for each finding, with the command that mends it."""
    if diagnosis.ranges is not None:
        yield from _of_ranges(diagnosis.ranges)
    if diagnosis.space is not None:
        yield from _of_space(diagnosis.space)
    if diagnosis.versions.nsys:
        yield from _of_permissions(diagnosis.permissions, has_gpus=bool(diagnosis.gpus))


def _of_ranges(ranges: ProbedRanges) -> Iterator[str]:
    if ranges.failure:
        yield f"nsys recorded nothing when tried: {ranges.failure}; try: nsys status --environment"
    elif not ranges.of_instrument:
        yield "ranges of instrument are not recorded when tried: pip install --upgrade nvtx"
    elif not ranges.of_nvtx:
        yield (
            "in a test, ranges that a program opens by nvtx.annotate were not recorded, but"
            " those of instrument were: pip install nvtx==0.2.11"
        )


def _of_space(space: Space) -> Iterator[str]:
    if not space.may_write:
        yield f"nothing can be written to {space.folder}: choose another -o, or chmod u+rwx it"
    for folder, free, remedy in (
        (space.folder, space.folder_bytes, "choose another -o, or make room: du -xh DIR | sort -h"),
        (space.temporary, space.temporary_bytes, "export TMPDIR=DIR with more room"),
    ):
        if free is not None and free < _MIN_FREE_BYTES:
            yield f"{size_text(free)} are free in {folder}, a recording may take more: {remedy}"
    shared = space.shared_memory_bytes
    if shared is not None and shared < _MIN_SHARED_BYTES:
        yield (
            f"shared memory has {size_text(shared)}, for NCCL and workers of data loaders:"
            " mount -o remount,size=16G /dev/shm (docker run --shm-size=16g)"
        )


def _of_permissions(permissions: Permissions, *, has_gpus: bool) -> Iterator[str]:
    is_permitted = permits_sampling(permissions.perf_event_paranoid, is_root=False)
    if permissions.may_sample is False and not is_permitted:
        yield "threads cannot be sampled: sudo sysctl -w kernel.perf_event_paranoid=2"
    scope = permissions.ptrace_scope
    if scope is not None and scope > _MAX_PTRACE_SCOPE:
        yield "tools cannot follow processes: sudo sysctl -w kernel.yama.ptrace_scope=1"
    if has_gpus and permissions.counters_for_admins_only:
        yield (
            "counters of GPUs are for administrators: echo options nvidia"
            " NVreg_RestrictProfilingToAdminUsers=0 | sudo tee"
            " /etc/modprobe.d/nvidia-profiling.conf, then reboot"
        )


_UNKNOWN = "unknown"


def render(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as lines, each table with a title."""
    recordable = [
        ("yes" if item.can else "no", item.what, item.missing and f"needs {item.missing}")
        for item in diagnosis.recordable
    ]
    parts = [
        (f"{diagnosis.host}: what can be recorded", iter(recordable)),
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
    sentences = (*diagnosis.lacks, *diagnosis.misfits, *findings(diagnosis), *_lacking(diagnosis))
    lines += [f"→ {one_line(misfit)}" for misfit in sentences]
    lines += [f"→ {one}" for one in (*_against_loss(diagnosis.versions), _next(diagnosis))]
    return "\n".join(lines).rstrip() + "\n"


def _against_loss(versions: Versions) -> Iterator[str]:
    if versions.nsys:
        yield (
            "that no record is lost: record few steps; nsys profile --cuda-flush-interval=10000 for"
            " over 30 s; CUDA graphs whole (--cuda-graph-trace=graph: one record each, =node: one"
            " for each kernel inside)"
        )
    elif versions.torch:
        yield "that no record is lost: record few steps"


def _next(diagnosis: Diagnosis) -> str:
    command = "traceprof record --steps 10:20 -- torchrun … train.py"
    if is_cuda_too_new(diagnosis.versions):
        return f"record a training: {command.replace('record', 'record --with torch')}"
    if diagnosis.versions.nsys:
        return f"record a training: {command} (with Nsight Systems)"
    if diagnosis.versions.torch:
        return f"record a training: {command} (with torch.profiler, as nsys is not on PATH)"
    return "nothing can be recorded: nsys is not on PATH, and this Python has no torch"


def _versions(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    if diagnosis.training:
        yield "Python", diagnosis.training
    for name, kind in get_type_hints(Versions, include_extras=True).items():
        yield kind.__metadata__[0], getattr(diagnosis.versions, name) or "not found"


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
    shown = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
