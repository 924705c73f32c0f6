"""Links seen through sampled counters: PCIe at its limit, NVLink far below it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from sample_traces.simulator import counters, kernels
from sample_traces.simulator.event_model.program_writer import COPY, Rates
from sample_traces.simulator.scenarios.setup import Setup, finding
from sample_traces.simulator.scenarios.training import optimize, programs, reduce_beside

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.event_model.program_writer import Host
    from sample_traces.simulator.scenarios.setup import Finding

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
    return Setup(hosts, _judged, write_more=counters.write, more_links=counters.links)


def _judged(ranks: Ranks) -> list[Finding]:
    judged = {("pcie", "rx"): "link-saturated", ("nvlink", "tx"): "link-underused"}
    names = ("link", "direction", "peer", "gb_per_s", "peak_gb_per_s", "utilization", "source")
    return [
        finding(judged[key], row["rank"], **{name: row[name] for name in names})
        for row in counters.links(ranks)
        if (key := (row["link"], row["direction"])) in judged
    ]
