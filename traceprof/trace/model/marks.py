"""Named moments of a program: marks of NVTX, instant events of torch.profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64


class Marks(Record, frozen=True):
    """All marks of one process, ordered by time.

    Attributes:
        time_ns: int64[n].
        name: int64[n], indices into `names`.
        thread: int64[n], the thread of the mark.
        names: the names of the whole report.
    """

    time_ns: Int64
    name: Int64
    thread: Int64
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.time_ns)
