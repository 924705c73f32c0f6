"""Permissions, cores and free space of this machine, read from its files."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from traceprof.run.machines import Cores


@dataclass(frozen=True)
class Machine:
    """The facts about a machine that the choice of flags depends on."""

    has_gpu: bool  # whether NVIDIA's driver is loaded
    may_count: bool  # whether GPU counters may be read
    may_sample: bool | None  # whether threads may be sampled; None if unknown
    network_cards: tuple[str, ...]  # names of InfiniBand and RoCE cards


def look_at_machine(may_sample: bool | None = None, root: Path = Path("/")) -> Machine:
    """Examine this machine; `root` is another file system in tests.

    `may_sample`: as nsys reports; None to ask the kernel.
    """
    driver = root / "proc/driver/nvidia"
    if may_sample is None:
        may_sample = permits_sampling(paranoid_level(root), is_root=os.geteuid() == 0)
    restricted = counters_restricted(root)
    return Machine(
        has_gpu=(driver / "version").exists(),
        may_count=os.geteuid() == 0 or restricted is False,
        may_sample=may_sample,
        network_cards=network_cards(root),
    )


def paranoid_level(root: Path = Path("/")) -> int | None:
    """Return the kernel's `perf_event_paranoid`; None if unknown."""
    text = read_text(root / "proc/sys/kernel/perf_event_paranoid").strip()
    return int(text) if text.removeprefix("-").isdecimal() else None


def permits_sampling(level: int | None, *, is_root: bool) -> bool | None:
    """Return whether processes of one's own may be sampled at this level."""
    if is_root:
        return True
    return None if level is None else level <= 2


def ptrace_scope(root: Path = Path("/")) -> int | None:
    """Return Yama's scope for debuggers: 0 all, 1 children, 2 root, 3 none; None without Yama."""
    text = read_text(root / "proc/sys/kernel/yama/ptrace_scope").strip()
    return int(text) if text.isdecimal() else None


def counters_restricted(root: Path = Path("/")) -> bool | None:
    """Return whether GPU counters are for administrators only; None without a driver."""
    for line in read_text(root / "proc/driver/nvidia/params").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "RmProfilingAdminOnly":
            return value.strip() != "0"
    return None


def network_cards(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the names of InfiniBand and RoCE cards."""
    return tuple(sorted(path.name for path in (root / "sys/class/infiniband").glob("*")))


def read_text(path: Path) -> str:
    """Return the text of a file; an empty one where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_RANKS_HERE = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)
_NS_PER_US = 1000


def look_at_cores(
    num_gpus: int, root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> Cores:
    """Examine the cores of this process, which are those of the commands that it starts.

    As many ranks as GPUs are expected where no launcher says how many. Tests have a `root` and an
    `environment` of their own.
    """
    environment = os.environ if environment is None else environment
    num_allowed = len(os.sched_getaffinity(0))
    status = read_text(root / "proc/self/status")
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    groups = [*_groups(root)]
    limits = [limit for folder in groups if (limit := _quota(folder)) is not None]
    periods, throttled, throttled_ns = _throttled(groups)
    known = (_number(environment.get(name, "")) for name in _RANKS_HERE)
    nodes = sorted(
        (root / "sys/devices/system/node").glob("node[0-9]*"),
        key=lambda path: int(path.name.removeprefix("node")),
    )
    return Cores(
        num_cores=os.cpu_count() or num_allowed,
        allowed="" if allowed is None else allowed.group(1),
        num_allowed=num_allowed,
        quota=min(limits, default=None),
        num_periods=periods,
        num_throttled=throttled,
        throttled_ns=throttled_ns,
        num_ranks=next(filter(None, known), num_gpus),
        omp_num_threads=_number(environment.get("OMP_NUM_THREADS", "").partition(",")[0]),
        numa_nodes=tuple(read_text(node / "cpulist").strip() for node in nodes),
    )


def throttled_since(before: Cores, after: Cores) -> Cores:
    """Return cores with what their counters of throttling rose by."""

    def rise(first: int | None, last: int | None) -> int | None:
        return None if first is None or last is None else max(last - first, 0)

    return replace(
        after,
        num_periods=rise(before.num_periods, after.num_periods),
        num_throttled=rise(before.num_throttled, after.num_throttled),
        throttled_ns=rise(before.throttled_ns, after.throttled_ns),
    )


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group, version 2 or 1, and of those above it."""
    base = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = base if not controllers else base / "cpu"
        # In a container the path may be that outside, which is not there.
        folder = top / path.strip("/")
        while folder != top and folder.is_relative_to(top):
            yield folder
            folder = folder.parent
        yield top


def _quota(folder: Path) -> float | None:
    words = read_text(folder / "cpu.max").split()
    if not words:
        words = [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    quota, period = (_number(word) for word in [*words, "", ""][:2])
    return quota / period if quota and period else None


def _throttled(groups: list[Path]) -> tuple[int | None, int | None, int | None]:
    """Return how many periods passed, in how many a group was throttled, and for how long, ns."""
    for folder in groups:
        counters = dict(
            line.split(maxsplit=1)
            for line in read_text(folder / "cpu.stat").splitlines()
            if " " in line
        )
        if "nr_throttled" in counters:
            us, ns = (
                _number(counters.get(name, "")) for name in ("throttled_usec", "throttled_time")
            )
            return (
                _number(counters.get("nr_periods", "")),
                _number(counters["nr_throttled"]),
                ns if us is None else us * _NS_PER_US,
            )
    return None, None, None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


NO_SPACE = "no space left"
_BYTES = 1 << 17
_SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True)
class Space:
    """Free bytes where a recording, and a training, need them."""

    folder: str  # of the reports, as it was given
    folder_bytes: int | None  # free there; None if unknown
    may_write: bool  # whether this user may write there
    temporary: str  # the folder in which nsys collects what it records
    temporary_bytes: int | None  # free there; None if unknown
    # the size of the shared memory through which ranks and workers of data loaders exchange data;
    # None if unknown
    shared_memory_bytes: int | None


def look_for_space(folder: Path) -> Space:
    """Return the space for a recording into a folder, which need not exist."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    temporary = tempfile.gettempdir()
    shared = _usage(Path(_SHARED_MEMORY))
    of_folder, of_temporary = _usage(existing), _usage(Path(temporary))
    return Space(
        str(folder),
        of_folder and of_folder[1],
        os.access(existing, os.W_OK | os.X_OK) and existing.is_dir(),
        temporary,
        of_temporary and of_temporary[1],
        shared and shared[0],
    )


def is_full(folder: Path) -> bool:
    """Return whether a small file does not fit into a folder any more, also by a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return False


def _usage(folder: Path) -> tuple[int, int] | None:
    """Return size and free bytes of a folder's file system; None if unknown."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free
