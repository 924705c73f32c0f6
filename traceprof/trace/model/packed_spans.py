"""Columns of spans of time: operations of the GPU, calls of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.structs import Record
from traceprof.trace.columns import rows_of

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.trace.columns import Column


class PackedSpans(Record, frozen=True):
    """Spans of time.

    Properties are unpacked at each use: keep the result if speed matters.

    Attributes:
        starts: n times in ns.
        packed_length: n durations in ns, not negative.
    """

    starts: Column
    packed_length: Column

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def start_ns(self) -> Int64:
        """The start of each, int64[n]; the same array until `starts.release`."""
        return self.starts.whole

    @property
    def length_ns(self) -> Int64:
        """The duration of each, int64[n]."""
        return self.packed_length.values

    @property
    def end_ns(self) -> Int64:
        """The end of each, int64[n]."""
        return self.packed_length.add_to(self.start_ns)

    def ends(self, index: Int64 | Mask | slice) -> Int64:
        """Return the ends of some spans, without unpacking the others."""
        return rows_of(self.start_ns, index) + self.packed_length.at(index)
