"""A run: one or more reports of one training run, as ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from traceprof import intervals
from traceprof.communication import CommunicationPatterns, function_name
from traceprof.launches import launching_calls
from traceprof.steps import StepRanges, StepWindows, find_steps, step_windows
from traceprof.trace import schema
from traceprof.trace.reader import NULL

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals
    from traceprof.trace.model import ApiCalls, Operations, RankOperations, Trace

    Mask = npt.NDArray[np.bool_]
    Label = Callable[[int], str]

Made = TypeVar("Made")
_FEW = 256


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of a report's time.

    Attributes:
        start_ns: its first nanosecond.
        end_ns: one past its last.
        is_whole: whether it is the rank's own, from its first operation to the end of its last.
    """

    start_ns: int
    end_ns: int
    is_whole: bool = False

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    def holds_start(self, start_ns: Int64) -> Mask:
        """Return what starts in the window, bool[n]; a rank's own holds its very end, too."""
        stop = self.end_ns + self.is_whole
        inside: Mask = (start_ns >= self.start_ns) & (start_ns < stop)
        return inside


@dataclass(frozen=True)
class Rank:
    """One process on one device of one report, with its operations told apart.

    Attributes:
        rank: the global rank where the report tells it, else a running number.
        report: index of the report in the run.
        process: the process within its report (Nsight's globalPid).
        pid: the operating system's process id.
        device: the CUDA ordinal as the process sees it.
        gpu: the GPU's name where the report tells it.
        trace: the report itself, for what only some analyses read.
        operations: all that the GPU did.
        kernel_names: demangled names by the ids in `operations.kernels.name`.
        communication_operations: operations (`AllReduce`, …) by the same ids.
        copy_kinds: labels by the ids in `operations.copies.kind`.
        step_ranges: the process's training steps on the host, None where it has none.
        peak_overrides: peak rates of links that the user knows better, GB/s by link.
    """

    rank: int
    report: int
    process: int
    pid: int
    device: int
    gpu: str | None
    trace: Trace
    operations: RankOperations
    kernel_names: Mapping[int, str]
    communication_operations: Mapping[int, str]
    copy_kinds: Mapping[int, str]
    step_ranges: StepRanges | None
    peak_overrides: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def is_communication_kernel(self) -> Mask:
        """Which kernels communicate, bool[kernels]."""
        return self.operations.kernels.are_named(self.communication_operations)

    @cached_property
    def is_peer_copy(self) -> Mask:
        """Which copies go from one GPU to another, bool[copies]."""
        copies = self.operations.copies
        peer_kinds = [
            kind for kind, label in self.copy_kinds.items() if label == schema.PEER_TO_PEER
        ]
        source, destination = copies.source_device, copies.destination_device
        known = (source != NULL) & (destination != NULL)
        mask: Mask = np.isin(copies.kind, np.array(peer_kinds, np.int64))
        is_peer: Mask = mask | (known & (source != destination))
        return is_peer

    @cached_property
    def compute(self) -> Intervals:
        """When a kernel that does not communicate ran."""
        kernels, graphs = self.operations.kernels, self.operations.graphs
        chosen = ~self.is_communication_kernel
        return _union((kernels, chosen), (graphs, None))

    @cached_property
    def communication(self) -> Intervals:
        """When a communication kernel or a peer copy ran."""
        return _union(
            (self.operations.kernels, self.is_communication_kernel),
            (self.operations.copies, self.is_peer_copy),
        )

    @cached_property
    def copy(self) -> Intervals:
        """When a copy that is no communication, or a memory set, ran."""
        return _union((self.operations.copies, ~self.is_peer_copy), (self.operations.memsets, None))

    @cached_property
    def busy(self) -> Intervals:
        """When the GPU did anything for this rank."""
        return intervals.merge(self.compute, self.communication, self.copy)

    @cached_property
    def exposed(self) -> Intervals:
        """When it communicated and did not compute."""
        return intervals.subtract(self.communication, self.compute)

    @cached_property
    def overlapped(self) -> Intervals:
        """When it communicated and computed."""
        return intervals.intersect(self.communication, self.compute)

    @cached_property
    def window(self) -> Window:
        """From the start of the first GPU operation to the end of the last."""
        groups = [each for each in self.operations.groups if len(each)]
        return Window(
            min(int(each.start_ns[0]) for each in groups),
            max(int(each.end_ns.max()) for each in groups),
            is_whole=True,
        )

    @cached_property
    def calls(self) -> ApiCalls | None:
        """The process's API calls; None where the report has none."""
        return self.trace.api_calls(self.process)

    @cached_property
    def launched_by(self) -> tuple[Int64, Int64, Int64, Int64]:
        """For kernels, copies, memsets and graphs, which of `calls` launched each; -1 for none."""
        kernels, copies, memsets, graphs = (
            np.full(len(group), -1, np.int64)
            if self.calls is None
            else launching_calls(group, self.calls)
            for group in self.operations.groups
        )
        return kernels, copies, memsets, graphs

    @cached_property
    def steps(self) -> StepWindows | None:
        """The training steps on this GPU; None where the report cannot tell them."""
        if self.step_ranges is None or self.calls is None:
            return None
        return step_windows(self.operations, self.launched_by, self.calls, self.step_ranges)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what was made under this name, making it on first use; `forget` lets go of it."""
        if name not in self.__dict__:
            self.__dict__[name] = make()
        made: Made = self.__dict__[name]
        return made

    def forget(self) -> None:
        """Let go of what was derived from the operations: it is made again when it is needed."""
        for name in self.__dict__.keys() - {each.name for each in fields(self)}:
            del self.__dict__[name]

    def name_at(self, time_ns: int) -> str | None:
        """Return what ran at a time: the operation that started last, or None."""
        for group, label in zip(self.operations.groups, self._labels, strict=True):
            index = _last(group, time_ns, lambda end: end > time_ns)
            if index >= 0:
                return label(index)
        return None

    def name_ending_at(self, time_ns: int) -> str | None:
        """Return the operation that ended at this very time, or None."""
        for group, label in zip(self.operations.groups, self._labels, strict=True):
            index = _last(group, time_ns, lambda end: end == time_ns)
            if index >= 0:
                return label(index)
        return None

    @property
    def _labels(self) -> tuple[Label, ...]:
        return (self._kernel_label, self._copy_label, lambda _: "memset", lambda _: "CUDA graph")

    def _kernel_label(self, index: int) -> str:
        return function_name(self.kernel_names[self.operations.kernels.name_id(index)])

    def _copy_label(self, index: int) -> str:
        kind = int(self.operations.copies.kind[index])
        return f"{self.copy_kinds.get(kind, 'unknown')} copy"


@dataclass(frozen=True, slots=True)
class Run:
    """The reports of one training run.

    Attributes:
        traces: the reports, in the order given.
        ranks: their ranks, in order of (report, pid, device).
    """

    traces: Sequence[Trace]
    ranks: Sequence[Rank]


def open_run(
    traces: Sequence[Trace],
    patterns: CommunicationPatterns | None = None,
    step_pattern: re.Pattern[str] | None = None,
    peak_overrides: Mapping[str, float] | None = None,
) -> Run:
    """Read the GPU operations of all reports and sort them into ranks.

    Args:
        traces: open reports of one run.
        patterns: what is communication; the built-in table where not given.
        step_pattern: the user's own pattern for the range around a training step.
        peak_overrides: peak rates of links that the user knows better, GB/s by link.
    """
    patterns = patterns or CommunicationPatterns()
    found = [
        (report, trace, key)
        for report, trace in enumerate(traces)
        for key in sorted(trace.operations, key=lambda key: (trace.pid(key.process), key))
    ]
    numbers = _rank_numbers([trace.global_rank(key.process) for _, trace, key in found])
    steps = [find_steps(trace, step_pattern) for trace in traces]
    operations = [patterns.operations(trace.kernel_names) for trace in traces]
    ranks = [
        Rank(
            rank=number,
            report=report,
            process=key.process,
            pid=trace.pid(key.process),
            device=key.device,
            gpu=trace.gpu_name(key),
            trace=trace,
            operations=trace.operations[key],
            kernel_names=trace.kernel_names,
            communication_operations=operations[report],
            copy_kinds=trace.copy_kinds,
            step_ranges=steps[report].get(key.process),
            peak_overrides=peak_overrides or {},
        )
        for number, (report, trace, key) in zip(numbers, found, strict=True)
    ]
    return Run(tuple(traces), tuple(ranks))


def _rank_numbers(global_ranks: Sequence[int | None]) -> list[int]:
    """Return the global ranks if all are known and none twice, else running numbers."""
    known = [each for each in global_ranks if each is not None]
    if len(set(known)) == len(global_ranks):
        return known
    return list(range(len(global_ranks)))


def _last(group: Operations, time_ns: int, holds: Callable[[Int64], Mask]) -> int:
    """Return the last operation that starts by a time and whose end meets a condition, else -1."""
    stop = int(np.searchsorted(group.start_ns, time_ns, side="right"))
    number = _FEW
    while stop:  # most often it is among the last ones
        first = max(stop - number, 0)
        found = np.flatnonzero(holds(group.ends(slice(first, stop))))
        if len(found):
            return first + int(found[-1])
        stop, number = first, 4 * number
    return -1


def _union(*groups: tuple[Operations, Mask | None]) -> Intervals:
    starts: list[Int64] = []
    ends: list[Int64] = []
    for operations, chosen in groups:
        selected: Mask | slice = slice(None) if chosen is None else chosen
        starts.append(operations.start_ns[selected])
        ends.append(operations.end_ns[selected])
    return intervals.union(np.concatenate(starts), np.concatenate(ends))
