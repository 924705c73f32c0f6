"""The gradient buckets of DistributedDataParallel: how long each took from ready to reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof.findings import Count
from traceprof.run.cpu_rank import host_buckets
from traceprof.structs import Record
from traceprof.trace.grouping import median_of
from traceprof.trace.model.special_values import OPEN_END

if TYPE_CHECKING:
    from traceprof.run.rank import Rank, Window


class BucketUse(Struct, frozen=True):
    """A gradient bucket of DistributedDataParallel, by index and size.

    DistributedDataParallel makes its buckets anew after the first step.
    """

    index: Annotated[Count | None, "Index of the bucket; null if unknown."]
    bytes: Annotated[Count | None, "Size of the bucket; null if unknown."]
    count: Annotated[Count, "Number of times that it became ready in the window."]
    median_ready_to_done_ns: Annotated[
        Count | None,
        "Median time from the bucket's last gradient to the end of its reduction; null where"
        " the capture ended before that.",
    ]


class DdpBucketsResult(Record, frozen=True):
    """The buckets of one rank, by index and size.

    Attributes:
        rank: the rank's number.
        uses: one for each index and size.
    """

    rank: int
    uses: tuple[BucketUse, ...]


def run(rank: Rank, window: Window) -> DdpBucketsResult:
    """Measure the buckets that were ready in the window."""
    ranges = rank.trace.label_ranges.get(rank.process)
    if ranges is None:
        return DdpBucketsResult(rank.rank, ())
    buckets = host_buckets(ranges)
    inside = window.holds_start(buckets.start_ns)
    is_done, duration = buckets.end_ns != OPEN_END, buckets.end_ns - buckets.start_ns
    uses = []
    pairs = np.stack((buckets.index, buckets.bytes))[:, inside]
    # With indices, since numpy imports its masked arrays otherwise.
    for index, size in np.unique(pairs, return_index=True, axis=1)[0].T:
        chosen = inside & (buckets.index == index) & (buckets.bytes == size)
        done = duration[chosen & is_done]
        uses.append(
            BucketUse(
                index=int(index) if index >= 0 else None,
                bytes=int(size) if size >= 0 else None,
                count=int(chosen.sum()),
                median_ready_to_done_ns=int(median_of(done)) if len(done) else None,
            )
        )
    return DdpBucketsResult(rank.rank, tuple(uses))
