"""Notes for readers about the data of an Nsight export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.trace.nsight.nvtx.names import silence_note
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from traceprof.trace.model.ranges import LabelRanges


def on_kernel_names(num_unknown: int) -> Iterator[str]:
    """Yield a note on the number of unknown ids of kernel names, if there are any."""
    if num_unknown:
        yield (
            f"{counted(num_unknown, 'kernel name')} missing in this export: kernels of these names"
            " are counted as compute"
        )


def on_stalls(*, is_lost: bool) -> Iterator[str]:
    """Yield a note if records of a full command buffer were left out of the export."""
    if is_lost:
        yield (
            "launches blocked by a full command buffer were recorded, but this version of nsys"
            " left the records out: export the .nsys-rep again with Nsight Systems 2026.1 or later"
        )


def on_lost_work(pids: Collection[int]) -> Iterator[str]:
    """Yield a note on processes with a CUDA context and no GPU operation, if there are any."""
    if pids:
        names = ", ".join(str(pid) for pid in sorted(pids))
        yield (
            f"CUDA was traced in {counted(len(pids), 'process')} ({names}) of which this export has"
            " no GPU operation. Known reasons: the process ended before Nsight Systems had written"
            " them (let all threads end before it does, or add --cuda-flush-interval=1000), its"
            " CUDA is newer than Nsight Systems, or it launched none while it was recorded"
        )


def on_labels(domains: Collection[str], ranges: Mapping[int, LabelRanges]) -> Iterator[str]:
    """Yield notes if no range of `instrument` was recorded, or some without their sizes.

    Args:
        domains: names of NVTX domains.
        ranges: of `instrument`, by process.
    """
    if labels.DOMAIN in domains and not ranges:
        yield silence_note(labels.DOMAIN)
    num_short = sum(_num_short(of_process) for of_process in ranges.values())
    if num_short:
        yield (
            f"{counted(num_short, 'range')} of instrument without a size, since the process had"
            " over 10,000 different labels: bytes of such operations, and sums with them, are"
            " unknown"
        )


def _num_short(ranges: LabelRanges) -> int:
    """Return how many ranges of a process go without their size, or their text."""
    is_short = [
        label.facts.get("bytes") == labels.NO_SIZE or str(label) == labels.UNNAMED
        for label in ranges.kinds
    ]
    return int(np.array(is_short, np.bool_)[ranges.kind].sum()) if any(is_short) else 0
