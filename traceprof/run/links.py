"""The links between a machine's GPUs, as `doctor` found them rather than assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceprof.guard import optional
from traceprof.run.machines import MachineLinks, machine_beside
from traceprof.structs import Record
from traceprof.trace.model.operations import RankKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.run.machines import Gpu
    from traceprof.trace.model.trace import Trace


class PeerLink(NamedTuple):
    """The link from a GPU to another one.

    Attributes:
        link: `nvlink` or `pcie`.
        peak_gb_per_s: in one direction; None if unknown.
    """

    link: str
    peak_gb_per_s: float | None


class KnownLinks(Record, frozen=True):
    """The known links of one rank's GPU; none if `doctor` did not run.

    Attributes:
        peaks: GB/s in one direction, by `nvlink` and `pcie`.
        peers: by the ordinals of the process's other devices.
        is_all_nvlink: whether NVLink joins all GPUs of the machine; None if unknown.
    """

    peaks: Mapping[str, float]
    peers: Mapping[int, PeerLink]
    is_all_nvlink: bool | None = None


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
    """Return the links to the devices that the process may copy to, by their ordinals."""
    peers = {}
    for ordinal in range(len(machine.gpus)):
        gpu_id = trace.gpu_id(RankKey(key.process, ordinal))
        # The name alone could mean any of them.
        peer = None if gpu_id is None else machine.gpu(gpu_id, None)
        link = None if peer is None or peer == gpu else machine.link(gpu, peer)
        if link is not None:
            peers[ordinal] = PeerLink(*link)
    return peers
