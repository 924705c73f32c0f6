"""GPUs and their links, queried from the driver by `nvidia-ml-py`, if that is installed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from traceprof.recording.nvidia_smi import payload_rate
from traceprof.run.machines import Gpu

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


def gpus() -> tuple[list[Gpu], str, tuple[tuple[str, ...], ...]] | None:
    """Return the GPUs, the driver's version, and the paths between GPUs; None if unknown."""
    try:
        import pynvml  # noqa: PLC0415  (of an extra)
    except ImportError:
        return None
    return ask(pynvml)


def ask(nvml: Any) -> tuple[list[Gpu], str, tuple[tuple[str, ...], ...]] | None:  # noqa: ANN401
    """Query this module, in tests a substitute for `pynvml`, as `gpus()` does."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or no GPU that it may see
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        devices = [_gpu(nvml, index, handle) for index, handle in enumerate(handles)]
        paths = tuple(
            tuple(_path(nvml, (a, devices[i]), (b, devices[j])) for j, b in enumerate(handles))
            for i, a in enumerate(handles)
        )
        return devices, _text(nvml.nvmlSystemGetDriverVersion()), paths
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:  # noqa: ANN401
    up = _links_up(nvml, handle)
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetName(handle)),
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        pcie_generation=_query(nvml, lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        pcie_width=_query(nvml, lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        num_nvlinks=len(up),
        nvlink_gb_per_s=_query(nvml, lambda: _link_rate(nvml, handle)) if up else None,
        numa_node=_query(nvml, lambda: int(nvml.nvmlDeviceGetNumaNodeId(handle))),
    )


def _links_up(nvml: Any, handle: Any) -> list[int]:  # noqa: ANN401
    links = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _query(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is not None and state == nvml.NVML_FEATURE_ENABLED:
            links.append(link)
    return links


def _link_rate(nvml: Any, handle: Any) -> float | None:  # noqa: ANN401
    """Return the GB/s of one link in one direction; None if the driver does not know."""
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    if field.nvmlReturn != 0 or not field.value.uiVal:
        return None
    return payload_rate(field.value.uiVal / 1e3)


def _path(nvml: Any, one: tuple[Any, Gpu], other: tuple[Any, Gpu]) -> str:  # noqa: ANN401
    """Return the path between two GPUs, in the words of `nvidia-smi topo -m`."""
    (handle, gpu), (peer, peer_gpu) = one, other
    if gpu.index == peer_gpu.index:
        return "X"
    bonded = _bonded(nvml, handle, peer_gpu)
    if bonded:
        return f"NV{bonded}"
    level = _query(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer))
    words = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    return "" if level is None else words.get(level, "")


def _bonded(nvml: Any, handle: Any, peer: Gpu) -> int:  # noqa: ANN401
    """Return the number of links to a GPU, or to a switch, which leads to all."""
    number = 0
    for link in _links_up(nvml, handle):
        kind = _query(nvml, lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # noqa: B023
        if kind is not None and kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            number += 1
            continue
        remote = _query(nvml, lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))  # noqa: B023
        number += remote is not None and peer.is_called(_text(remote.busId))
    return number


def _query(nvml: Any, ask_driver: Callable[[], Value]) -> Value | None:  # noqa: ANN401
    """Return the driver's answer; None for what it does not know of this GPU."""
    try:
        return ask_driver()
    except (nvml.NVMLError, AttributeError):  # an older nvidia-ml-py lacks some queries
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
