"""Sampled link counters as exports hold them, and a run whose links they show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sample_traces.simulator import kernels, nsight_writer
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import CommunicationWork, CopyWork
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.gpu import Operation
from sample_traces.simulator.event_model.program_writer import COPY, Host, Rates
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding
from sample_traces.simulator.scenarios.training import optimize, programs, reduce_beside
from traceprof.trace.nsight import schema

# Bytes per ns in one direction of the simulated A100 (DOMAIN 1.1 and 1.2).
NVLINK_PEAK = 300.0
PCIE_PEAK = 31.5
NIC_PEAK = 25.0  # HDR InfiniBand

_SAMPLE_NS = 100_000  # 10 kHz, the default
_NIC_SAMPLE_NS = 1_000_000
_NIC_SHARE = 4  # one byte in four of each all-reduce leaves the machine
_FIRST_TYPE = 0x0001_0000_0000_0000 | 0x0000_0001_0000_0000  # its last byte is the GPU's number
_CLOCK_HZ = 1_410_000_000
_OVERFLOWED_CLOCK = -1_964_454_041  # of a real export: more Hz than 32 bits hold
_SPIKE = 100

# Names in exports of 2023, and the suffixes of 2026.
_NAMES = {
    "nvlink_tx": ("NVLink TX Requests User Data", " [Throughput %]"),
    "nvlink_rx": ("NVLink RX Requests User Data", " [Throughput %]"),
    "nvlink_tx_responses": ("NVLink TX Responses User Data", " [Throughput %]"),
    "nvlink_rx_responses": ("NVLink RX Responses User Data", " [Throughput %]"),
    "pcie_rx": ("PCIe RX Throughput", " [Throughput %]"),
    "pcie_tx": ("PCIe TX Throughput", " [Throughput %]"),
    "sms": ("SM Active", ""),
    "clock": ("GPC Clock Frequency", " [MHz]"),  # the value is in Hz all the same
}
_LATEST_SMS = "SMs Active [Throughput %]"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that cross a link evenly from start to end."""

    start_ns: int
    end_ns: int
    bytes: int

    def during(self, start_ns: int, end_ns: int) -> float:
        shared = answers.covered(start_ns, end_ns, [(self.start_ns, self.end_ns)])
        return self.bytes * shared / (self.end_ns - self.start_ns)


def transfers(operations: Sequence[Operation]) -> dict[str, list[Transfer]]:
    """Return the transfers over each link of a rank, by counter; a ring sends what it receives."""
    crossing: dict[str, list[Transfer]] = {name: [] for name in _NAMES}
    for operation in operations:
        work = operation.work
        if isinstance(work, CopyWork):
            counter = {1: "pcie_rx", 2: "pcie_tx"}[work.kind]
            crossing[counter].append(Transfer(operation.start_ns, operation.end_ns, work.bytes))
        elif isinstance(work, CommunicationWork):
            ranks = len(work.members)
            size = 2 * (ranks - 1) * work.bytes // ranks
            carried = Transfer(operation.last_arrival_ns, operation.end_ns, size)
            crossing["nvlink_tx"].append(carried)
            crossing["nvlink_rx"].append(carried)
    return crossing


def write(writer: NsightWriter, ranks: Ranks) -> None:
    """Write the counters of every GPU and of one NIC."""
    for rank, operations in enumerate(ranks.operations):
        _write_gpu(writer, rank, operations)
    _write_nic(writer, transfers(ranks.operations[0])["nvlink_tx"])


def links(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the truth: bytes over each link, and the time in which it was used."""
    rows = []
    peaks = {"nvlink": NVLINK_PEAK, "pcie": PCIE_PEAK, "network": NIC_PEAK}
    for rank, operations in enumerate(ranks.operations):
        crossed = transfers(operations)
        if rank == 0:
            outside = [
                Transfer(transfer.start_ns, transfer.end_ns, transfer.bytes // _NIC_SHARE)
                for transfer in crossed["nvlink_tx"]
            ]
            crossed |= {"network_tx": outside, "network_rx": outside}
        for name, carried in crossed.items():
            link, _, direction = name.partition("_")
            if carried:
                size = sum(transfer.bytes for transfer in carried)
                spans = answers.union((transfer.start_ns, transfer.end_ns) for transfer in carried)
                busy = sum(end - start for start, end in spans)
                row = {"rank": rank, "link": link, "direction": direction, "peer": None}
                rate = {"gb_per_s": size / busy, "peak_gb_per_s": peaks[link]}
                share = {"utilization": size / busy / peaks[link]}
                source = {"source": "nic-metrics" if link == "network" else "gpu-metrics"}
                rows.append({**row, "bytes": size, "busy_ns": busy, **rate, **share, **source})
    return rows


def _write_gpu(writer: NsightWriter, rank: int, operations: Sequence[Operation]) -> None:
    is_latest = writer.schema_version == next(reversed(nsight_writer.PRODUCTS))
    kind = {"typeId": _FIRST_TYPE + rank}
    names = [name + unit * is_latest for name, unit in _NAMES.values()]
    if is_latest:
        names[list(_NAMES).index("sms")] = _LATEST_SMS
    writer.add(
        schema.GPU_METRIC_NAMES,
        {
            **kind,
            "sourceId": _FIRST_TYPE + rank,
            "typeName": "",
            # Ids are not stable: the second GPU's differ from the first one's.
            "metricId": [index + rank for index in range(len(names))],
            "metricName": names,
        },
    )
    times, values = [], []
    for time, row in _samples(operations):
        times += [time] * len(row)
        values += row
    writer.add(
        schema.GPU_METRICS,
        {
            **kind,
            "timestamp": times,
            "metricId": [index + rank for index in range(len(names))] * (len(times) // len(names)),
            "value": values,
        },
    )


def _samples(operations: Sequence[Operation]) -> Iterator[tuple[int, list[int]]]:
    """Yield the time of each sample, and its values in the order of the names.

    One sample of an idle GPU has NVLink at its peak, and the first clock has overflowed, as real
    exports show both.
    """
    crossed = transfers(operations)
    busy = answers.union((operation.start_ns, operation.end_ns) for operation in operations)
    compute = answers.union(
        (operation.start_ns, operation.end_ns)
        for operation in operations
        if answers.class_of(operation) == "compute"
    )
    start, last = operations[0].start_ns - 3 * _SAMPLE_NS, max(end for _, end in busy)
    clock, spikes = _OVERFLOWED_CLOCK, 1
    while start < last:
        end = start + _SAMPLE_NS
        values = dict.fromkeys(_NAMES, 0)
        for name, carried in crossed.items():
            peak = PCIE_PEAK if name.startswith("pcie") else NVLINK_PEAK
            size = sum(transfer.during(start, end) for transfer in carried)
            values[name] = round(100 * size / (peak * _SAMPLE_NS))
        values["sms"] = round(100 * answers.covered(start, end, compute) / _SAMPLE_NS)
        values["clock"] = clock
        if spikes and start > busy[0][1] and not answers.covered(start, end, busy):
            values["nvlink_rx"], spikes = _SPIKE, 0
        yield end, list(values.values())
        clock, start = _CLOCK_HZ, end


def _write_nic(writer: NsightWriter, carried: Sequence[Transfer]) -> None:
    """Write one port's rates: bytes and ticks per ms, sampled every ms."""
    network, metrics = 7, 1
    names = ("IB: Bytes sent", "IB: Bytes received", "IB: Send waits")
    writer.add(
        schema.NIC_INFO,
        {
            "GUID": 0x5EED_0000_0000_00A0, "stateName": "Local (CLI)", "nicId": 0, "name": "mlx5_0",
            "deviceId": 4123, "vendorId": 713, "linkLayer": 2,
        },
    )  # fmt: skip
    writer.add(schema.NIC_IDS, {"nicId": 0, "globalId": network})
    writer.add(
        schema.NIC_METRIC_NAMES,
        {
            "metricsListId": metrics,
            "metricsIdx": list(range(len(names))),
            "name": names,
            "description": names,
            "unit": ["bytes/ms", "bytes/ms", "ticks/ms"],
        },
    )
    start = carried[0].start_ns - 2 * _NIC_SAMPLE_NS
    rows: dict[str, list[int]] = {name: [] for name in ("start", "end", "metricsIdx", "value")}
    while start < carried[-1].end_ns:
        end = start + _NIC_SAMPLE_NS
        size = round(sum(transfer.during(start, end) for transfer in carried) / _NIC_SHARE)
        rows["start"] += [start] * len(names)
        rows["end"] += [end] * len(names)
        rows["metricsIdx"] += range(len(names))
        rows["value"] += [size, size, 0]
        start = end
    writer.add(schema.NIC_METRICS, {**rows, "globalId": network, "metricsListId": metrics})


_WEIGHTS_BYTES = 48 << 20
_GRADIENTS_BYTES = 32 << 20
_PAUSE_NS = 400_000


def link_counters(rng: np.random.Generator) -> Setup:
    """Return a run that waits for weights from the host, and for gradients over NVLink.

    The weights come at 95 % of what PCIe can carry, the gradients at 10 % of NVLink's peak. Between
    steps the GPU is idle briefly.
    """

    def step(host: Host) -> None:
        copy = host.stream(COPY)
        host.to_device(copy, _WEIGHTS_BYTES)
        host.follow(host.compute, copy)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD)
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.FORWARD)
            reduce_beside(host, _GRADIENTS_BYTES)
            host.follow(host.compute, host.nccl)
        optimize(host)
        host.synchronize(host.compute)
        host.busy(_PAUSE_NS)

    hosts = programs(rng, 5, step, Rates(pinned=Fraction(30), nccl=Fraction(30)))
    return Setup(hosts, _judged, write_more=write, more_links=links)


def _judged(ranks: Ranks) -> list[Finding]:
    judged = {("pcie", "rx"): "link-saturated", ("nvlink", "tx"): "link-underused"}
    names = ("link", "direction", "peer", "gb_per_s", "peak_gb_per_s", "utilization", "source")
    return [
        finding(judged[key], row["rank"], **{name: row[name] for name in names})
        for row in links(ranks)
        if (key := (row["link"], row["direction"])) in judged
    ]


SCENARIOS = {
    "link-counters": Scenario(
        "Sampled counters: PCIe at its limit, NVLink far below it.",
        link_counters,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "nccl-serialization"),
    )
}
