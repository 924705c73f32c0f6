"""GPU operations by rank, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.structs import Record
from traceprof.trace.columns import Column, PackedSpans, pack
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import MemoryKind
from traceprof.trace.model.special_values import NULL

_NUM_LONGEST = 64  # kernels that are searched for those that overrun others
_MIN_COVERED = 3
_MANY_TIMES = 20  # the median of its signature
_MAX_OVERLAPPING = 0.01  # of the kernels of a stream that runs one after the other


class RankKey(Record, frozen=True, order=True):
    """One process on one device."""

    process: int  # identifies the process within its report
    device: int  # the CUDA ordinal as that process sees it


class Operations(PackedSpans, frozen=True):
    """GPU operations of one rank, ordered by start, then end."""

    packed_stream: Column  # n CUDA streams within the process
    # n ids shared with the API call that launched each, less 0, 1, 2, …; unique only within the
    # process; NULL (the smallest int64) if the export has none
    packed_ahead: Column

    @property
    def last_end_ns(self) -> int:
        """The end of all operations; there must be one."""
        return int(self.packed_length.add_to(self.starts.values).max())

    @property
    def stream(self) -> Int64:
        """The CUDA stream of each within the process, int64[n]."""
        return self.packed_stream.values

    @property
    def correlation(self) -> Int64:
        """The id that each shares with its launching call, int64[n]."""
        return self.packed_ahead.add_to(np.arange(len(self)))


class Kernels(Operations, frozen=True):
    """Kernels of one rank."""

    # n indices into `Trace.signatures`, kept without a base: equal for the same kernel launched
    # with the same grid and block
    packed_signature: Column
    name_of_signature: Int64  # int64[m], keys of `Trace.kernel_names`

    @property
    def signature(self) -> Int64:
        """The signature of each, int64[n]."""
        return self.packed_signature.values

    @property
    def name(self) -> Int64:
        """The keys of `Trace.kernel_names`, int64[n]."""
        return self.name_of_signature.take(self.packed_signature.kept)

    def name_id(self, index: int) -> int:
        """Return the key of one name."""
        return int(self.name_of_signature[self.packed_signature.kept[index]])

    def are_named(self, ids: Iterable[int]) -> Mask:
        """Return which kernels have one of these names, bool[n]."""
        chosen = is_in(self.name_of_signature, np.array(sorted(ids), np.int64))
        return chosen.take(self.packed_signature.kept)


class Signatures(Record, frozen=True):
    """Kernels by name, grid and block."""

    name: Int64  # int64[m], keys of `Trace.kernel_names`
    shape: Int64  # int64[m, 6], grid x, y, z and block x, y, z; NULL if the export lacks them


class Copies(Operations, frozen=True):
    """Memory copies or memory sets of one rank."""

    bytes: Int64  # int64[n]
    kind: Int64  # int64[n], values of `CopyKind`; NULL for memory sets
    source_device: Int64  # int64[n], of copies between devices; NULL if unknown, and for others
    # int64[n], of copies between devices; NULL if unknown, and for others
    destination_device: Int64
    source_memory: Int64  # int64[n], values of `MemoryKind`; NULL if unknown, and for memory sets
    destination_memory: Int64  # int64[n], values of `MemoryKind`; NULL if unknown

    @property
    def is_pageable(self) -> Mask:
        """Whether each is from or to pageable memory of the host, bool[n]."""
        pageable = MemoryKind.PAGEABLE
        return is_in(self.source_memory, pageable) | is_in(self.destination_memory, pageable)

    @property
    def is_memory_known(self) -> Mask:
        """Whether the kinds of both memories are known, bool[n]."""
        unknown = (NULL, MemoryKind.UNKNOWN)
        return ~(is_in(self.source_memory, unknown) | is_in(self.destination_memory, unknown))


class Overrun(Record, frozen=True):
    """A kernel that cannot have run as long as recorded: others of its stream ran meanwhile."""

    name: int  # a key of `Trace.kernel_names`
    start_ns: int
    recorded_ns: int  # its duration as recorded
    believed_ns: int  # that until the next kernel of its stream began
    num_covered: int  # how many kernels of its stream ran from start to end meanwhile


class RankOperations:
    """All GPU operations of one rank.

    Attributes:
        copies: memory copies, including peer copies.
        memsets: memory sets.
        graphs: CUDA graphs traced as a whole; the kernels inside are not recorded.
        overruns: kernels that end with the start of the next of their stream, not as recorded;
            known once `kernels` was used.
    """

    def __init__(
        self, kernels: Kernels, copies: Copies, memsets: Copies, graphs: Operations
    ) -> None:
        self._recorded = kernels
        self._kernels: Kernels | None = None
        self.overruns: tuple[Overrun, ...] = ()
        self.copies, self.memsets, self.graphs = copies, memsets, graphs

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    @property
    def kernels(self) -> Kernels:
        """Every kernel, communication or not: the same objects until `release`."""
        if self._kernels is None:
            self._kernels, overruns = _without_overruns(self._recorded)
            self.overruns = overruns or self.overruns
        return self._kernels

    @property
    def groups(self) -> tuple[Operations, ...]:
        """The four groups of operations."""
        return (self.kernels, self.copies, self.memsets, self.graphs)

    def parts(self, index: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """Yield for each group that has some of n operations its number, which, and their rows.

        `index`: int64[n], into the groups joined; -1 for none.
        """
        first = 0
        for number, group in enumerate(self.groups):
            which = np.flatnonzero((index >= first) & (index < first + len(group)))
            if len(which):
                yield number, which, index[which] - first
            first += len(group)

    def streams_of(self, index: Int64) -> Int64:
        """Return the streams of n operations, int64[n], by an index as in `parts`; -1 for none."""
        stream = np.full(len(index), -1, np.int64)
        for number, which, rows in self.parts(index):
            stream[which] = self.groups[number].packed_stream.at(rows)
        return stream

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """The start of the first and the end of the last operation; there must be one."""
        groups = [group for group in self.groups if len(group)]
        ends = [group.last_end_ns for group in groups]
        return min(group.starts.first for group in groups), max(ends)

    def release(self) -> None:
        """Release unpacked columns."""
        for group in (self._kernels, self.copies, self.memsets, self.graphs):
            if group is not None:
                group.starts.release()

    def moved(self, by_ns: int) -> RankOperations:
        """Return the same operations at other times."""
        kernels, copies, memsets, graphs = (
            replace(group, starts=pack(group.start_ns + by_ns)) for group in self.groups
        )
        moved = RankOperations(kernels, copies, memsets, graphs)  # type: ignore[arg-type]
        moved.overruns = self.overruns
        return moved


def _without_overruns(kernels: Kernels) -> tuple[Kernels, tuple[Overrun, ...]]:
    """Kernels without those that cover several later ones of their own stream, and those.

    Kernels of a stream run one after the other. Where nearly all do, one that lasts while three
    others begin and end has a wrong end. Those of one launch, a graph, may run side by side.
    """
    length, stream = kernels.packed_length.kept, kernels.packed_stream.kept
    if len(kernels) <= _MIN_COVERED:
        return kernels, ()
    num = min(_NUM_LONGEST, len(kernels))
    longest = np.sort(np.argpartition(length, -num)[-num:])
    start = kernels.start_ns
    ends = kernels.ends(longest)
    found: list[tuple[int, int, int]] = []
    for index, end_ns, stop in zip(
        longest.tolist(), ends.tolist(), np.searchsorted(start, ends).tolist(), strict=True
    ):
        if stop - index <= _MIN_COVERED:
            continue
        later = np.flatnonzero(stream[index + 1 : stop] == stream[index]) + index + 1
        later_ns = kernels.packed_length.at(later)
        is_covered = (later_ns > 0) & (start[later] + later_ns <= end_ns)
        num_covered = int(np.count_nonzero(is_covered))
        if num_covered >= _MIN_COVERED:
            found.append((index, int(start[later[0]]), num_covered))
    overruns = {}
    for index, next_ns, num_covered in found:
        if _is_wrong(kernels, index, [one for one, *_ in found]):
            recorded_ns = int(kernels.packed_length.at(np.array([index]))[0])
            begun_ns = int(start[index])
            overruns[index] = Overrun(
                kernels.name_id(index), begun_ns, recorded_ns, next_ns - begun_ns, num_covered
            )
    if not overruns:
        return kernels, ()
    believed = kernels.length_ns.copy()
    believed[list(overruns)] = [overrun.believed_ns for overrun in overruns.values()]
    return replace(kernels, packed_length=pack(believed)), tuple(overruns.values())


def _is_wrong(kernels: Kernels, index: int, covering: list[int]) -> bool:
    """Whether a kernel that covers others is an exception on its stream and of its kind."""
    correlation, stream = kernels.correlation, kernels.packed_stream.kept
    alike = np.flatnonzero(kernels.packed_signature.kept == kernels.packed_signature.kept[index])
    length = kernels.packed_length.at(alike)
    own_ns = int(kernels.packed_length.at(np.array([index]))[0])
    if len(alike) >= _MIN_COVERED and own_ns <= _MANY_TIMES * np.median(length):
        return False
    others = np.flatnonzero(stream == stream[index])
    if np.count_nonzero(correlation[others] == correlation[index]) > 1:  # a graph, or no ids
        return False
    others = others[~is_in(others, np.array(covering))]
    overlaps = kernels.start_ns[others[1:]] < kernels.ends(others[:-1])
    return bool(np.count_nonzero(overlaps) <= _MAX_OVERLAPPING * len(others))


_NO_NUMBERS = pack(NO_NUMBERS)
_NO_BASE = (_NO_NUMBERS,) * 4
NO_OPERATIONS = RankOperations(
    Kernels(*_NO_BASE, _NO_NUMBERS, NO_NUMBERS),
    Copies(*_NO_BASE, *[NO_NUMBERS] * 6),
    Copies(*_NO_BASE, *[NO_NUMBERS] * 6),
    Operations(*_NO_BASE),
)
"""The operations of a process without GPU work."""


PERCENT, BYTES_PER_MS, HZ = "percent", "bytes/ms", "Hz"
CLOCK = "clock"
"""The name of a GPU's clock among its samples."""


class LinkSamples(Record, frozen=True):
    """Samples of one link in one direction, ordered by time, without overlap."""

    link: str  # `nvlink`, `pcie` or `network`; `clock` of a GPU's clock
    direction: str  # `tx` or `rx`, seen from the GPU or the NIC; empty of a clock
    name: str | None  # of the NIC, else None
    unit: str  # `percent` of the link's peak, `bytes/ms` or `Hz`
    start_ns: Int64  # int64[n], the start of the sample's period
    end_ns: Int64  # int64[n], the time of the sample
    value: Int64  # int64[n], the mean over the period


class Counters(Record, frozen=True):
    """The sampled counters of a report."""

    # the samples of each GPU's links, by its number in the machine
    by_gpu: Mapping[int, tuple[LinkSamples, ...]]
    clocks: Mapping[int, LinkSamples]  # the samples of each GPU's clock, by the same number
    gpu_of_rank: Mapping[RankKey, int]  # that number by rank, if known
    network: tuple[LinkSamples, ...]  # the samples of the machine's NICs
    nics: tuple[str, ...]  # names of the machine's NICs, sampled or not
    has_gpu_samples: bool  # whether GPU metrics were sampled at all

    def clock_of(self, key: RankKey) -> LinkSamples | None:
        """Return the samples of the clock of a rank's GPU; None if there are none."""
        gpu = self.gpu_of_rank.get(key)
        return None if gpu is None else self.clocks.get(gpu)


NO_COUNTERS = Counters({}, {}, {}, (), (), has_gpu_samples=False)
