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
from traceprof.analyses.links.link_counters import CounterUse, link_rates
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


def counted(builder: TraceBuilder, tmp_path: Path) -> CounterUse:
    """Return the only counter that is used, which the reference agrees with."""
    path = builder.write(tmp_path)
    assert_counters_agree(path)
    (result,) = results_of(link_counters.run, path)
    (use,) = result.counters
    return use


def test_requests_and_responses_are_added_up(tmp_path: Path) -> None:
    times = range(100, 1001, 100)
    builder = metric(communicating(), "NVLink TX Requests User Data [Throughput %]",
                     dict.fromkeys(times, 6), 3)  # fmt: skip
    metric(builder, "NVLink TX Responses User Data [Throughput %]", dict.fromkeys(times, 5), 4)
    metric(builder, "NVLink TX Requests Protocol Data [Throughput %]", dict.fromkeys(times, 99), 5)
    use = counted(builder, tmp_path)
    assert (use.link, use.direction, use.utilization) == ("nvlink", "tx", 0.11)
    assert (use.bytes, use.num_samples, use.sample_ns) == (33_000, 10, 100)
    assert use.utilization_in_communication == pytest.approx(0.11)
    (finding,) = judged(tmp_path / "t.sqlite", link_counters)
    assert (finding.id, finding.impact_ns) == ("link-underused", 1000)


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


def test_lost_samples_are_not_stretched(tmp_path: Path) -> None:
    samples = dict.fromkeys((100, 200, 300, 900, 1000), 50)
    use = counted(metric(communicating(), "PCIe RX Throughput", samples, 0), tmp_path)
    assert use.busy_ns == 500


def test_an_idle_nvlink_may_read_as_full(tmp_path: Path) -> None:
    builder = communicating(500).kernel(900, 1000, NCCL)
    samples = dict.fromkeys(range(100, 1001, 100), 95) | {500: 20}
    use = counted(metric(builder, "NVLink RX Requests User Data", samples, 0), tmp_path)
    assert (use.num_idle_spikes, use.num_samples) == (4, 6)
    assert use.share_at_peak == pytest.approx(5 / 6)


def test_few_samples_are_refused(tmp_path: Path, kept: Kept) -> None:
    samples = dict.fromkeys(range(250, 1001, 250), 10)
    path = metric(communicating(), "NVLink TX Requests User Data", samples, 0).write(tmp_path)
    kept(judged(path, link_counters))
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
    assert use.utilization_in_communication is None


def test_two_gpus_with_ids_of_their_own(tmp_path: Path) -> None:
    times = range(100, 1001, 100)
    builder = communicating().gpu(A100, board=1, device=1, pid=1000).kernel(0, 1000, NCCL, device=1)
    metric(builder, "PCIe TX Throughput", dict.fromkeys(times, 10), 7, gpu=0)
    metric(builder, "PCIe RX Throughput", dict.fromkeys(times, 20), 8, gpu=0)
    metric(builder, "PCIe TX Throughput", dict.fromkeys(times, 30), 8, gpu=1)
    path = builder.write(tmp_path)
    assert_counters_agree(path)
    with ranks_of(path) as ranks:
        found = [
            (rank.device, use.direction, use.utilization)
            for rank in ranks
            for use in link_counters.run(rank, rank.window).counters
        ]
    assert found == [(0, "tx", 0.1), (0, "rx", 0.2), (1, "tx", 0.3)]


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


PROGRAMS: dict[str, tuple[TraceBuilder, dict[str, float]]] = {
    "a link is busier": (
        metric(
            metric(communicating(), "NVLink TX Requests User Data", at(2), 0),
            *("PCIe TX Throughput", at(60), 1),
        ),
        {},
    ),
    "no counters": (communicating(), {}),
    "an inventory of NICs": (
        communicating().raw(
            schema.NIC_INFO,
            GUID=-1,
            stateName="",
            nicId=0,
            name="mlx5_0",
            deviceId=1,
            vendorId=1,
            linkLayer=2,
        ),
        {},
    ),
    "a NIC": (nic(TraceBuilder().gpu(A100).kernel(500_000, 9_500_000, NCCL)), {}),
    "a NIC at its peak": (
        nic(TraceBuilder().gpu(A100).kernel(500_000, 9_500_000, NCCL)),
        {"network": 20.0},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    program, peaks = PROGRAMS[name]
    kept(judged(program.write(tmp_path), link_counters, **peaks))


def test_rates_of_nics_are_integrated(tmp_path: Path) -> None:
    path = nic(TraceBuilder().gpu(A100).kernel(500_000, 9_500_000, NCCL)).write(tmp_path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).uses
    assert (use.bytes, use.busy_ns, use.gb_per_s) == (180_000_000, 9_000_000, 20.0)
    assert (use.name, use.peak_gb_per_s) == ("NIC 7", None)


def test_a_unit_that_is_not_known_is_no_rate(tmp_path: Path) -> None:
    with ranks_of(nic(communicating(10_000_000), unit="ticks/ms").write(tmp_path)) as (rank,):
        assert link_counters.run(rank, rank.window).counters == ()


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
