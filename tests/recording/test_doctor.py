"""What `doctor` says, and that it is stored as it can be read again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import run
from traceprof.errors import TraceFileError
from traceprof.recording.doctor import (
    SCHEMA,
    Card,
    Diagnosis,
    Permissions,
    ProbedRanges,
    Recordable,
    Versions,
    diagnose,
    find_versions,
    findings,
    misfits,
    probe_ranges,
    recordable_data,
    render,
    store,
)
from traceprof.recording.machine import Machine, Space, look_for_space
from traceprof.recording.nsys import Nsys
from traceprof.recording.training import Training, this_python
from traceprof.run.machines import Cores, Gpu, machine_beside
from traceprof.trace.open import reports_in

GPUS = (
    Gpu(0, "NVIDIA RTX A6000", "GPU-a", "00000000:01:00.0", 4, 16, 4, 14.0625, 0),
    Gpu(1, "NVIDIA RTX A6000", "GPU-b", "00000000:02:00.0", None, None, 0),
)
DIAGNOSIS = Diagnosis(
    SCHEMA,
    "node7",
    Versions("2023.4.4", "550.54", "12.4", "2.5.1", nvtx="0.2.17", nsys_cuda="12.4"),
    ("a and b do not fit",),
    Permissions(4, may_sample=False, counters_for_admins_only=True, ptrace_scope=1),
    GPUS,
    (("X", "NV4"), ("NV4", "X")),
    (Card("mlx5_0", (1,)), Card("mlx5_1")),
    Cores(64, "0-5", 6, 8.0, 120, 30, 2_500_000_000, 2, 4, ("0-31", "32-63")),
    (Recordable("GPU work", True), Recordable("counters", False, "permission")),
    Space("out", 1 << 40, True, "temporary", None, 1 << 34),
    ProbedRanges(of_instrument=True, of_nvtx=False),
)
ALL = Machine(has_gpu=True, may_count=True, may_sample=True, network_cards=("mlx5_0",))


def test_text() -> None:
    assert render(DIAGNOSIS) == (
        "node7: what can be recorded\n"
        "  yes  GPU work\n"
        "  no   counters  needs permission\n"
        "\n"
        "Versions\n"
        "  Nsight Systems (nsys)            2023.4.4\n"
        "  NVIDIA's driver                  550.54\n"
        "  CUDA that PyTorch was built for  12.4\n"
        "  PyTorch (torch)                  2.5.1\n"
        "  NCCL that came with PyTorch      not found\n"
        "  nvtx, which writes ranges        0.2.17\n"
        "  newest CUDA that nsys knows      12.4\n"
        "\n"
        "Permissions\n"
        "  own processes may be sampled          no\n"
        "  kernel.perf_event_paranoid            4\n"
        "  GPU counters for administrators only  yes\n"
        "  kernel.yama.ptrace_scope              1\n"
        "\n"
        "Space and ranges\n"
        "  free in out                             1100 GB\n"
        "  free in temporary, where nsys collects  unknown\n"
        "  shared memory                           17.2 GB\n"
        "  ranges of instrument, tried             recorded\n"
        "  ranges of nvtx.annotate, tried          not recorded\n"
        "\n"
        "Cores\n"
        "  of this machine             64\n"
        "  that a job may run on       6 (0-5)\n"
        "  limit of the control group  8 cores\n"
        "  stopped at that limit       in 30 of 120 periods, for 2.50 s\n"
        "  ranks expected              2\n"
        "  OMP_NUM_THREADS             4\n"
        "  NUMA node 0                 0-31: GPUs 0\n"
        "  NUMA node 1                 32-63\n"
        "\n"
        "GPUs\n"
        "  GPU  name              PCIe               NVLink                   NUMA node"
        "  paths to GPU 0, 1, …\n"
        "  0    NVIDIA RTX A6000  generation 4, x16  4 links of 14.0625 GB/s  0        "
        "  X NV4\n"
        "  1    NVIDIA RTX A6000  unknown            none                     unknown  "
        "  NV4 X\n"
        "\n"
        "Network cards\n"
        "  card    nearest GPUs\n"
        "  mlx5_0  1\n"
        "  mlx5_1  unknown\n"
        "\n"
        "→ a and b do not fit\n"
        "→ in a test, ranges that a program opens by nvtx.annotate were not recorded, but those of"
        " instrument were: pip install nvtx==0.2.11\n"
        "→ threads cannot be sampled: sudo sysctl -w kernel.perf_event_paranoid=2\n"
        "→ counters of GPUs are for administrators: echo options nvidia"
        " NVreg_RestrictProfilingToAdminUsers=0 | sudo tee /etc/modprobe.d/nvidia-profiling.conf,"
        " then reboot\n"
        "→ cores are few: 2 ranks with 4 threads each on 6 cores. Ranks take each other's core, and"
        " GPUs wait: give the job more cores, or each rank fewer threads (OMP_NUM_THREADS)\n"
        "→ the control group was stopped for having used up its CPU quota: raise cpu.max, or a"
        " pod's limits.cpu\n"
        "→ that no record is lost: record few steps; nsys profile --cuda-flush-interval=10000 for"
        " over 30 s; CUDA graphs whole (--cuda-graph-trace=graph: one record each, =node: one for"
        " each kernel inside)\n"
        "→ record a training: traceprof record --steps 10:20 -- torchrun … train.py"
        " (with Nsight Systems)\n"
    )


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (Versions(torch="2.13.0"), "(with torch.profiler, as nsys is not on PATH)"),
        (
            Versions("2023.4.4", "580.65", "13.0", "2.11.0", nsys_cuda="12.4"),
            "record a training: traceprof record --with torch --steps 10:20 -- torchrun … train.py",
        ),
        (Versions(), "nothing can be recorded: nsys is not on PATH, and this Python has no torch"),
    ],
)
def test_what_is_not_there_is_said(versions: Versions, said: str) -> None:
    bare = replace(DIAGNOSIS, versions=versions, gpus=(), paths=(), network_cards=(), misfits=())
    text = render(bare)
    assert text.endswith(f"{said}\n")
    assert "GPUs\n  none found\n" in text
    assert "Network cards\n  none found (InfiniBand or RoCE)\n" in text


def test_what_is_stored_is_read_and_is_no_report(tmp_path: Path) -> None:
    file = store(tmp_path, DIAGNOSIS)
    assert [path.name for path in tmp_path.iterdir()] == ["doctor-node7.json"]
    document = json.loads(file.read_bytes())
    assert document["schema"] == "traceprof.doctor/1"
    assert document["versions"]["torch"] == "2.5.1"
    machine = machine_beside(tmp_path / "a.sqlite", "node7")
    assert machine is not None
    assert (machine.host, machine.gpus, machine.paths) == ("node7", GPUS, DIAGNOSIS.paths)
    assert machine.cores == DIAGNOSIS.cores
    with pytest.raises(TraceFileError, match="no report"):
        reports_in(tmp_path)


def test_what_everything_gives() -> None:
    versions = Versions("2026.1.1", "580.65.06", "13.0", "2.9.0", "2.27", "0.2.17")
    assert all(item.can for item in recordable_data(versions, ALL, has_gpus=True))
    assert misfits(versions) == []


def test_an_instrument_that_is_not_ours_is_lacking_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "lacks_instrument", "it was overwritten")
    assert diagnose().lacks == ("it was overwritten: install traceprof again",)
    assert diagnose(training=this_python(), lacks=["other"]).lacks == ("other",)


@pytest.mark.parametrize(
    ("versions", "machine", "has_gpus", "what", "missing"),
    [
        (Versions(nsys="2024.5"), replace(ALL, has_gpu=False), False, "GPU work", "driver"),
        (Versions(nsys="2024.5"), replace(ALL, may_sample=False), True, "slept", "paranoid"),
        (Versions(nsys="2024.5"), replace(ALL, may_count=False), True, "GPUs' links", "NVreg"),
        (Versions(nsys="2024.5"), replace(ALL, network_cards=()), True, "network", "card"),
        (Versions(nsys="2023.4"), ALL, True, "NCCL", "2024.5"),
        (Versions(nsys="2026.1", driver="535.1"), ALL, True, "command buffer", "12.4"),
        (Versions(torch="2.5"), ALL, True, "GPUs' links", "`nsys` on PATH"),
        (Versions(nsys="2026.1"), ALL, True, "torch.profiler", "torch in this Python"),
        (Versions(), ALL, True, "ranges", "nsys on PATH, or torch in this Python"),
    ],
)
def test_what_is_missing(
    versions: Versions, machine: Machine, has_gpus: bool, what: str, missing: str
) -> None:
    items = [*recordable_data(versions, machine, has_gpus=has_gpus)]
    assert items[0].what.startswith("ranges")
    assert items[0].can == bool(versions.nsys or versions.torch)
    (item,) = [item for item in items if what in item.what]
    assert not item.can
    assert missing in item.missing


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (Versions(cuda="12.4", driver="470.57.02"), "needs driver 525.60"),
        (Versions(cuda="13.0", driver="550.54"), "needs driver 580.65"),
        (Versions(torch="2.3.1+cu121"), "torch 2.4 or later"),
        (Versions(driver="580.65", cuda="13.0", nsys_cuda="12.4"), "knows CUDA up to 12.4, and"),
        (Versions(driver="580.65", cuda="12.10", nsys_cuda="12.9"), "built for CUDA 12.10: inst"),
        (Versions(cuda="12.4", driver="550.54", torch="2.13.0+cpu"), None),
        (Versions(cuda="12.4", driver="550.54", nsys_cuda="12.10"), None),
        (Versions(cuda="13.0", nsys_cuda="12.4"), None),  # without a driver there is no GPU
    ],
)
def test_what_does_not_fit(versions: Versions, said: str | None) -> None:
    found = misfits(versions)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize("major", [13, 12, 11])
def test_nccl_and_cuda_are_those_of_the_training(major: int, tmp_path: Path) -> None:
    torch = {"torch": str(tmp_path / "__init__.py")}
    training = Training("python", (3, 12, 1), torch, {f"nvidia-nccl-cu{major}": f"2.{major}"})
    versions = find_versions("", "", "", training)
    assert (versions.nccl, versions.cuda) == (f"2.{major}", "")
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    assert find_versions("", "", "", training).cuda == "12.8"


GOOD = Space("out", 1 << 40, True, "temporary", 1 << 40, 1 << 34)
BOTH = ProbedRanges(of_instrument=True, of_nvtx=True)


@pytest.mark.parametrize(
    ("space", "ranges", "scope", "said"),
    [
        (GOOD, BOTH, 1, None),
        (replace(GOOD, folder_bytes=5_000_000), BOTH, 1, "5 MB are free in out"),
        (replace(GOOD, temporary_bytes=5_000_000), BOTH, 1, "export TMPDIR="),
        (replace(GOOD, may_write=False), BOTH, 1, "nothing can be written to out"),
        (replace(GOOD, shared_memory_bytes=64_000_000), BOTH, 1, "docker run --shm-size="),
        (GOOD, BOTH, 2, "sysctl -w kernel.yama.ptrace_scope=1"),
        (GOOD, replace(BOTH, of_nvtx=False), 1, "pip install nvtx==0.2.11"),
        (GOOD, ProbedRanges(False, False), 1, "pip install --upgrade nvtx"),
        (GOOD, ProbedRanges(False, False, "it crashed"), 1, "when tried: it crashed"),
    ],
)
def test_what_is_in_the_way_is_said_with_a_command(
    space: Space, ranges: ProbedRanges, scope: int, said: str | None
) -> None:
    permissions = Permissions(2, may_sample=True, counters_for_admins_only=None, ptrace_scope=scope)
    diagnosis = replace(DIAGNOSIS, space=space, ranges=ranges, permissions=permissions)
    sentences = [*findings(diagnosis)]
    assert len(sentences) == (said is not None)
    assert said is None or said in sentences[0]
    assert all(f"→ {sentence}\n" in render(diagnosis) for sentence in sentences)


def test_a_folder_that_is_not_there_yet_has_the_space_of_its_disk(tmp_path: Path) -> None:
    space = look_for_space(tmp_path / "a" / "b")
    assert space.may_write
    assert space.folder_bytes == pytest.approx(look_for_space(tmp_path).folder_bytes, rel=0.1)


@pytest.mark.long
def test_ranges_of_an_old_nvtx_are_recorded(
    nsys: str, nvtx_0_2_11: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(nvtx_0_2_11))
    assert probe_ranges(Nsys(nsys)) == ProbedRanges(of_instrument=True, of_nvtx=True)


def test_this_machine_and_its_nsys(nsys: str, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = diagnose()
    assert diagnosis.versions.torch.startswith("2.")
    assert render(diagnosis).startswith(f"{diagnosis.host}: what can be recorded")
    assert run("doctor", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["host"] == diagnosis.host
    assert (said["ranges"]["failure"], said["ranges"]["of_instrument"]) == ("", True)
    # Nsight Systems before 2024 does not report that it records a domain, which new nvtx asks for.
    version = Nsys(nsys).version
    if not (2024,) <= version < (2025,):
        assert said["ranges"]["of_nvtx"] == (version >= (2025,))
