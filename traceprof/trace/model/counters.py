"""Sampled counters of links: a GPU's NVLink and PCIe in percent of their peak, a NIC's rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.model.operations import RankKey

PERCENT, BYTES_PER_MS = "percent", "bytes/ms"


@dataclass(frozen=True, slots=True)
class LinkSamples:
    """Samples of one link in one direction, ordered by time, without overlap.

    Attributes:
        link: `nvlink`, `pcie` or `network`.
        direction: `tx` or `rx`, seen from the GPU or the NIC.
        name: of the NIC, else None.
        unit: `percent` of the link's peak, or `bytes/ms`.
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


@dataclass(frozen=True, slots=True)
class Counters:
    """The sampled counters of a report.

    Attributes:
        by_gpu: the samples of each GPU, by its number in the machine.
        gpu_of_rank: that number by rank, if known.
        network: the samples of the machine's NICs.
        nics: names of the machine's NICs, sampled or not.
        has_gpu_samples: whether GPU metrics were sampled at all.
    """

    by_gpu: Mapping[int, tuple[LinkSamples, ...]]
    gpu_of_rank: Mapping[RankKey, int]
    network: tuple[LinkSamples, ...]
    nics: tuple[str, ...]
    has_gpu_samples: bool
