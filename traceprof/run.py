"""A run: one or more reports of one training run, as ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from traceprof import intervals
from traceprof.clocks import Clocks, seeded
from traceprof.communication import CommunicationPatterns, function_name
from traceprof.launches import launching_calls
from traceprof.recognition import Report, numbered, rank_of_environment, rank_of_file, runs_of
from traceprof.steps import StepRanges, StepWindows, find_steps, step_windows
from traceprof.trace import schema
from traceprof.trace.reader import NULL

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals
    from traceprof.trace.model import ApiCalls, Operations, RankKey, RankOperations, Trace

    Mask = npt.NDArray[np.bool_]
    Label = Callable[[int], str]

Made = TypeVar("Made")


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
        gpu_id: the GPU's uuid, else its place on the PCI bus, where the report tells it.
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
    gpu_id: str | None
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
        ids = np.array(sorted(self.communication_operations), np.int64)
        mask: Mask = np.isin(self.operations.kernels.name, ids)
        return mask

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
            stop = int(np.searchsorted(group.start_ns, time_ns, side="right"))
            running = np.flatnonzero(group.end_ns[:stop] > time_ns)
            if len(running):
                return label(int(running[-1]))
        return None

    def name_ending_at(self, time_ns: int) -> str | None:
        """Return the operation that ended at this very time, or None."""
        for group, label in zip(self.operations.groups, self._labels, strict=True):
            ending = np.flatnonzero(group.end_ns == time_ns)
            if len(ending):
                return label(int(ending[-1]))
        return None

    @property
    def _labels(self) -> tuple[Label, ...]:
        return (self._kernel_label, self._copy_label, lambda _: "memset", lambda _: "CUDA graph")

    def _kernel_label(self, index: int) -> str:
        return function_name(self.kernel_names[int(self.operations.kernels.name[index])])

    def _copy_label(self, index: int) -> str:
        kind = int(self.operations.copies.kind[index])
        return f"{self.copy_kinds.get(kind, 'unknown')} copy"


@dataclass(frozen=True, slots=True)
class Run:
    """The reports of one training run.

    Attributes:
        traces: the reports, in the order given.
        ranks: their ranks, in order of (report, pid, device).
        clocks: the reports' clocks, as their sessions' starts tell them.
        run_of: for each report, which run it is of: 0, unless reports of several runs were given.
        rank_source: what told the ranks' numbers: `nccl`, `mpi`, `environment`, `file name`, or
            `order`, where nothing does.
    """

    traces: Sequence[Trace]
    ranks: Sequence[Rank]
    clocks: Clocks
    run_of: Sequence[int]
    rank_source: str


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
    numbers, rank_source = _rank_numbers(found)
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
            gpu_id=trace.gpu_id(key),
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
    runs = runs_of([_report(trace) for trace in traces])
    clocks = seeded([trace.session for trace in traces], runs)
    return Run(tuple(traces), tuple(ranks), clocks, tuple(runs), rank_source)


def _rank_numbers(found: Sequence[tuple[int, Trace, RankKey]]) -> tuple[list[int], str]:
    """Return the ranks' numbers and what told them."""
    told = {
        "nccl": [trace.communication_calls(key.process).rank for _, trace, key in found],
        "mpi": [trace.global_rank(key.process) for _, trace, key in found],
    }
    reports = [report for report, *_ in found]
    if len(set(reports)) == len(reports):  # what is said of a report is said of its only rank
        told["environment"] = [
            rank_of_environment(trace.session.environment) for _, trace, _ in found
        ]
        told["file name"] = [rank_of_file(trace.path) for _, trace, _ in found]
    return numbered(told.items(), len(found))


def _report(trace: Trace) -> Report:
    groups = [each for of in trace.operations.values() for each in of.groups if len(each)]
    calls = [trace.communication_calls(process).nccl for process in _processes(trace)]
    return Report(
        path=trace.path,
        session=trace.session,
        start_ns=min((int(each.start_ns[0]) for each in groups), default=0),
        end_ns=max((int(each.end_ns.max()) for each in groups), default=0),
        communicators={
            name
            for each in calls
            for index, name in enumerate(each.communicators)
            if (each.world_size[each.communicator == index] != 1).all()
        },
    )


def _processes(trace: Trace) -> list[int]:
    return sorted({key.process for key in trace.operations})


def _union(*groups: tuple[Operations, Mask | None]) -> Intervals:
    starts: list[Int64] = []
    ends: list[Int64] = []
    for operations, chosen in groups:
        selected: Mask | slice = slice(None) if chosen is None else chosen
        starts.append(operations.start_ns[selected])
        ends.append(operations.end_ns[selected])
    return intervals.union(np.concatenate(starts), np.concatenate(ends))
