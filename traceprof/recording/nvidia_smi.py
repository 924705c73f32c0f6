"""GPUs and the links between them, read from the output of `nvidia-smi`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from traceprof.run.machines import Gpu
from traceprof.trace.programs import captured

_QUERY = "index,name,uuid,pci.bus_id,driver_version,pcie.link.gen.max,pcie.link.width.current"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_PATH = re.compile(r"X|NV\d+|SYS|NODE|PHB|PXB|PIX|N/A")
_GPU = re.compile(r"GPU(\d+)\Z")
_LINK_OF = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s*Link \d+:\s*(<?[\w.]+)")
_CARD = re.compile(r"^\s*(NIC\d+):\s*(\S+)")
_NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
# NVLink 4 and 5 are given with their overhead: 17 bytes on the wire for 16.
_RAW_RATES = {26.562: 25.0, 53.125: 50.0}


def gpus() -> tuple[list[Gpu], str]:
    """Return the GPUs and the driver's version; none and an empty text without `nvidia-smi`."""
    text = _run("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    devices, driver = parse_gpus(text)
    if devices:
        links = parse_nvlinks(_run("nvidia-smi", "nvlink", "--status"))
        devices = [with_links(gpu, links.get(gpu.index, [])) for gpu in devices]
    return devices, driver


def topology() -> str:
    """Return the matrix of paths between GPUs and cards, as text."""
    return _run("nvidia-smi", "topo", "-m")


def parse_gpus(text: str) -> tuple[list[Gpu], str]:
    """Read one line of values a GPU; return the GPUs, and the version of the driver."""
    devices, driver = [], ""
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_QUERY.split(",")) or not values[0].isdecimal():
            continue
        index, name, uuid, bus, driver, generation, width = values
        gpu = Gpu(
            int(index),
            name,
            uuid,
            bus,
            pcie_generation=_number(generation),
            pcie_width=_number(width),
        )
        devices.append(gpu)
    return devices, driver


def parse_nvlinks(text: str) -> dict[int, list[float]]:
    """Return the rates of the links that are up, GB/s by GPU, of `nvidia-smi nvlink --status`."""
    links: dict[int, list[float]] = {}
    of_gpu: list[float] = []
    for line in text.splitlines():
        gpu, link = _LINK_OF.match(line.strip()), _LINK.match(line)
        if gpu:
            of_gpu = links.setdefault(int(gpu.group(1)), [])
        elif link and re.fullmatch(r"\d+(\.\d+)?", link.group(1)):
            of_gpu.append(float(link.group(1)))
    return links


def with_links(gpu: Gpu, rates: Sequence[float]) -> Gpu:
    """Return a GPU with the NVLinks that are up."""
    rate = payload_rate(min(rates)) if rates else None
    return replace(gpu, num_nvlinks=len(rates), nvlink_gb_per_s=rate)


def payload_rate(gb_per_s: float) -> float:
    """Return the share of a link's rate that carries data, in GB/s."""
    for raw, payload in _RAW_RATES.items():
        if abs(gb_per_s - raw) < 0.01 * raw:
            return payload
    return gb_per_s


class Topology(NamedTuple):
    """Paths between GPUs and network cards, as `nvidia-smi topo -m` gives them."""

    matrix: dict[str, dict[str, str]]  # the path from each to each other
    cards: dict[str, str]  # the names of cards that the matrix only numbers (`NIC0`: `mlx5_0`)
    numa_nodes: dict[int, int]  # of each GPU, by index; old versions lack it


def parse_topology(text: str) -> Topology:
    """Read `nvidia-smi topo -m`, of any version."""
    columns: list[str] = []
    topology = Topology({}, {}, {})
    for line in _ESCAPE.sub("", text).splitlines():
        words, card = line.split(), _CARD.match(line)
        if card:
            topology.cards[card.group(1)] = card.group(2)
        elif words and not columns and _GPU.match(words[0]):
            columns, has_nodes = words[: (*words, "CPU").index("CPU")], "NUMA" in words
        elif words and words[0] in columns:
            paths, affinity = words[1 : 1 + len(columns)], words[1 + len(columns) :]
            if len(paths) == len(columns) and all(map(_PATH.fullmatch, paths)):
                topology.matrix[words[0]] = dict(zip(columns, paths, strict=True))
            gpu = _GPU.match(words[0])
            if gpu and has_nodes and len(affinity) >= 2 and affinity[1].isdecimal():
                topology.numa_nodes[int(gpu.group(1))] = int(affinity[1])  # after its CPUs
    return topology


def gpu_paths(matrix: dict[str, dict[str, str]], num_gpus: int) -> tuple[tuple[str, ...], ...]:
    """Return the paths between GPUs by their indices; empty texts for unknown ones."""
    names = [f"GPU{index}" for index in range(num_gpus)]
    return tuple(tuple(matrix.get(a, {}).get(b, "") for b in names) for a in names)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _run(*command: str) -> str:
    try:
        done = captured(*command)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def nearest_gpus(topology: Topology) -> dict[str, tuple[int, ...]]:
    """Return the GPUs with the shortest path to each network card, by the card's name."""
    near = {}
    for card, row in topology.matrix.items():
        if _GPU.match(card):
            continue
        by_gpu = {
            int(match.group(1)): _NEARNESS.index(path)
            for other, path in row.items()
            if (match := _GPU.match(other)) and path in _NEARNESS
        }
        nearest = min(by_gpu.values(), default=0)
        near[topology.cards.get(card, card)] = tuple(
            sorted(gpu for gpu, rank in by_gpu.items() if rank == nearest)
        )
    return near
