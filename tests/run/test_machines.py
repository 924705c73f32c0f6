"""Links of a machine's GPUs, as `doctor` left them beside a report."""

import json
from pathlib import Path

import pytest

from traceprof.run.machines import Gpu, MachineLinks, machine_beside

PAIRED = MachineLinks(
    "node",
    tuple(
        Gpu(index, "RTX", f"GPU-{index}", f"00000000:{index:02X}:00.0", 4, 8, 4, 14.0625)
        for index in range(4)
    ),
    (
        ("X", "NV4", "SYS", "SYS"),
        ("NV4", "X", "PHB", "SYS"),
        ("SYS", "PHB", "X", "NV2"),
        ("SYS", "SYS", "NV2", ""),
    ),
)


def test_rates() -> None:
    gpus = PAIRED.gpus
    assert gpus[0].peaks == {"nvlink": 56.25, "pcie": 15.75}
    assert PAIRED.link(gpus[0], gpus[1]) == ("nvlink", 56.25)
    assert PAIRED.link(gpus[2], gpus[3]) == ("nvlink", 28.125)
    assert PAIRED.link(gpus[1], gpus[2]) == ("pcie", 15.75)
    assert PAIRED.link(gpus[3], gpus[3]) is None
    assert PAIRED.is_all_nvlink is False
    assert MachineLinks("node", gpus).is_all_nvlink is None
    assert MachineLinks("node", gpus[:2], PAIRED.paths).is_all_nvlink is True
    assert MachineLinks("node").is_all_nvlink is None


@pytest.mark.parametrize(
    ("gpu_id", "index"),
    [
        ("GPU-2", 2), ("gpu-2", 2), ("0000:03:00.0", 3), ("00000000:03:00.0", 3), ("03:00.0", 3),
        ("GPU-9", None), ("", None),
    ],
)  # fmt: skip
def test_gpus_are_found_by_uuid_or_place(gpu_id: str, index: int | None) -> None:
    found = PAIRED.gpu(gpu_id, "RTX")
    assert (None if found is None else found.index) == index


def test_gpus_of_a_name_are_found_where_they_are_alike() -> None:
    assert PAIRED.gpu(None, "RTX") == PAIRED.gpus[0]
    assert PAIRED.gpu(None, "T4") is None
    other = Gpu(4, "RTX", pcie_generation=3, pcie_width=16)
    assert MachineLinks("node", (*PAIRED.gpus, other)).gpu(None, "RTX") is None


def test_files_beside_a_report(tmp_path: Path) -> None:
    report = tmp_path / "a.sqlite"
    assert machine_beside(report, "a") is None
    for host in ("a", "b"):
        gpu = {"index": 0, "name": "T4", "new in a later version": 1}
        document: dict[str, object] = {
            "host": host,
            "gpus": [gpu],
            "paths": [["X"]],
            "versions": {},
        }
        (tmp_path / f"doctor-{host}.json").write_text(json.dumps(document))
    found = machine_beside(report, "b")
    assert found is not None
    assert (found.host, found.gpus[0].name, found.paths) == ("b", "T4", (("X",),))
    assert machine_beside(report, "c") is None
    assert machine_beside(report, None) is None  # it could be either
    (tmp_path / "doctor-a.json").write_text("{")
    assert machine_beside(report, "a") is None
    assert machine_beside(report, None) == found
