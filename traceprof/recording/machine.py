"""Devices and permissions of this machine, read from files only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The facts about a machine that the choice of flags depends on."""

    has_gpu: bool  # whether NVIDIA's driver is loaded
    may_count: bool  # whether GPU counters may be read
    may_sample: bool | None  # whether threads may be sampled; None if unknown
    network_cards: tuple[str, ...]  # names of InfiniBand and RoCE cards


def look(may_sample: bool | None = None, root: Path = Path("/")) -> Machine:
    """Examine this machine.

    Args:
        may_sample: as nsys reports; None to ask the kernel.
        root: of the file system; another one in tests.
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
    folder = root / "sys/class/infiniband"
    try:
        return tuple(sorted(path.name for path in folder.iterdir()))
    except OSError:
        return ()


def read_text(path: Path) -> str:
    """Return the text of a file; an empty one where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
