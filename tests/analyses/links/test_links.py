"""What copies and counters say of links, in small exports, scenarios and real ones."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.reference.links import reference_copies, reference_integral, reference_series
from tests.support.builders import TraceBuilder
from tests.support.opened import ranks_of
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER
from traceprof.analyses.links import link_counters, link_findings, link_usage
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.opening import Window
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from pathlib import Path

A100 = "NVIDIA A100-SXM4-80GB"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MIB = 1 << 20


def judged(path: Path, module: Any = link_usage, **overrides: float) -> list[Any]:
    with ranks_of(path) as ranks:
        informed = [replace(rank, peak_overrides=overrides) for rank in ranks]
        results = [module.run(rank, rank.window) for rank in informed]
    return [finding for result in results for finding in module.findings(result)]


def assert_copies_agree(path: Path) -> None:
    expected = reference_copies(path)
    with ranks_of(path) as ranks:
        assert {(rank.process, rank.device) for rank in ranks} == expected.keys()
        for rank in ranks:
            result = link_usage.run(rank, rank.window)
            truth = expected[rank.process, rank.key.device]
            uses = {
                (use.direction, use.peer): (use.bytes, use.busy_ns, use.num_copies)
                for use in result.uses
            }
            assert uses == truth["uses"]
            host = {
                (
                    direction,
                    None if memory is None else schema.MEMORY_KINDS[memory],
                    unified,
                ): numbers
                for (direction, memory, unified), numbers in truth["host"].items()
            }
            assert host == {
                (copy.direction, copy.memory, copy.is_unified): (
                    copy.num_copies,
                    copy.bytes,
                    copy.busy_ns,
                    copy.num_on_compute_stream,
                    copy.bytes_on_compute_stream,
                )
                for copy in result.host_copies
            }
            for load in result.loads:
                assert load.exposed_ns == truth["exposed"][load.direction]
            for load in result.big_loads:
                numbers = (
                    load.more["bytes"],
                    load.more["busy_ns"],
                    load.more["num_copies"],
                    load.exposed_ns,
                )
                assert numbers == truth["big"][load.direction]
            waited = {name for name, ns in truth["exposed"].items() if ns * 100 >= result.window_ns}
            if result.loads:
                assert {load.direction for load in result.loads} == waited


def assert_counters_agree(path: Path) -> None:
    series = reference_series(path)
    with ranks_of(path) as ranks:
        for rank in ranks:
            result = link_counters.run(rank, rank.window)
            window = rank.window.start_ns, rank.window.end_ns
            busy = list(zip(rank.busy.start_ns.tolist(), rank.busy.end_ns.tolist(), strict=True))
            for use in result.counters:
                if use.source == "gpu-metrics":
                    periods = series[rank.key.device, use.link, use.direction]
                    nvlink = use.link == "nvlink"
                    count, covered, active, integral, spikes = reference_integral(
                        periods, window, busy, nvlink
                    )
                    assert (use.num_samples, use.sampled_ns) == (count, covered)
                    assert (use.busy_ns, use.num_idle_spikes) == (active, spikes)
                    peak = use.peak_gb_per_s
                    assert use.bytes == (None if peak is None else round(integral * peak / 100))
                    assert use.utilization == pytest.approx(integral / covered / 100)


def test_copies_of_real_exports(real_trace: Path) -> None:
    assert_copies_agree(real_trace)


def test_counters_of_real_exports(real_trace: Path) -> None:
    assert_counters_agree(real_trace)


def test_real_counters(traces: Path) -> None:
    """109 620 rows of one RTX 3090, 18 metrics; one sample before the session, one overflow."""
    path = traces / "rtx3090_gpu_metrics.sqlite"
    series = reference_series(path)
    with ranks_of(path) as (rank,):
        by_gpu = rank.trace.counters.by_gpu[0]
        assert [(use.link, use.direction) for use in by_gpu] == [("pcie", "tx"), ("pcie", "rx")]
        for use in by_gpu:
            rows = zip(use.start_ns.tolist(), use.end_ns.tolist(), use.value.tolist(), strict=True)
            assert list(rows) == series[0, use.link, use.direction]
            assert len(use.value) == 6089
        assert judged(path, link_counters) == []  # nothing communicates


def test_known_copies_of_real_exports(traces: Path) -> None:
    with ranks_of(traces / "a100x4_ddp_baseline_rank0.sqlite") as (rank,):
        h2d = link_usage.run(rank, rank.window).uses[0]
        assert (h2d.bytes, h2d.busy_ns) == (8_842_602_496, 414_091_208)
        assert h2d.utilization == pytest.approx(0.678, abs=1e-3)
    with ranks_of(traces / "gpt2_result_2_7B_3.16.1.sqlite") as (rank,):
        (pageable, pinned) = link_usage.run(rank, rank.window).host_copies
        assert (pageable.memory, pageable.bytes) == ("Pageable", 13_627_402_240)
        assert pageable.num_on_compute_stream == 292
        assert (pinned.memory, pinned.bytes) == ("Pinned", 32_768)


def test_pinned_copies_of_two_mpi_ranks_are_slow(traces: Path) -> None:
    (finding,) = judged(traces / "jacobi_mpi" / "rank_0.sqlite")
    assert finding.id == "link-underused"
    assert finding.severity == Severity.LOW
    assert finding.metrics["utilization"] == pytest.approx(0.385, abs=1e-3)
    assert finding.metrics["is_peak_assumed"]
    # the same copies of one process alone reach 12.1 GB/s
    assert judged(traces / "v100_single_process_jacobi_peer_copies.sqlite") == []


@pytest.mark.parametrize("scenario", [path.stem for path in GPU_SAMPLES])
def test_scenarios(scenario: str) -> None:
    path = SAMPLE_FOLDER / f"{scenario}.sqlite"
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    assert_copies_agree(path)
    assert_counters_agree(path)
    with ranks_of(path) as ranks:
        found = []
        for rank in ranks:
            for use in link_usage.run(rank, rank.window).uses:
                if use.direction != "d2d":
                    row = (rank.rank, use.link, use.direction, use.peer, use.bytes, use.busy_ns)
                    found.append(row)
    names = ("rank", "link", "direction", "peer", "bytes", "busy_ns")
    rows = [tuple(row[name] for name in names) for row in truth.get("links", [])
            if row["source"] == "copies"]  # fmt: skip
    if rows:
        assert sorted(found, key=str) == sorted(rows, key=str)
    silent = {claim.id for module in (link_usage, link_counters) for claim in judged(path, module)
              if isinstance(claim, Finding) and claim.severity > Severity.INFO}  # fmt: skip
    assert not silent & set(truth.get("silent", []))


def test_healthy_links_are_no_matter() -> None:
    for module in (link_usage, link_counters):
        assert judged(SAMPLE_FOLDER / "healthy.sqlite", module) == []


def test_the_counters_scenario() -> None:
    path = SAMPLE_FOLDER / "link-counters.sqlite"
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    found = judged(path, link_counters)
    assert sorted((claim.id, claim.rank) for claim in found) == sorted(
        (planted["id"], planted["rank"]) for planted in truth["findings"]
    )
    for finding in found:
        (expected,) = [
            planted["metrics"]
            for planted in truth["findings"]
            if (planted["id"], planted["rank"]) == (finding.id, finding.rank)
        ]
        for name in ("link", "direction", "peer", "source", "peak_gb_per_s"):
            assert finding.metrics[name] == expected[name]
        # a sampled percentage is whole
        assert finding.metrics["gb_per_s"] == pytest.approx(expected["gb_per_s"], rel=0.02)
        assert finding.metrics["utilization"] == pytest.approx(expected["utilization"], abs=5e-3)
        assert finding.severity == Severity.HIGH
    with ranks_of(path) as ranks:
        uses = {
            (rank.rank, use.link, use.direction): use
            for rank in ranks
            for use in link_counters.run(rank, rank.window).uses
        }
    for row in truth["links"]:
        if row["source"] != "copies":
            use = uses[row["rank"], row["link"], row["direction"]]
            # whole percentages of NVLink, and samples that reach over the edges of a transfer
            assert use.bytes == pytest.approx(row["bytes"], rel=0.02)
            assert use.source == row["source"]
    assert uses[0, "network", "tx"].bytes == 41_943_040
    assert (1, "network", "tx") not in uses  # the machine's NIC stands beside its first rank


def test_what_copies_and_counters_both_say_is_said_once() -> None:
    path = SAMPLE_FOLDER / "link-counters.sqlite"
    both = judged(path) + judged(path, link_counters)
    assert [claim.metrics["source"] for claim in both].count("copies") == 2
    assert link_findings.distinct(both) == judged(path, link_counters)
    assert link_findings.distinct(judged(path)) == judged(path)


def test_the_nics_own_rate_can_be_given() -> None:
    with ranks_of(SAMPLE_FOLDER / "link-counters.sqlite") as (rank, _):
        informed = replace(rank, peak_overrides={"network": 25.0})
        uses = link_counters.run(informed, rank.window).uses
    (sent,) = [use for use in uses if (use.link, use.direction) == ("network", "tx")]
    assert (sent.peak_gb_per_s, sent.name, sent.is_peak_assumed) == (25.0, "mlx5_0", False)


# -- copies ---------------------------------------------------------------------------------------


def copying(size: int, nanoseconds: int, **how: Any) -> TraceBuilder:
    """Return a kernel, then a copy that nothing hides, then a kernel."""
    return (
        TraceBuilder()
        .gpu(A100)
        .kernel(0, 10_000)
        .memcpy(10_000, 10_000 + nanoseconds, bytes=size, **how)
        .kernel(10_000 + nanoseconds, 20_000 + nanoseconds)
    )


def test_a_link_at_its_limit(tmp_path: Path) -> None:
    path = copying(30_000_000, 1_000_000).write(tmp_path / "t.sqlite")
    (finding,) = judged(path)
    assert (finding.id, finding.severity) == ("link-saturated", Severity.HIGH)
    assert finding.impact_ns == 1_000_000
    assert finding.metrics["gb_per_s"] == 30.0
    assert "assumed peak of 31.5 GB/s" in finding.title
    assert any("nvidia-smi -q -d PCIE" in line for line in finding.advice)
    # whoever knows the slot says so, and nothing is assumed
    (finding,) = judged(path, pcie=32.0)
    assert "assumed" not in finding.title
    assert not any("board of this name" in line for line in finding.advice)
    assert judged(path, pcie=63.0) == []


def test_a_link_far_below_its_peak(tmp_path: Path) -> None:
    path = copying(8_000_000, 1_000_000).write(tmp_path / "t.sqlite")
    (finding,) = judged(path)
    assert (finding.id, finding.metrics["direction"]) == ("link-underused", "h2d")
    assert finding.metrics["coverage"] == 1.0


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (4 * MIB - 1, {}),  # small: latency
        (8_000_000, {"pageable": True}),  # another finding's
        (20_000_000, {}),  # half of the peak: healthy enough
    ],
)
def test_what_is_no_underused_link(tmp_path: Path, size: int, how: dict[str, Any]) -> None:
    assert judged(copying(size, 1_000_000, **how).write(tmp_path / "t.sqlite")) == []


def test_hidden_copies_cost_nothing(tmp_path: Path) -> None:
    builder = copying(8_000_000, 1_000_000).kernel(10_000, 1_010_000, stream=9)
    assert judged(builder.write(tmp_path / "t.sqlite")) == []


def test_without_the_gpus_name_nothing_is_claimed(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).memcpy(10, 1000, bytes=8 << 20).write(tmp_path / "t.sqlite")
    found = judged(path)
    assert [claim.id for claim in found] == ["link-saturated", "link-underused"]
    assert all(isinstance(claim, NotApplicable) for claim in found)
    assert judged(path, pcie=63.0)[0].id == "link-saturated"


def test_the_host_of_a_grace_hopper_is_not_behind_pcie(tmp_path: Path) -> None:
    path = (
        TraceBuilder()
        .gpu("NVIDIA GH200 480GB")
        .memcpy(0, 1_000_000, bytes=8_000_000)
        .write(tmp_path / "t.sqlite")
    )
    assert judged(path) == []


def test_no_window_no_claim(tmp_path: Path) -> None:
    path = TraceBuilder().gpu(A100).memcpy(5, 5).write(tmp_path / "t.sqlite")
    assert judged(path) == []
    with ranks_of(path) as (rank,):
        (use,) = link_usage.run(rank, rank.window).uses
        assert (use.busy_ns, use.gb_per_s, use.utilization) == (0, None, None)
        assert link_usage.run(rank, Window(6, 9)).uses == ()


def test_random_copies(tmp_path: Path) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        builder = TraceBuilder().gpu(A100)
        for _ in range(rng.randrange(1, 60)):
            start = rng.randrange(1000)
            end = start + rng.choice([0, 1, rng.randrange(200)])
            where: Any = {"stream": rng.randrange(7, 10), "device": rng.randrange(2)}
            if rng.random() < 0.3:
                builder.kernel(start, end, rng.choice(["gemm", NCCL]), **where)
                continue
            kind = rng.choice(["HtoD", "DtoH", "DtoD", "PtoP"])
            ends = rng.choice([(None, None), (0, 1), (1, 0), (1, 1)])
            builder.memcpy(
                start, end, kind, bytes=rng.choice([0, 100, 8 * MIB]), source=ends[0],
                destination=ends[1], pageable=rng.random() < 0.4, **where,
            )  # fmt: skip
        assert_copies_agree(builder.shuffled(seed).write(tmp_path / f"{seed}.sqlite"))


# -- counters -------------------------------------------------------------------------------------

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


def test_requests_and_responses_are_added_up(tmp_path: Path) -> None:
    times = range(100, 1001, 100)
    builder = metric(communicating(), "NVLink TX Requests User Data [Throughput %]",
                     dict.fromkeys(times, 6), 3)  # fmt: skip
    metric(builder, "NVLink TX Responses User Data [Throughput %]", dict.fromkeys(times, 5), 4)
    metric(builder, "NVLink TX Requests Protocol Data [Throughput %]", dict.fromkeys(times, 99), 5)
    path = builder.write(tmp_path / "t.sqlite")
    assert_counters_agree(path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
    assert (use.link, use.direction, use.utilization) == ("nvlink", "tx", 0.11)
    assert (use.bytes, use.num_samples, use.sample_ns) == (33_000, 10, 100)
    assert use.utilization_in_communication == pytest.approx(0.11)
    (finding,) = judged(path, link_counters)
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
    path = metric(communicating(), name, samples, 0).write(tmp_path / "t.sqlite")
    with ranks_of(path) as (rank,):
        found = [(use.link, use.direction) for use in link_counters.run(rank, rank.window).uses]
    assert found == ([(link, direction)] if link else [])


def test_what_is_no_sample_is_left_out(tmp_path: Path) -> None:
    samples: dict[int, Any] = dict.fromkeys(range(100, 1001, 100), 50)
    samples |= {-37_928: 80, 350: None, 450: -1_964_454_041, 550: 101}
    path = metric(communicating(), "PCIe RX Throughput", samples, 0).write(tmp_path / "t.sqlite")
    assert_counters_agree(path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
        (read,) = rank.trace.counters.by_gpu[0]
    assert read.end_ns.tolist() == list(range(100, 1001, 100))
    assert (use.num_samples, use.sampled_ns, use.utilization) == (10, 1000, 0.5)


def test_lost_samples_are_not_stretched(tmp_path: Path) -> None:
    samples = dict.fromkeys((100, 200, 300, 900, 1000), 50)
    path = metric(communicating(), "PCIe RX Throughput", samples, 0).write(tmp_path / "t.sqlite")
    assert_counters_agree(path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
    assert use.sampled_ns == 500


def test_an_idle_nvlink_may_read_as_full(tmp_path: Path) -> None:
    builder = communicating(500).kernel(900, 1000, NCCL)
    samples = dict.fromkeys(range(100, 1001, 100), 95) | {500: 20}
    path = metric(builder, "NVLink RX Requests User Data", samples, 0).write(tmp_path / "t.sqlite")
    assert_counters_agree(path)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
    assert (use.num_idle_spikes, use.num_samples) == (4, 6)
    assert use.share_at_peak == pytest.approx(5 / 6)


def test_few_samples_are_refused(tmp_path: Path) -> None:
    samples = dict.fromkeys(range(250, 1001, 250), 10)
    path = metric(communicating(), "NVLink TX Requests User Data", samples, 0).write(
        tmp_path / "t.sqlite"
    )
    found = judged(path, link_counters)
    assert [claim.id for claim in found] == ["link-saturated", "link-underused"]
    assert all("--gpu-metrics-frequency" in claim.how_to_collect for claim in found)
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).counters
    assert (use.num_in_communication, use.utilization_in_communication) == (4, None)


def test_a_busier_link_excuses_another(tmp_path: Path) -> None:
    times = range(100, 1001, 100)
    builder = metric(communicating(), "NVLink TX Requests User Data", dict.fromkeys(times, 2), 0)
    metric(builder, "PCIe TX Throughput", dict.fromkeys(times, 60), 1)
    assert judged(builder.write(tmp_path / "t.sqlite"), link_counters) == []


def test_two_gpus_with_ids_of_their_own(tmp_path: Path) -> None:
    times = range(100, 1001, 100)
    builder = communicating().gpu(A100, board=1, device=1, pid=1000).kernel(0, 1000, NCCL, device=1)
    metric(builder, "PCIe TX Throughput", dict.fromkeys(times, 10), 7, gpu=0)
    metric(builder, "PCIe RX Throughput", dict.fromkeys(times, 20), 8, gpu=0)
    metric(builder, "PCIe TX Throughput", dict.fromkeys(times, 30), 8, gpu=1)
    path = builder.write(tmp_path / "t.sqlite")
    assert_counters_agree(path)
    with ranks_of(path) as ranks:
        found = [
            (rank.device, use.direction, use.utilization)
            for rank in ranks
            for use in link_counters.run(rank, rank.window).counters
        ]
    assert found == [(0, "tx", 0.1), (0, "rx", 0.2), (1, "tx", 0.3)]


def test_no_counters(tmp_path: Path) -> None:
    found = judged(communicating().write(tmp_path / "t.sqlite"), link_counters)
    assert [claim.id for claim in found] == ["link-saturated", "link-underused"]
    assert all("--gpu-metrics-devices=cuda-visible" in claim.how_to_collect for claim in found)
    assert not any("nic" in claim.how_to_collect for claim in found)


def test_an_inventory_of_nics_is_no_traffic(tmp_path: Path) -> None:
    builder = communicating().raw(
        schema.NIC_INFO, GUID=-1, stateName="", nicId=0, name="mlx5_0", deviceId=1, vendorId=1,
        linkLayer=2,
    )  # fmt: skip
    found = judged(builder.write(tmp_path / "t.sqlite"), link_counters)
    assert all(
        "mlx5_0" in claim.reason and "--nic-metrics" in claim.how_to_collect for claim in found
    )


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


def test_rates_of_nics_are_integrated(tmp_path: Path) -> None:
    builder = nic(TraceBuilder().gpu(A100).kernel(500_000, 9_500_000, NCCL))
    path = builder.write(tmp_path / "t.sqlite")
    with ranks_of(path) as (rank,):
        (use,) = link_counters.run(rank, rank.window).uses
    assert (use.bytes, use.busy_ns, use.gb_per_s) == (180_000_000, 9_000_000, 20.0)
    assert (use.name, use.peak_gb_per_s) == ("NIC 7", None)
    assert not any(isinstance(claim, Finding) for claim in judged(path, link_counters))
    (finding,) = judged(path, link_counters, network=20.0)
    assert (finding.id, finding.metrics["source"]) == ("link-saturated", "nic-metrics")


def test_a_unit_that_is_not_known_is_no_rate(tmp_path: Path) -> None:
    path = nic(communicating(10_000_000), unit="ticks/ms").write(tmp_path / "t.sqlite")
    with ranks_of(path) as (rank,):
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
