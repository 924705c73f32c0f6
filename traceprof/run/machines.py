"""The GPUs, links and cores of a machine, from the file that `doctor` left by the reports.

Of that file only a part is read here. It gives the rates that links can carry on this very machine,
instead of those that boards of that name can; and the cores that the job could use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from traceprof.hardware import PCIE_X16
from traceprof.run.guard import optional
from traceprof.structs import Record
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.trace import Trace

Known = TypeVar("Known")

PREFIX, SUFFIX = "doctor-", ".json"
NVLINK = re.compile(r"NV(\d+)\Z")
_ON_PCIE = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
_LANES = 16


class Gpu(Record, frozen=True):
    """A GPU of a machine."""

    index: int  # its number in NVIDIA's tools
    name: str  # of the board
    uuid: str = ""  # `GPU-…`; empty if unknown
    bus: str = ""  # its place on the PCI bus, such as `00000000:3B:00.0`
    pcie_generation: int | None = None  # the slot's maximum: an idle GPU lowers it
    pcie_width: int | None = None  # lanes that are connected
    num_nvlinks: int | None = None  # links that are up; None if unknown
    nvlink_gb_per_s: float | None = None  # GB/s of one link in one direction
    numa_node: int | None = None  # of the nearest processor

    @property
    def peaks(self) -> dict[str, float]:
        """Rates of its links in one direction, GB/s, by `nvlink` and `pcie`, if known."""
        peaks = {}
        if self.num_nvlinks and self.nvlink_gb_per_s:
            peaks["nvlink"] = self.num_nvlinks * self.nvlink_gb_per_s
        if self.pcie_generation in PCIE_X16 and self.pcie_width:
            peaks["pcie"] = PCIE_X16[self.pcie_generation] * self.pcie_width / _LANES
        return peaks

    def is_called(self, gpu_id: str) -> bool:
        """Return whether a uuid or a place on the bus in a report refers to this GPU."""
        wanted = gpu_id.lower()
        if wanted.removeprefix("gpu-") == self.uuid.lower().removeprefix("gpu-"):
            return bool(self.uuid)
        return bool(self.bus) and _place(wanted) == _place(self.bus)


class Cores(Record, frozen=True):
    """The cores that the processes of a job may use on a machine; None if unknown."""

    num_cores: int  # of the machine, hardware threads counted
    allowed: str  # those that the job may run on, such as `0-7,64-71`
    num_allowed: int  # how many these are
    quota: float | None = None  # cores' time of the control group; None without a limit
    num_periods: int | None = None  # periods of that limit: of the group, or of a recording
    num_throttled: int | None = None  # periods in which its processes were stopped
    throttled_ns: int | None = None  # for how long
    num_ranks: int = 0  # expected on the machine, by the launcher or the number of GPUs
    omp_num_threads: int | None = None  # `OMP_NUM_THREADS`
    numa_nodes: tuple[str, ...] = ()  # the cores of each node, as `allowed`

    @property
    def num_usable(self) -> float:
        """How many cores' time the job may use."""
        return min(self.num_allowed, self.quota or self.num_allowed)

    def lack(self, num_ranks: int) -> str | None:
        """Say which cores are missing for so many ranks; None if there are enough."""
        threads = self.omp_num_threads or 1
        if num_ranks * threads <= self.num_usable:
            return None
        cores = f"{self.num_usable:g} core{'s' if self.num_usable != 1 else ''}"
        per_rank = f" with {threads} threads each" if threads > 1 else ""
        return f"{num_ranks} rank{'s' if num_ranks != 1 else ''}{per_rank} on {cores}"


class PeerLink(NamedTuple):
    """The link between two GPUs."""

    link: str  # `nvlink` or `pcie`
    peak_gb_per_s: float | None  # in one direction; None if unknown


class MachineLinks(Record, frozen=True):
    """The links between a machine's GPUs, and the cores of the job."""

    host: str  # the machine's name
    gpus: tuple[Gpu, ...] = ()  # in order of index
    paths: tuple[tuple[str, ...], ...] = ()  # links of two GPUs, as `nvidia-smi topo -m` names them
    cores: Cores | None = None  # that the job may use; None in files of earlier versions

    def gpu(self, gpu_id: str | None, name: str | None) -> Gpu | None:
        """Return the GPU with this uuid or place on the bus, else name; None if several have it."""
        if gpu_id is not None:
            called = [gpu for gpu in self.gpus if gpu.is_called(gpu_id)]
            return called[0] if len(called) == 1 else None
        named = [gpu for gpu in self.gpus if gpu.name == name]
        same = {(gpu.pcie_generation, gpu.pcie_width, gpu.num_nvlinks) for gpu in named}
        return named[0] if len(same) == 1 else None

    def link(self, gpu: Gpu, peer: Gpu) -> PeerLink | None:
        """Return the link of two GPUs; None if unknown."""
        path = self._path(gpu, peer)
        bonded = NVLINK.match(path)
        if bonded:
            rate = gpu.nvlink_gb_per_s
            return PeerLink("nvlink", None if rate is None else int(bonded.group(1)) * rate)
        if path in _ON_PCIE:
            rates = [end.peaks.get("pcie") for end in (gpu, peer)]
            return PeerLink("pcie", None if None in rates else min(rate for rate in rates if rate))
        return None

    @property
    def is_all_nvlink(self) -> bool | None:
        """True if NVLink joins every two GPUs; None if unknown."""
        pairs = [(a, b) for a in self.gpus for b in self.gpus if a.index < b.index]
        links = [self.link(a, b) for a, b in pairs]
        if not links or None in links:
            return None
        return all(link is not None and link.link == "nvlink" for link in links)

    def _path(self, gpu: Gpu, peer: Gpu) -> str:
        if max(gpu.index, peer.index) >= len(self.paths):
            return ""
        row = self.paths[gpu.index]
        return row[peer.index] if peer.index < len(row) else ""


def machine_beside(report: Path, host: str | None) -> MachineLinks | None:
    """Return the machine of a report, if `doctor` left a file beside the report.

    If the report does not name its host, the file counts only if it is the only one.
    """
    machines = [*read_beside(report, f"{PREFIX}*{SUFFIX}", MachineLinks)]
    if host is not None:
        machines = [machine for machine in machines if machine.host == host]
    return machines[0] if len(machines) == 1 else None


def read_beside(
    report: Path, pattern: str, kind: type[Known], is_wanted: Callable[[str], bool] = bool
) -> Iterator[Known]:
    """Yield what stands beside a report in files of a kind, by a pattern of names.

    Files whose names are not wanted are not read: beside a report of many ranks there are many.
    Those that are damaged, or that somebody else wrote, are left out.
    """
    try:
        files = sorted(report.absolute().parent.glob(pattern))
    except OSError:
        return
    for file in filter(lambda file: is_wanted(file.name), files):
        with suppress(OSError, msgspec.MsgspecError):
            yield msgspec.json.decode(file.read_bytes(), type=kind)


def _place(bus: str) -> tuple[int, ...]:
    parts = re.split(r"[:.]", bus)
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return ()
    return numbers if len(numbers) == 4 else (0, *numbers)


class KnownLinks(Record, frozen=True):
    """The known links of one rank's GPU; none if `doctor` did not run."""

    peaks: Mapping[str, float]  # GB/s in one direction, by `nvlink` and `pcie`
    peers: Mapping[int, PeerLink]  # by the ordinals of the process's other devices
    is_all_nvlink: bool | None = None  # whether NVLink joins all GPUs of the machine


NO_LINKS = KnownLinks({}, {})


@optional("links", otherwise=lambda _: {})
def known_links(trace: Trace) -> dict[RankKey, KnownLinks]:
    """Return the known links of each rank's GPU, if `doctor` left a file."""
    machine = machine_beside(trace.path, trace.session.host)
    if machine is None:
        return {}
    gpus = {key: machine.gpu(trace.gpu_id(key), trace.gpu_name(key)) for key in trace.operations}
    return {
        key: KnownLinks(gpu.peaks, _peers(trace, machine, key, gpu), machine.is_all_nvlink)
        for key, gpu in gpus.items()
        if gpu is not None
    }


def _peers(trace: Trace, machine: MachineLinks, key: RankKey, gpu: Gpu) -> dict[int, PeerLink]:
    peers = {}
    for ordinal in range(len(machine.gpus)):
        gpu_id = trace.gpu_id(RankKey(key.process, ordinal))
        # The name alone could mean any of them.
        peer = None if gpu_id is None else machine.gpu(gpu_id, None)
        link = None if peer is None or peer == gpu else machine.link(gpu, peer)
        if link is not None:
            peers[ordinal] = link
    return peers
