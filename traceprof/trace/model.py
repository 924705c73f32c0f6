"""What every trace holds, whatever its format: columns of events by rank, and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """One process on one device.

    Attributes:
        process: identifies the process within its report (Nsight's globalPid).
        device: the CUDA ordinal as that process sees it.
    """

    process: int
    device: int


@dataclass(frozen=True, slots=True)
class Operations:
    """GPU operations of one rank, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], not before the start.
        stream: int64[n], the CUDA stream within the process.
        correlation: int64[n], the id shared with the API call that launched it; unique only
            within the process; NULL (the smallest int64) where the export has none.
    """

    start_ns: Int64
    end_ns: Int64
    stream: Int64
    correlation: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Kernels(Operations):
    """Kernels of one rank.

    Attributes:
        name: int64[n], keys of `Trace.kernel_names`.
    """

    name: Int64


@dataclass(frozen=True, slots=True)
class Copies(Operations):
    """Memory copies or memory sets of one rank.

    Attributes:
        bytes: int64[n].
        kind: int64[n], keys of `Trace.copy_kinds`; NULL for memory sets.
        source_device: int64[n], NULL where it is not another device.
        destination_device: int64[n], likewise.
    """

    bytes: Int64
    kind: Int64
    source_device: Int64
    destination_device: Int64


@dataclass(frozen=True, slots=True)
class RankOperations:
    """All that the GPU did for one rank.

    Attributes:
        kernels: every kernel, communication or not.
        copies: memory copies, peer copies among them.
        memsets: memory sets.
        graphs: CUDA graphs traced as a whole; the kernels inside are not recorded.
    """

    kernels: Kernels
    copies: Copies
    memsets: Copies
    graphs: Operations

    @property
    def groups(self) -> tuple[Operations, ...]:
        """The four groups, to be looked at alike."""
        return (self.kernels, self.copies, self.memsets, self.graphs)


@dataclass(frozen=True, slots=True)
class Launches:
    """API calls of one process that can launch GPU work, ordered by correlation id, then start.

    Attributes:
        correlation: int64[n].
        start_ns: int64[n], when the call was entered.
    """

    correlation: Int64
    start_ns: Int64


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """NVTX ranges of one process, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 where the range was still open at the capture's end.
        names: n names.
    """

    start_ns: Int64
    end_ns: Int64
    names: Sequence[str]


class Progress(Protocol):
    """Somebody who wants to know how far the reading is."""

    def expect(self, rows: int) -> None:
        """Learn that so many rows more, or fewer, will be read."""

    def advance(self, rows: int) -> None:
        """Learn that so many rows were read."""


class Trace(Protocol):
    """A report that has been opened."""

    path: Path
    format: str
    product_version: str | None
    schema_version: str | None

    @property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        """GPU operations by rank; empty where the report has none."""

    @property
    def kernel_names(self) -> Mapping[int, str]:
        """Demangled kernel names by the ids that `Kernels.name` holds."""

    @property
    def copy_kinds(self) -> Mapping[int, str]:
        """Labels of copy kinds, such as `Host-to-Device`."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of this report should know about its data."""

    def launches(self, process: int) -> Launches | None:
        """Return the API calls of a process, or None where the report has no API calls."""

    def ranges(self, matching: re.Pattern[str], like: Sequence[str] = ()) -> dict[int, NamedRanges]:
        """Return the NVTX ranges by process whose whole name, or part of it, matches."""

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU where the report tells it."""

    def global_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where the report tells it."""

    def contents(self) -> Mapping[str, int]:
        """Return the number of rows of each event table that is not empty."""

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""

    def close(self) -> None:
        """Release the file."""
