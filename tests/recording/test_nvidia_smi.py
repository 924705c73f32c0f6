"""The text of `nvidia-smi` in the forms that its versions print, with made-up machines."""

import pytest

from traceprof.recording.nvidia_smi import (
    gpu_paths,
    nearest_gpus,
    parse_gpus,
    parse_numa_nodes,
    parse_nvlinks,
    parse_topology,
    payload_rate,
    with_links,
)
from traceprof.run.machines import Gpu

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_2
  NIC1: mlx5_bond_0
"""
# Since 2023: tabs, a space around X, two empty columns before the last, underlined headings.
NEW = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPXB\tSYS\t0-15,32-47\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tPXB\tSYS\t0-15,32-47\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tSYS\tPIX\t16-31,48-63\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPIX\tSYS\t X \t\t\t\t\n" + LEGEND
)
# Before: blanks, cards by name, no NUMA nodes.
OLD = """
        GPU0    GPU1    mlx4_0  CPU Affinity
GPU0     X      PHB     NODE    0-9,20-29
GPU1    PHB      X      PIX     0-9,20-29
mlx4_0  NODE    PIX      X

Legend:

  X   = Self
"""
NO_CARDS = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n"
NOTHING_KNOWN = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t\tN/A\nGPU1\tPHB\t X \n"
LINKS = """GPU 0: NVIDIA RTX A6000 (UUID: GPU-00000000-0000-0000-0000-000000000000)
\t Link 0: 14.062 GB/s
\t Link 1: 14.062 GB/s
\t Link 2: <inactive>
\t Link 3: <inactive>
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-0000-0000-0000-000000000000)
\t Link 0: 26.562 GB/s
GPU 2: Tesla T4 (UUID: GPU-2)
"""


def test_matrix_of_a_new_version() -> None:
    matrix, cards = parse_topology(NEW)
    assert cards == {"NIC0": "mlx5_2", "NIC1": "mlx5_bond_0"}
    assert gpu_paths(matrix, 3) == (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))
    assert nearest_gpus(matrix, cards) == {"mlx5_2": (0, 1), "mlx5_bond_0": (2,)}
    assert parse_numa_nodes(NEW) == {0: 0, 1: 0, 2: 1}


def test_matrix_of_an_old_version() -> None:
    matrix, cards = parse_topology(OLD)
    assert cards == {}
    assert gpu_paths(matrix, 2) == (("X", "PHB"), ("PHB", "X"))
    assert nearest_gpus(matrix, cards) == {"mlx4_0": (1,)}
    assert parse_numa_nodes(OLD) == {}


def test_one_gpu_and_unknown_nodes() -> None:
    assert gpu_paths(parse_topology(NO_CARDS)[0], 1) == (("X",),)
    assert parse_numa_nodes(NO_CARDS) == {0: 0}
    assert gpu_paths(parse_topology(NOTHING_KNOWN)[0], 2) == (("X", "PHB"), ("PHB", "X"))
    assert parse_numa_nodes(NOTHING_KNOWN) == {}


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed\n", "GPU0\n", "\tGPU0\nGPU0\t?\n"])
def test_what_is_no_matrix(text: str) -> None:
    assert gpu_paths(parse_topology(text)[0], 2) == (("", ""), ("", ""))
    assert parse_numa_nodes(text) == {}


def test_links() -> None:
    links = parse_nvlinks(LINKS)
    assert links == {0: [14.062, 14.062], 1: [26.562], 2: []}
    assert parse_nvlinks("") == {}
    bridged = with_links(Gpu(0, "A"), links[0])
    assert (bridged.num_nvlinks, bridged.nvlink_gb_per_s) == (2, 14.062)
    assert with_links(Gpu(0, "A"), []).peaks == {}


@pytest.mark.parametrize(
    ("told", "carried"),
    [(25.0, 25.0), (26.562, 25.0), (26.5625, 25.0), (53.125, 50.0), (50.0, 50.0)],
)
def test_rates_without_overhead(told: float, carried: float) -> None:
    assert payload_rate(told) == carried


def test_gpus() -> None:
    text = (
        "0, NVIDIA A100-SXM4-80GB, GPU-aa, 00000000:07:00.0, 535.104.05, 4, 16\n"
        "1, NVIDIA A100-SXM4-80GB, GPU-bb, 00000000:0B:00.0, 535.104.05, 4, 8\n"
        "2, Tesla T4, GPU-cc, 00000000:0C:00.0, 535.104.05, [N/A], [N/A]\n"
        "a line of something else\n"
    )
    gpus, driver = parse_gpus(text)
    assert driver == "535.104.05"
    assert [gpu.peaks for gpu in gpus] == [{"pcie": 31.5}, {"pcie": 15.75}, {}]
    assert [gpu.bus for gpu in gpus][:2] == ["00000000:07:00.0", "00000000:0B:00.0"]
    assert parse_gpus("") == ([], "")
