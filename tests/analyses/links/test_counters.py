"""What sampled counters say of links, in small exports."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.claims import A100, assert_counters_agree, judged, results_of
from tests.support.kept_claims import Kept
from tests.support.traces import ranks_of
from traceprof.analyses.links import link_counters
from traceprof.analyses.links.link_counters import link_rates
from traceprof.run.opening import Window
from traceprof.trace.nsight import schema

TYPE = 0x0001_0001_0000_0000


def metric(builder: TraceBuilder, name: str, samples: dict[int, Any], number: int, gpu: int = 0
           ) -> TraceBuilder:  # fmt: skip
    builder.raw(
        schema.GPU_METRIC_NAMES, typeId=TYPE + gpu, sourceId=0, typeName="", metricId=number,
        metricName=name,
    )  # fmt: skip
    for time, value in samples.items():
        builder.raw(
            schema.GPU_METRICS, timestamp=time, typeId=TYPE + gpu, metricId=number, value=value
        )
    return builder


def communicating(until: int = 1000) -> TraceBuilder:
    return TraceBuilder().gpu(A100).kernel(0, until, NCCL)


@pytest.mark.parametrize(
    ("name", "link", "direction"),
    [
        ("PCIe RX Throughput", "pcie", "rx"),
        ("PCIe TX Throughput [Throughput %]", "pcie", "tx"),
        ("PCIe Read Throughput", "pcie", "rx"),
        ("PCIe Write Throughput [Throughput %]", "pcie", "tx"),
        ("NVLink bytes received [Throughput %]", "nvlink", "rx"),
        ("NVLink bytes transmitted", "nvlink", "tx"),
        ("NVLink RX Requests User Data", "nvlink", "rx"),
        ("PCIe Read Requests to BAR1 [Requests]", None, None),
        ("PCIe RX Throughput [MB/s]", None, None),
        ("GPC Clock Frequency [MHz]", None, None),
    ],
)
def test_names_of_all_versions(tmp_path: Path, name: str, link: str, direction: str) -> None:
    samples = dict.fromkeys(range(100, 1001, 100), 50)
    with ranks_of(metric(communicating(), name, samples, 0).write(tmp_path)) as (rank,):
        found = [(use.link, use.direction) for use in link_counters.run(rank, rank.window).uses]
    assert found == ([(link, direction)] if link else [])


def test_what_is_no_sample_is_left_out(tmp_path: Path) -> None:
    samples: dict[int, Any] = dict.fromkeys(range(100, 1001, 100), 50)
    samples |= {-37_928: 80, 350: None, 450: -1_964_454_041, 550: 101}
    path = metric(communicating(), "PCIe RX Throughput", samples, 0).write(tmp_path)
    assert_counters_agree(path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
        (read,) = rank.trace.counters.by_gpu[0]
    assert read.end_ns.tolist() == list(range(100, 1001, 100))
    assert (use.num_samples, use.busy_ns, use.utilization) == (10, 1000, 0.5)


def nic(builder: TraceBuilder, unit: str = "bytes/ms", **more: Any) -> TraceBuilder:
    builder.raw(
        schema.NIC_METRIC_NAMES, metricsListId=1, metricsIdx=0, name="IB: Bytes sent",
        description="", unit=unit,
    )  # fmt: skip
    for start in range(0, 10_000_000, 1_000_000):
        builder.raw(
            schema.NIC_METRICS, start=start, end=start + 1_000_000, globalId=7, metricsListId=1,
            metricsIdx=0, value=20_000_000, **more,
        )  # fmt: skip
    return builder


def at(share: int) -> dict[int, int]:
    """Ten samples of this share of the peak."""
    return dict.fromkeys(range(100, 1001, 100), share)


def requests_and_responses() -> TraceBuilder:
    """They are added up; those of the protocol do not count."""
    builder = metric(communicating(), "NVLink TX Requests User Data [Throughput %]", at(6), 3)
    metric(builder, "NVLink TX Responses User Data [Throughput %]", at(5), 4)
    return metric(builder, "NVLink TX Requests Protocol Data [Throughput %]", at(99), 5)


def idle_nvlink() -> TraceBuilder:
    """It may read as full: four samples are left out."""
    builder = communicating(500).kernel(900, 1000, NCCL)
    return metric(builder, "NVLink RX Requests User Data", at(95) | {500: 20}, 0)


def two_gpus() -> TraceBuilder:
    """The ids of their metrics differ."""
    builder = communicating().gpu(A100, board=1, device=1, pid=1000).kernel(0, 1000, NCCL, device=1)
    metric(builder, "PCIe TX Throughput", at(10), 7, gpu=0)
    metric(builder, "PCIe RX Throughput", at(20), 8, gpu=0)
    return metric(builder, "PCIe TX Throughput", at(30), 8, gpu=1)


def with_nic() -> TraceBuilder:
    return nic(TraceBuilder().gpu(A100).kernel(500_000, 9_500_000, NCCL))


BUSIER = metric(communicating(), "NVLink TX Requests User Data", at(2), 0)
LOST = dict.fromkeys((100, 200, 300, 900, 1000), 50)
FEW = dict.fromkeys(range(250, 1001, 250), 10)
OF_NIC = {"GUID": -1, "stateName": "", "nicId": 0, "name": "mlx5_0", "deviceId": 1, "vendorId": 1}
PROGRAMS: dict[str, tuple[TraceBuilder, dict[str, float]]] = {
    "requests and responses": (requests_and_responses(), {}),
    # They are not stretched over the time without any.
    "lost samples": (metric(communicating(), "PCIe RX Throughput", LOST, 0), {}),
    "few samples": (metric(communicating(), "NVLink TX Requests User Data", FEW, 0), {}),
    "an idle NVLink": (idle_nvlink(), {}),
    "two GPUs": (two_gpus(), {}),
    "a link is busier": (metric(BUSIER, "PCIe TX Throughput", at(60), 1), {}),
    "no counters": (communicating(), {}),
    "an inventory of NICs": (communicating().raw(schema.NIC_INFO, **OF_NIC, linkLayer=2), {}),
    "a NIC": (with_nic(), {}),
    "a NIC at its peak": (with_nic(), {"network": 20.0}),
    "a NIC with an unknown unit": (nic(communicating(10_000_000), unit="ticks/ms"), {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    program, peaks = PROGRAMS[name]
    path = program.write(tmp_path)
    assert_counters_agree(path)
    counters = [use for result in results_of(link_counters.run, path) for use in result.counters]
    kept([*counters, *judged(path, link_counters, **peaks)])


def test_random_counters(tmp_path: Path) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        builder = TraceBuilder().gpu(A100)
        for _ in range(rng.randrange(1, 8)):
            start = rng.randrange(20_000)
            builder.kernel(start, start + rng.randrange(4000), rng.choice(["gemm", NCCL]))
        for number, name in enumerate(
            ("NVLink RX Requests User Data", "NVLink RX Responses User Data", "PCIe TX Throughput")
        ):
            times = [rng.randrange(-500, 20_000) for _ in range(rng.randrange(40))]
            metric(builder, name, {time: rng.choice([0, 1, 50, 95, 120]) for time in times}, number)
        assert_counters_agree(builder.write(tmp_path / f"{seed}.sqlite"))


def test_rates_of_samples_are_their_means(tmp_path: Path) -> None:
    """Ten samples of 20 GB/s; of the first and the last one, half a millisecond is shown."""
    path = nic(TraceBuilder().gpu(A100).kernel(0, 10_000_000)).write(tmp_path)
    limits = np.array([500_000, 5_000_000, 9_500_000], np.int64)
    with ranks_of(path) as (rank,):
        (rates,) = link_rates(rank, Window(500_000, 9_500_000), limits)
    assert (rates.link, rates.name, rates.source, rates.unit) == (
        "network", "NIC 7", "nic-metrics", "GB/s",
    )  # fmt: skip
    assert rates.mean.tolist() == rates.most.tolist() == [20.0, 20.0]
