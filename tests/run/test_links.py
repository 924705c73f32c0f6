"""Peaks and paths come from `doctor`'s file beside a report, where there is one."""

import json
from pathlib import Path

from tests.support.builders import TraceBuilder
from tests.support.opened import ranks_of
from traceprof.analyses.links import link_usage
from traceprof.run.links import NO_LINKS
from traceprof.trace.nsight import schema

GPU = "NVIDIA RTX A6000"


def written(folder: Path) -> Path:
    """Return a report of a process that copies to the host and from GPU 0 to GPU 1."""
    builder = TraceBuilder().machine(host="node7")
    builder.kernel(0, 100).memcpy(100, 200, "DtoH", bytes=1000)
    builder.memcpy(200, 300, "PtoP", bytes=1000, source=0, destination=1)
    for device in range(2):
        builder.raw(
            schema.GPU_INFO, vmId=schema.VM_ID, id=device, name=GPU, uuid=f"GPU-{device}",
            busLocation=f"0000:0{device}:00.0",
        )  # fmt: skip
        builder.raw(schema.CUDA_DEVICES, gpuId=device, cudaId=device, pid=1000)
    return builder.write(folder / "a.sqlite")


def diagnose(folder: Path, *, path: str, width: int = 8) -> None:
    gpus = [
        {
            "index": index,
            "name": GPU,
            "uuid": f"GPU-{index}",
            "pcie_generation": 4,
            "pcie_width": width,
            "num_nvlinks": 4,
            "nvlink_gb_per_s": 14.0625,
        }
        for index in range(2)
    ]
    document = {"host": "node7", "gpus": gpus, "paths": [["X", path], [path, "X"]]}
    (folder / "doctor-node7.json").write_text(json.dumps(document))


def test_without_a_file_peaks_are_those_of_the_name(tmp_path: Path) -> None:
    with ranks_of(written(tmp_path)) as (rank,):
        assert rank.links == NO_LINKS
        use, peer = link_usage.run(rank, rank.window).uses
    assert (peer.link, peer.peak_gb_per_s) == (None, None)
    assert (use.link, use.peak_gb_per_s, use.is_peak_assumed) == ("pcie", 31.5, True)


def test_with_a_file_they_are_those_of_the_machine(tmp_path: Path) -> None:
    report = written(tmp_path)
    diagnose(tmp_path, path="NV4")
    with ranks_of(report) as (rank,):
        assert rank.links.peaks == {"nvlink": 56.25, "pcie": 15.75}
        assert rank.links.peers == {1: ("nvlink", 56.25)}
        assert rank.links.is_all_nvlink is True
        use, peer = link_usage.run(rank, rank.window).uses
    assert (peer.peer, peer.link, peer.peak_gb_per_s) == (1, "nvlink", 56.25)
    assert not peer.is_peak_assumed
    assert (use.link, use.peak_gb_per_s, use.is_peak_assumed) == ("pcie", 15.75, False)


def test_gpus_that_only_pcie_joins(tmp_path: Path) -> None:
    report = written(tmp_path)
    diagnose(tmp_path, path="SYS", width=16)
    with ranks_of(report) as (rank,):
        assert rank.links.peers == {1: ("pcie", 31.5)}
        assert rank.links.is_all_nvlink is False


def test_a_file_of_another_machine_does_not_count(tmp_path: Path) -> None:
    report = written(tmp_path)
    diagnose(tmp_path, path="NV4")
    (tmp_path / "doctor-node7.json").write_text('{"host": "node8", "gpus": []}')
    with ranks_of(report) as (rank,):
        assert rank.links == NO_LINKS
