"""Sampled counters of links: a GPU's NVLink and PCIe in percent of their peak, a NIC's rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.model.operations import RankKey

PERCENT, BYTES_PER_MS, HZ = "percent", "bytes/ms", "Hz"
CLOCK = "clock"
"""The name of a GPU's clock among its samples."""


class LinkSamples(Record, frozen=True):
    """Samples of one link in one direction, ordered by time, without overlap.

    Attributes:
        link: `nvlink`, `pcie` or `network`; `clock` of a GPU's clock.
        direction: `tx` or `rx`, seen from the GPU or the NIC; empty of a clock.
        name: of the NIC, else None.
        unit: `percent` of the link's peak, `bytes/ms` or `Hz`.
        start_ns: int64[n], the start of the sample's period.
        end_ns: int64[n], the time of the sample.
        value: int64[n], the mean over the period.
    """

    link: str
    direction: str
    name: str | None
    unit: str
    start_ns: Int64
    end_ns: Int64
    value: Int64


class Counters(Record, frozen=True):
    """The sampled counters of a report.

    Attributes:
        by_gpu: the samples of each GPU's links, by its number in the machine.
        clocks: the samples of each GPU's clock, by the same number.
        gpu_of_rank: that number by rank, if known.
        network: the samples of the machine's NICs.
        nics: names of the machine's NICs, sampled or not.
        has_gpu_samples: whether GPU metrics were sampled at all.
    """

    by_gpu: Mapping[int, tuple[LinkSamples, ...]]
    clocks: Mapping[int, LinkSamples]
    gpu_of_rank: Mapping[RankKey, int]
    network: tuple[LinkSamples, ...]
    nics: tuple[str, ...]
    has_gpu_samples: bool

    def clock_of(self, key: RankKey) -> LinkSamples | None:
        """Return the samples of the clock of a rank's GPU; None if there are none."""
        gpu = self.gpu_of_rank.get(key)
        return None if gpu is None else self.clocks.get(gpu)
