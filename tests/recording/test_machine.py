"""The facts about a machine: of the system and of `nvidia-smi`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from traceprof.recording.machine import (
    counters_restricted,
    look_at_cores,
    look_at_machine,
    network_cards,
    paranoid_level,
    permits_sampling,
    ptrace_scope,
    throttled_since,
)
from traceprof.recording.nvidia_smi import (
    gpu_paths,
    nearest_gpus,
    parse_gpus,
    parse_nvlinks,
    parse_topology,
    payload_rate,
    with_links,
)
from traceprof.run.machines import Cores, Gpu


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PARAMETERS = "proc/driver/nvidia/params"
PARANOID = "proc/sys/kernel/perf_event_paranoid"


@pytest.mark.parametrize(
    ("read", "file", "text", "expected"),
    [
        (counters_restricted, PARAMETERS, "DeviceFileMode: 438\nRmProfilingAdminOnly: 0", False),
        (counters_restricted, PARAMETERS, "RmProfilingAdminOnly: 1\nDeviceFileMode: 438", True),
        (counters_restricted, PARAMETERS, "DeviceFileMode: 438", None),
        (paranoid_level, PARANOID, "-1\n", -1),
        (paranoid_level, PARANOID, "2\n", 2),
        (paranoid_level, PARANOID, "", None),
        (paranoid_level, PARANOID, "x", None),
        (ptrace_scope, "proc/sys/kernel/yama/ptrace_scope", "1\n", 1),
    ],
)
def test_what_files_of_the_system_say(
    read: Callable[[Path], object], file: str, text: str, expected: object, tmp_path: Path
) -> None:
    assert read(system(tmp_path, {file: text})) is expected
    assert read(tmp_path / "bare") is None


def test_up_to_level_2_own_processes_may_be_sampled() -> None:
    levels = (None, 2, 3)
    assert [permits_sampling(level, is_root=False) for level in levels] == [None, True, False]
    assert [permits_sampling(level, is_root=True) for level in levels] == [True] * 3


def test_network_cards_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    machine = look_at_machine(may_sample=True, root=tmp_path)
    assert machine.network_cards == ("mlx5_0", "mlx5_1")
    assert network_cards(tmp_path / "bare") == ()
    assert machine.has_gpu


V2 = {"proc/self/cgroup": "0::/jobs/step1\n"}
STAT = "usage_usec 5\nnr_periods 40\nnr_throttled 7\nthrottled_usec 1500\n"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({**V2, "sys/fs/cgroup/jobs/step1/cpu.max": "max 100000\n"}, None),
        ({**V2, "sys/fs/cgroup/jobs/step1/cpu.max": "250000 100000\n"}, 2.5),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/step1/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "400000 100000\n",  # of a group above
            },
            4.0,
        ),
        ({**V2, "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),  # a container's own root
        (
            {
                "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            6.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({**V2, "sys/fs/cgroup/jobs/step1/cpu.max": "damaged"}, None),
    ],
)
def test_quota(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert look_at_cores(0, system(tmp_path, files), {}).quota == quota


def test_throttling_of_a_recording(tmp_path: Path) -> None:
    root = system(tmp_path, {**V2, "sys/fs/cgroup/jobs/step1/cpu.stat": STAT})
    before = look_at_cores(0, root, {})
    assert (before.num_periods, before.num_throttled, before.throttled_ns) == (40, 7, 1_500_000)
    later = STAT.replace("40", "90").replace(" 7", " 9").replace("1500", "4000")
    after = look_at_cores(0, system(root, {"sys/fs/cgroup/jobs/step1/cpu.stat": later}), {})
    found = throttled_since(before, after)
    assert (found.num_periods, found.num_throttled, found.throttled_ns) == (50, 2, 2_500_000)
    assert throttled_since(replace(before, num_throttled=None), after).num_throttled is None


def test_counters_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.stat": "nr_periods 3\nnr_throttled 1\nthrottled_time 77\n",
    }
    found = look_at_cores(0, system(tmp_path, files), {})
    assert (found.num_periods, found.num_throttled, found.throttled_ns) == (3, 1, 77)


@pytest.mark.parametrize(
    ("environment", "num_ranks", "threads"),
    [
        ({}, 4, None),
        ({"LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "12"}, 8, 12),
        ({"SLURM_NTASKS_PER_NODE": "2", "OMP_NUM_THREADS": "4,2"}, 2, 4),
        ({"SLURM_NTASKS_PER_NODE": "2(x3)", "OMP_NUM_THREADS": "all"}, 4, None),
    ],
)
def test_ranks_and_threads(
    environment: dict[str, str], num_ranks: int, threads: int | None, tmp_path: Path
) -> None:
    found = look_at_cores(4, tmp_path, environment)
    assert (found.num_ranks, found.omp_num_threads) == (num_ranks, threads)


def test_nodes(tmp_path: Path) -> None:
    nodes = {
        f"sys/devices/system/node/node{n}/cpulist": f"{n * 8}-{n * 8 + 7}\n" for n in range(11)
    }
    root = system(tmp_path, {**nodes, "sys/devices/system/node/possible": "0-10\n"})
    assert look_at_cores(0, root, {}).numa_nodes[9:] == ("72-79", "80-87")


def test_allowed_cores_are_those_of_this_process() -> None:
    parts = [part.partition("-") for part in look_at_cores(0).allowed.split(",")]
    ranges = [range(int(first), int(last or first) + 1) for first, _, last in parts]
    assert {number for numbers in ranges for number in numbers} == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("cores", "num_ranks", "lack"),
    [
        (Cores(64, "0-7", 8), 8, None),
        (Cores(64, "0-5", 6), 8, "8 ranks on 6 cores"),
        (Cores(64, "0-7", 8, omp_num_threads=4), 4, "4 ranks with 4 threads each on 8 cores"),
        (Cores(64, "0-63", 64, quota=0.5), 1, "1 rank on 0.5 cores"),
        (Cores(1, "0", 1, omp_num_threads=2), 1, "1 rank with 2 threads each on 1 core"),
        (Cores(64, "0-63", 64, quota=100.0), 64, None),
    ],
)
def test_what_is_lacking(cores: Cores, num_ranks: int, lack: str | None) -> None:
    assert cores.lack(num_ranks) == lack


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


@pytest.mark.parametrize(
    ("text", "paths", "nearest", "nodes"),
    [
        (
            NEW,
            (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X")),
            {"mlx5_2": (0, 1), "mlx5_bond_0": (2,)},
            {0: 0, 1: 0, 2: 1},
        ),
        (OLD, (("X", "PHB"), ("PHB", "X")), {"mlx4_0": (1,)}, {}),
        (NO_CARDS, (("X",),), {}, {0: 0}),
        (NOTHING_KNOWN, (("X", "PHB"), ("PHB", "X")), {}, {}),
        *(
            (text, (("", ""), ("", "")), {}, {})
            for text in ("", "NVIDIA-SMI has failed\n", "GPU0\n")
        ),
        ("\tGPU0\nGPU0\t?\n", (("",),), {}, {}),
    ],
)
def test_matrices(
    text: str,
    paths: tuple[tuple[str, ...], ...],
    nearest: dict[str, tuple[int, ...]],
    nodes: dict[int, int],
) -> None:
    topology = parse_topology(text)
    assert gpu_paths(topology.matrix, len(paths)) == paths
    assert (nearest_gpus(topology), topology.numa_nodes) == (nearest, nodes)


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
        "a line of something else\n"
        "2, Tesla T4, GPU-cc, 00000000:0C:00.0, 535.104.05, [N/A], [N/A]\n"
    )
    gpus, driver = parse_gpus(text)
    assert driver == "535.104.05"
    assert [gpu.peaks for gpu in gpus] == [{"pcie": 31.5}, {"pcie": 15.75}, {}]
    assert [gpu.bus for gpu in gpus][:2] == ["00000000:07:00.0", "00000000:0B:00.0"]
    assert parse_gpus("") == ([], "")
