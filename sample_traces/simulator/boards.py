"""GPUs of simulated machines, as Nsight's `TARGET_INFO_GPU` describes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU.

    Attributes:
        name: as Nsight gives it.
        chip: of the GPU.
        num_multiprocessors: SMs.
        memory_bytes: of device memory.
        memory_bytes_per_s: its bandwidth.
        clock_hz: of the SMs.
        compute_capability: major and minor.
    """

    name: str
    chip: str
    num_multiprocessors: int
    memory_bytes: int
    memory_bytes_per_s: int
    clock_hz: int
    compute_capability: tuple[int, int]


A100 = Board(
    "NVIDIA A100-SXM4-80GB", "GA100", 108, 80 << 30, 2_039_000_000_000, 1_410_000_000, (8, 0)
)
A100_PCIE = Board(
    "NVIDIA A100 80GB PCIe", "GA100", 108, 80 << 30, 1_935_000_000_000, 1_410_000_000, (8, 0)
)
RTX_3090 = Board(
    "NVIDIA GeForce RTX 3090", "GA102", 82, 24 << 30, 936_000_000_000, 1_695_000_000, (8, 6)
)
