"""Diagnosis of this machine: what it can record, what is missing, its GPUs and links."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceprof.recording import cores, nvidia_smi, nvml
from traceprof.recording import nsys as nsys_module
from traceprof.recording.disk import Space, look_for_space
from traceprof.recording.job import file_stem
from traceprof.recording.machine import (
    counters_restricted,
    look,
    network_cards,
    paranoid_level,
    ptrace_scope,
)
from traceprof.recording.probe import ProbedRanges, probe_ranges
from traceprof.recording.versions import Versions, find_versions, misfits, numbers
from traceprof.run.machines import PREFIX, SUFFIX, Cores, Gpu
from traceprof.trace.nsight.conversion import FIRST_WITH_BLOBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceprof.recording.machine import Machine

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


def diagnose(folder: Path | None = None, *, tries_nsys: bool = False) -> Diagnosis:
    """Examine this machine and this Python's environment without changing them.

    Args:
        folder: of a recording, which need not exist.
        tries_nsys: whether to record a small program, which takes some seconds.
    """
    nsys = nsys_module.find()
    machine = look(None if nsys is None else nsys.may_sample)
    gpus, driver, paths, cards = _hardware()
    version, cuda = ("", "") if nsys is None else (nsys.version_text, nsys.newest_cuda)
    versions = find_versions(version, driver, cuda)
    return Diagnosis(
        SCHEMA,
        socket.gethostname(),
        versions,
        tuple(misfits(versions)),
        Permissions(paranoid_level(), machine.may_sample, counters_restricted(), ptrace_scope()),
        tuple(gpus),
        paths,
        cards,
        cores.look(len(gpus)),
        tuple(recordable_data(versions, machine, has_gpus=bool(gpus))),
        None if folder is None else look_for_space(folder),
        probe_ranges(nsys) if tries_nsys and nsys is not None else None,
    )


def file_name(host: str) -> str:
    """Return the file name of a machine's diagnosis beside its reports."""
    return f"{PREFIX}{file_stem(host)}{SUFFIX}"


def as_bytes(diagnosis: Diagnosis) -> bytes:
    """Return a diagnosis as JSON."""
    import msgspec  # noqa: PLC0415  (`record --dry-run` needs none)

    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2) + b"\n"


def store(folder: Path, diagnosis: Diagnosis) -> Path:
    """Write a diagnosis into the folder of the reports, whole or not at all; return the file."""
    file = folder / file_name(diagnosis.host)
    partial = file.with_name(f".{file.name}")
    try:
        partial.write_bytes(as_bytes(diagnosis))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file


def store_throttling(folder: Path, before: Diagnosis) -> Path:
    """Write a diagnosis anew, with how its job was throttled since it was made; return the file."""
    after = cores.look(len(before.gpus))
    return store(folder, replace(before, cores=cores.since(before.cores, after)))


def _hardware() -> tuple[list[Gpu], str, tuple[tuple[str, ...], ...], tuple[Card, ...]]:
    """Return the GPUs, the driver's version, paths between GPUs, and network cards."""
    by_nvml = nvml.gpus()
    gpus, driver, paths = (*nvidia_smi.gpus(), ()) if by_nvml is None else by_nvml
    text = nvidia_smi.topology() if gpus else ""
    matrix, names = nvidia_smi.parse_topology(text)
    nodes = nvidia_smi.parse_numa_nodes(text)
    if matrix:
        paths = nvidia_smi.gpu_paths(matrix, len(gpus))
    devices = [
        gpu if gpu.numa_node is not None else nvidia_smi.with_numa_node(gpu, nodes.get(gpu.index))
        for gpu in gpus
    ]
    cards = nvidia_smi.nearest_gpus(matrix, names)
    listed = {name: cards.get(name, ()) for name in (*network_cards(), *cards)}
    return devices, driver, paths, tuple(Card(name, near) for name, near in sorted(listed.items()))


def recordable_data(
    versions: Versions, machine: Machine, *, has_gpus: bool
) -> Iterator[Recordable]:
    """Yield the data that a report of this machine may hold, and what is missing for the rest."""
    has_nsys = bool(versions.nsys)
    no_nsys = "Nsight Systems: put `nsys` on PATH"
    yield _if("ranges, steps and communication of instrument", has_nsys or bool(versions.torch),
              "nsys on PATH, or torch in this Python")  # fmt: skip
    no_gpu = "a GPU with NVIDIA's driver"
    yield _if("GPU work", has_gpus, no_gpu)
    yield _if("when the host slept, and what it ran", has_nsys and machine.may_sample is not False,
              no_nsys if not has_nsys else
              "permission: sysctl kernel.perf_event_paranoid=2, or CAP_SYS_ADMIN")  # fmt: skip
    counters = "permission: root, or NVreg_RestrictProfilingToAdminUsers=0 for the driver"
    yield _if("counters of the GPUs' links", has_nsys and has_gpus and machine.may_count,
              no_nsys if not has_nsys else no_gpu if not has_gpus else counters)  # fmt: skip
    yield _if("counters of network cards", has_nsys and bool(machine.network_cards),
              no_nsys if not has_nsys else "an InfiniBand or RoCE card")  # fmt: skip
    nsys, driver = numbers(versions.nsys), numbers(versions.driver)
    yield _if("sizes of NCCL's messages without instrument", nsys >= FIRST_WITH_BLOBS,
              "Nsight Systems 2024.5 or later (instrument's labels have them)")  # fmt: skip
    yield _if("records of a full command buffer",
              nsys >= _FIRST_WITH_STALLS and driver >= _FIRST_DRIVER_WITH_STALLS,
              "Nsight Systems 2026 or later and a driver of CUDA 12.4 or later (else they are"
              " inferred)")  # fmt: skip
    yield _if("traces of torch.profiler", bool(versions.torch), "torch in this Python")


def _if(what: str, can: bool, missing: str) -> Recordable:
    return Recordable(what, can, "" if can else missing)
