"""The cores that processes of this machine may use, read from files and the environment only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.recording.machine import read_text
from traceprof.run.machines import Cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANKS_HERE = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip
_NS_PER_US = 1000


def look(
    num_gpus: int, root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> Cores:
    """Examine the cores of this process, which are those of the commands that it starts.

    Args:
        num_gpus: of the machine: as many ranks are expected where no launcher says how many.
        root: of the file system; another one in tests.
        environment: of this process; another one in tests.
    """
    environment = os.environ if environment is None else environment
    allowed = sorted(os.sched_getaffinity(0))
    groups = [*_groups(root)]
    limits = [limit for folder in groups if (limit := _quota(folder)) is not None]
    periods, throttled, throttled_ns = _throttled(groups)
    return Cores(
        num_cores=os.cpu_count() or len(allowed),
        allowed=as_ranges(allowed),
        num_allowed=len(allowed),
        quota=min(limits, default=None),
        num_periods=periods,
        num_throttled=throttled,
        throttled_ns=throttled_ns,
        num_ranks=_num_ranks(environment) or num_gpus,
        omp_num_threads=_number(environment.get("OMP_NUM_THREADS", "").partition(",")[0]),
        numa_nodes=tuple(_numa_nodes(root)),
    )


def since(before: Cores, after: Cores) -> Cores:
    """Return cores with what their counters of throttling rose by."""

    def rise(first: int | None, last: int | None) -> int | None:
        return None if first is None or last is None else max(last - first, 0)

    return replace(
        after,
        num_periods=rise(before.num_periods, after.num_periods),
        num_throttled=rise(before.num_throttled, after.num_throttled),
        throttled_ns=rise(before.throttled_ns, after.throttled_ns),
    )


def as_ranges(numbers: list[int]) -> str:
    """Return ascending numbers as Linux lists them: `0-7,64-71`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


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
    """Return how many cores' time a group may use; None without a limit."""
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


def _num_ranks(environment: Mapping[str, str]) -> int | None:
    known = (_number(environment.get(name, "")) for name in _RANKS_HERE)
    return next((number for number in known if number), None)


def _numa_nodes(root: Path) -> Iterator[str]:
    folder = root / "sys/devices/system/node"
    try:
        nodes = [path for path in folder.iterdir() if path.name.removeprefix("node").isdecimal()]
    except OSError:
        return
    for node in sorted(nodes, key=lambda path: int(path.name.removeprefix("node"))):
        yield read_text(node / "cpulist").strip()


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
