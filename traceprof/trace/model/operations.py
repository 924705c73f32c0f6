"""What every trace holds, whatever its format: columns of events by rank, and names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from traceprof.trace.columns import Differences, pack

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Packed
    from traceprof.trace.nsight.counters import Counters
    from traceprof.trace.nsight.label_ranges import LabelRanges
    from traceprof.trace.nsight.nccl_calls import ProcessCalls

    Mask = npt.NDArray[np.bool_]

_SOME = 1024  # operations among which the one that ends last is looked for first


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

    Properties are unpacked at each use: ask once where it matters.

    Attributes:
        starts: n starts in ns.
        packed_length: n durations in ns, not negative.
        packed_stream: n CUDA streams within the process.
        packed_correlation: n ids shared with the API call that launched each; unique only within
            the process; NULL (the smallest int64) where the export has none.
    """

    starts: Differences
    packed_length: Packed
    packed_stream: Packed
    packed_correlation: Packed

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def start_ns(self) -> Int64:
        """When each began, int64[n]; the same array until `starts.release`."""
        return self.starts.values

    @property
    def length_ns(self) -> Int64:
        """How long each took, int64[n]."""
        return self.packed_length.values

    @property
    def end_ns(self) -> Int64:
        """When each was over, int64[n]."""
        return self.start_ns + self.packed_length.kept + self.packed_length.base

    def ends(self, index: Int64 | Mask | slice) -> Int64:
        """Return when some of them were over, without unpacking the others."""
        return self.start_ns[index] + self.packed_length.at(index)

    @property
    def first_ns(self) -> int:
        """When the first one began; there has to be one."""
        return self.starts.first

    @property
    def last_end_ns(self) -> int:
        """When all of them were over; there has to be one."""
        longest, some = self.packed_length.highest, _SOME
        while True:
            starts = self.starts.tail(some)
            last = int((starts + self.packed_length.at(slice(-len(starts), None))).max())
            # Whoever began before is over by then.
            if len(starts) == len(self) or int(starts[0]) + longest <= last:
                return last
            some *= 8

    @property
    def stream(self) -> Int64:
        """The CUDA stream of each within the process, int64[n]."""
        return self.packed_stream.values

    @property
    def correlation(self) -> Int64:
        """The id that each shares with the call that launched it, int64[n]."""
        return self.packed_correlation.values


@dataclass(frozen=True, slots=True)
class Kernels(Operations):
    """Kernels of one rank.

    Attributes:
        packed_signature: n indices into `Trace.signatures`, kept without a base: equal for the same
            kernel launched with the same grid and block.
        name_of_signature: int64[m], keys of `Trace.kernel_names`.
    """

    packed_signature: Packed
    name_of_signature: Int64

    @property
    def signature(self) -> Int64:
        """The signature of each, int64[n]."""
        return self.packed_signature.values

    @property
    def name(self) -> Int64:
        """The keys of `Trace.kernel_names`, int64[n]."""
        names: Int64 = self.name_of_signature[self.packed_signature.kept]
        return names

    def name_id(self, index: int) -> int:
        """Return the key of one of them."""
        return int(self.name_of_signature[self.packed_signature.kept[index]])

    def are_named(self, ids: Iterable[int]) -> Mask:
        """Return which have one of these names, bool[n]."""
        chosen = np.isin(self.name_of_signature, np.array(sorted(ids), np.int64))
        mask: Mask = chosen[self.packed_signature.kept]
        return mask


@dataclass(frozen=True, slots=True)
class Signatures:
    """Kernels by name, grid and block.

    Attributes:
        name: int64[m], keys of `Trace.kernel_names`.
        shape: int64[m, 6], grid x, y, z and block x, y, z; NULL where the export lacks them.
    """

    name: Int64
    shape: Int64


@dataclass(frozen=True, slots=True)
class Copies(Operations):
    """Memory copies or memory sets of one rank.

    Attributes:
        bytes: int64[n].
        kind: int64[n], keys of `Trace.copy_kinds`; NULL for memory sets.
        source_device: int64[n], NULL where it is not another device.
        destination_device: int64[n], likewise.
        source_memory: int64[n], keys of `Trace.memory_kinds`; NULL for memory sets.
        destination_memory: int64[n], likewise.
    """

    bytes: Int64
    kind: Int64
    source_device: Int64
    destination_device: Int64
    source_memory: Int64
    destination_memory: Int64


@dataclass(frozen=True, slots=True)
class KernelsToMake:
    """The kernels of one rank, with what is to be known of them before there are any.

    Attributes:
        number: how many there are.
        first_ns: when the first one began.
        last_end_ns: when all of them were over.
        make: returns them.
    """

    number: int
    first_ns: int
    last_end_ns: int
    make: Callable[[], Kernels]

    def __len__(self) -> int:
        return self.number


class RankOperations:
    """All that the GPU did for one rank.

    Attributes:
        copies: memory copies, peer copies among them.
        memsets: memory sets.
        graphs: CUDA graphs traced as a whole; the kernels inside are not recorded.
    """

    def __init__(
        self, kernels: Kernels | KernelsToMake, copies: Copies, memsets: Copies, graphs: Operations
    ) -> None:
        """Know what the GPU did; kernels that are to be made are so when they are asked for."""
        self._told = kernels
        self._kernels = kernels if isinstance(kernels, Kernels) else None
        self.copies, self.memsets, self.graphs = copies, memsets, graphs

    def __len__(self) -> int:
        """How many operations there are."""
        return sum(map(len, self._known))

    @property
    def kernels(self) -> Kernels:
        """Every kernel, communication or not: the same ones until `release`."""
        kernels = self._kernels
        if kernels is None:
            assert not isinstance(self._told, Kernels)  # noqa: S101
            kernels = self._kernels = self._told.make()
        return kernels

    @property
    def groups(self) -> tuple[Operations, ...]:
        """The four groups, to be looked at alike."""
        return (self.kernels, self.copies, self.memsets, self.graphs)

    @property
    def starts_ns(self) -> list[int]:
        """When each group that is not empty began."""
        return [each.first_ns for each in self._known if len(each)]

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """The start of the first and the end of the last; there has to be one."""
        return min(self.starts_ns), max(each.last_end_ns for each in self._known if len(each))

    def release(self) -> None:
        """Let go of what was unpacked, and of what can be made again."""
        if not isinstance(self._told, Kernels):
            self._kernels = None
        for each in (self._kernels, self.copies, self.memsets, self.graphs):
            if each is not None:
                each.starts.release()

    @property
    def _known(self) -> tuple[Operations | KernelsToMake, ...]:
        """The groups, of kernels what is known without making them."""
        return (self._told, self.copies, self.memsets, self.graphs)


_NOTHING = np.empty(0, np.int64)
_NO_NUMBERS = pack(_NOTHING)
_NO_BASE = (Differences(_NOTHING), _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)
NO_OPERATIONS = RankOperations(
    Kernels(*_NO_BASE, _NO_NUMBERS, _NOTHING), Copies(*_NO_BASE, *[_NOTHING] * 6),
    Copies(*_NO_BASE, *[_NOTHING] * 6), Operations(*_NO_BASE),
)  # fmt: skip
"""Of a process that ran nothing on a GPU."""


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """CUDA API calls of one process, ordered by correlation id, then start.

    Properties are unpacked at each use: ask once where it matters.

    Attributes:
        starts: n times in ns, when the call was entered.
        packed_length: n durations in ns, 0 where the capture ended before the call did.
        packed_ahead: n ids, less 0, 1, 2, …: ids are given one after the other, so that little
            remains.
        packed_thread: n threads that called (Nsight's globalTid).
        packed_name: n keys of `Trace.api_names`.
    """

    starts: Differences
    packed_length: Packed
    packed_ahead: Packed
    packed_thread: Packed
    packed_name: Packed

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def start_ns(self) -> Int64:
        """When each call was entered, int64[n]; the same array until `starts.release`."""
        return self.starts.values

    @property
    def correlation(self) -> Int64:
        """The ids, int64[n]."""
        ids = np.arange(len(self))
        ids += self.packed_ahead.kept
        ids += self.packed_ahead.base
        return ids

    @property
    def length_ns(self) -> Int64:
        """How long each call took, int64[n]."""
        return self.packed_length.values

    @property
    def end_ns(self) -> Int64:
        """When each call returned, int64[n]."""
        return self.start_ns + self.packed_length.kept + self.packed_length.base

    def ends(self, index: Int64 | Mask | slice) -> Int64:
        """Return when some of them returned, without unpacking the others."""
        return self.start_ns[index] + self.packed_length.at(index)

    def name_id(self, index: int) -> int:
        """Return the key of the name of one of them."""
        return int(self.packed_name.at(slice(index, index + 1))[0])

    @property
    def thread(self) -> Int64:
        """The calling threads, int64[n]."""
        return self.packed_thread.values

    @property
    def name(self) -> Int64:
        """The keys of `Trace.api_names`, int64[n]."""
        return self.packed_name.values


@dataclass(frozen=True, slots=True)
class Synchronizations:
    """Synchronizations of one process, ordered by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        stream: int64[n]; 4294967295 where an event, not a stream, is waited for.
        correlation: int64[n], of the API call.
        kind: int64[n]: 1 the host for an event, 2 a stream for an event (recorded when it is asked
            for, not while the stream waits), 3 the host for a stream, 4 the host for the context.
        event: int64[n], the event's id; unique with `recording` where the export has it.
        recording: int64[n], which recording of the event (eventSyncId), NULL where not exported.
    """

    start_ns: Int64
    end_ns: Int64
    stream: Int64
    correlation: Int64
    kind: Int64
    event: Int64
    recording: Int64


@dataclass(frozen=True, slots=True)
class LaunchStalls:
    """CUPTI's records of a full command buffer in one process, ordered by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        thread: int64[n], the thread that was blocked.
        correlation: int64[n], of the API call that was blocked.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    correlation: Int64


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """NVTX ranges of one process, ordered by start, then end.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 where the range was still open at the capture's end.
        names: n names.
        thread: int64[n], the thread that opened it (Nsight's globalTid).
    """

    start_ns: Int64
    end_ns: Int64
    names: Sequence[str]
    thread: Int64


@dataclass(frozen=True, slots=True)
class Session:
    """Where and when a report was captured, as far as it tells.

    Attributes:
        host: the machine's name.
        num_cores: its logical processors.
        start_utc_ns: what the machine's clock showed at time 0 of the report, in ns since 1970.
        is_utc: whether the report's times are themselves ns since 1970.
        command_line: what was profiled.
        environment: its environment variables.
    """

    host: str | None
    num_cores: int | None
    start_utc_ns: int | None
    is_utc: bool
    command_line: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RangeTable:
    """All NVTX ranges of one process, ordered by start, longer ones first.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 where the range was still open at the capture's end.
        name: int64[n], indices into `names`.
        thread: int64[n], the thread that opened it (Nsight's globalTid).
        nests: bool[n], whether it was pushed and popped, so that it nests with others of its
            thread; else it was started and ended, perhaps by another thread.
        names: the names of the whole report.
    """

    start_ns: Int64
    end_ns: Int64
    name: Int64
    thread: Int64
    nests: npt.NDArray[np.bool_]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.start_ns)


Section = str
SectionData = dict[str, object]


class Progress(Protocol):
    """Somebody who wants to know how far the reading is."""

    def expect(self, number: int, /) -> None:
        """Learn that so many rows more, or fewer, will be read."""

    def advance(self, number: int, /) -> None:
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

    @property
    def signatures(self) -> Signatures:
        """Kernels by name, grid and block, as `Kernels.signature` counts them."""

    @property
    def memory_kinds(self) -> Mapping[int, str]:
        """Labels of kinds of memory, such as `Pageable`, `Pinned` and `Device`."""

    @property
    def api_names(self) -> Mapping[int, str]:
        """Names of API calls without their version, such as `cudaLaunchKernel`."""

    def api_calls(self, process: int) -> ApiCalls | None:
        """Return the API calls of a process, or None where the report has no API calls."""

    def synchronizations(self, process: int) -> Synchronizations | None:
        """Return the synchronizations of a process, or None where the report has none."""

    def launch_stalls(self, process: int) -> LaunchStalls | None:
        """Return where launches of a process were blocked, or None where it is not exported."""

    def communication_calls(self, process: int) -> ProcessCalls:
        """Return who communicated what on the host, as NCCL's ranges and labels tell."""

    @property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        """The ranges of `instrument` by process, where it has some."""

    @property
    def counters(self) -> Counters:
        """Sampled counters of links; empty where nothing was sampled."""

    @property
    def has_unexported_stalls(self) -> bool:
        """Whether stalls were captured, but left out of the export."""

    def ranges(self, matching: re.Pattern[str]) -> dict[int, NamedRanges]:
        """Return the NVTX ranges by process whose whole name, or part of it, matches."""

    def range_table(self, process: int) -> RangeTable | None:
        """Return all NVTX ranges of a process, or None where it has none."""

    @property
    def thread_names(self) -> Mapping[int, str]:
        """Names of threads by globalTid, as far as the report tells them."""

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU where the report tells it."""

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU or its place on the PCI bus, where it is told."""

    def global_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where the report tells it."""

    @property
    def session(self) -> Session:
        """Where and when the report was captured."""

    def num_threads(self, process: int) -> int | None:
        """Return how many threads the process had, or None where the report does not tell."""

    def labelled_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where its labels tell it."""

    def contents(self) -> Mapping[str, int]:
        """Return the number of rows of each event table that is not empty."""

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""

    def close(self) -> None:
        """Release the file."""

    def release(self) -> None:
        """Let go of what can be read again, and most analyses do not need."""

    sections: tuple[Section, ...]

    def read_section(self, section: Section) -> SectionData:
        """Read."""

    def keep_section(self, section: Section, data: SectionData) -> None:
        """Keep."""

    def set_section_source(self, source: Callable[[Section], SectionData]) -> None:
        """Set."""

    def reopen(self) -> None:
        """Reopen."""
