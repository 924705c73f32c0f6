"""Links of a machine's GPUs, as `doctor` left them beside a report."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import traceprof
from sample_traces.simulator import nsight_writer
from tests.support.builders import TraceBuilder
from tests.support.traces import ranks_of
from traceprof.analyses.links import link_usage
from traceprof.run.machines import NO_LINKS, Gpu, MachineLinks, machine_beside
from traceprof.trace.nsight import schema

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
        ("GPU-2", 2),
        ("gpu-2", 2),
        ("0000:03:00.0", 3),
        ("00000000:03:00.0", 3),
        ("03:00.0", 3),
        ("GPU-9", None),
        ("", None),
    ],
)
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
        facts: dict[str, object] = {"gpus": [gpu], "paths": [["X"]], "versions": {}}
        (tmp_path / f"doctor-{host}.json").write_text(json.dumps({"host": host} | facts))
    found = machine_beside(report, "b")
    assert found is not None
    assert (found.host, found.gpus[0].name, found.paths) == ("b", "T4", (("X",),))
    assert machine_beside(report, "c") is None
    assert machine_beside(report, None) is None  # it could be either
    (tmp_path / "doctor-a.json").write_text("{")
    assert machine_beside(report, "a") is None
    assert machine_beside(report, None) == found


GPU = "NVIDIA RTX A6000"


def with_gpus(builder: TraceBuilder, uuids: Sequence[str | None]) -> TraceBuilder:
    for device, uuid in enumerate(uuids):
        builder.raw(
            schema.GPU_INFO, vmId=nsight_writer.VM_ID, id=device, name=GPU, uuid=uuid,
            busLocation=f"0000:0{device}:00.0",
        )  # fmt: skip
        builder.raw(schema.CUDA_DEVICES, gpuId=device, cudaId=device, pid=1000)
    return builder


def written(folder: Path) -> Path:
    """Return a report of a process that copies to the host and from GPU 0 to GPU 1."""
    builder = TraceBuilder().machine(host="node7")
    builder.kernel(0, 100).memcpy(100, 200, "DtoH", bytes=1000)
    builder.memcpy(200, 300, "PtoP", bytes=1000, source=0, destination=1)
    return with_gpus(builder, ["GPU-0", "GPU-1"]).write(folder / "a.sqlite")


def diagnose(folder: Path, *, path: str, width: int = 8, host: str = "node7") -> None:
    facts = {"pcie_generation": 4, "pcie_width": width, "num_nvlinks": 4}
    gpus = [
        {"index": index, "name": GPU, "uuid": f"GPU-{index}", "nvlink_gb_per_s": 14.0625} | facts
        for index in range(2)
    ]
    document = {"host": host, "gpus": gpus, "paths": [["X", path], [path, "X"]]}
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


def test_gpus_that_only_pcie_joins_or_files_of_another_machine(tmp_path: Path) -> None:
    report = written(tmp_path)
    diagnose(tmp_path, path="SYS", width=16)
    with ranks_of(report) as (rank,):
        assert rank.links.peers == {1: ("pcie", 31.5)}
        assert rank.links.is_all_nvlink is False
    diagnose(tmp_path, path="NV4", host="node8")
    with ranks_of(report) as (rank,):
        assert rank.links == NO_LINKS


def _report(
    folder: Path, number: int, host: str, gpus: Sequence[str], *, has_uuids: bool = True
) -> Path:
    """Return a report of rank `number`, whose GPU copies to the next of the GPUs in a ring."""
    builder = TraceBuilder().machine(host=host)
    place = number % len(gpus)
    other = (place + 1) % len(gpus)
    builder.kernel(0, 100 + number, device=place)
    end = 300 + number
    builder.memcpy(200, end, "PtoP", bytes=1000, source=place, destination=other, device=place)
    with_gpus(builder, [f"GPU-{name}" if has_uuids else None for name in gpus])
    return builder.write(folder / f"rank_{number}.sqlite")


def _peer_ranks(folder: Path) -> dict[int, int | None]:
    with closing(traceprof.analyze(folder)) as analysis:
        links = analysis.to_pandas("links")
    found = links[links["direction"] == "p2p"]
    peers = found["peer_rank"].astype(object).where(found["peer_rank"].notna(), None)
    return dict(zip(found["rank"].tolist(), peers.tolist(), strict=True))


@pytest.mark.parametrize(
    ("hosts", "gpus", "peers"),
    [
        # rank 0: GPU a → b; rank 1: GPU b → c; rank 2: GPU c → a, each in a report of its own.
        ({0: "node1", 1: "node1", 2: "node1"}, "abc", {0: 1, 1: 2, 2: 0}),
        ({0: "node1", 1: "node1"}, "abc", {0: 1, 1: None}),  # no rank is on GPU c
        ({0: "node1", 1: "node1", 4: "node1"}, "abc", {0: None, 1: None, 4: None}),  # two on b
        # Places on the bus hold for one machine, that of ranks 0 and 2.
        ({0: "node1", 1: "node2", 2: "node1"}, "abc", {0: None, 1: None, 2: 0}),
        ({0: "node1"}, "a", {0: None}),  # a copy within a device
    ],
)
def test_ranks_of_peer_copies_between_processes(
    hosts: dict[int, str], gpus: str, peers: dict[int, int | None], tmp_path: Path
) -> None:
    for number, host in hosts.items():
        _report(tmp_path, number, host, gpus, has_uuids=len({*hosts.values()}) == 1)
    assert _peer_ranks(tmp_path) == peers
    if gpus == "a":
        with closing(traceprof.analyze(tmp_path)) as analysis:
            assert analysis.to_pandas("links")["peer"].isna().all()


def test_peers_of_real_ranks_of_mpi(traces: Path) -> None:
    """Ranks 1 to 3 take from GPU 0, which is rank 0's; each process sees all GPUs."""
    assert _peer_ranks(traces / "v100x4_mpi_peer_copies.sqlite") == {1: 0, 2: 0, 3: 0}
