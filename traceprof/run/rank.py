"""A rank of a training run: what one process did, on one device or without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import numpy as np
from msgspec import field, structs
from msgspec.structs import force_setattr

from traceprof import hardware, intervals
from traceprof.intervals import Int32, Int64, Intervals, Mask
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import updates_parameters
from traceprof.run.cache import Cache, derived
from traceprof.run.completeness import (
    COMPLETE,
    Completeness,
    Losses,
    completeness_by_device,
    launches_in_vain,
)
from traceprof.run.cpu_rank import CpuWork, cpu_work, text_at
from traceprof.run.guard import optional
from traceprof.run.machines import NO_LINKS, KnownLinks
from traceprof.run.periods import PeriodSteps, period_steps
from traceprof.run.program import MainSpan, Program, first_launch, main_span, program_of
from traceprof.run.step_ranges import (
    NO_TRAINING_RANGES,
    StepRanges,
    StepWindows,
    TrainingRanges,
    host_step_windows,
    step_windows,
    steps_by_optimizer,
)
from traceprof.run.summary import RankInfo
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, numbered_rows
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import CopyKind, copy_label
from traceprof.trace.model.operations import Operations, RankKey, RankOperations
from traceprof.trace.model.special_values import NULL
from traceprof.trace.model.trace import Trace
from traceprof.units import counted, duration

Spans = tuple[tuple[Int64, Int64], ...]

_KERNELS, _COPIES, _MEMSETS = range(3)  # in `RankOperations.groups`; CUDA graphs come last
_NUM_TRIED_FIRST = 256
_MAX_OVERRUNS = 5


class WindowKind(str, Enum):
    """The kind of a window, as texts name it: a share is one `of the training`."""

    WHOLE = "window"
    TRAINING = "training"
    SERVING = "serving"  # of a model, in place of training
    STEPS = "steps"
    TIME_RANGE = "time range"
    PHASE = "phase"  # of the program

    def __str__(self) -> str:
        """Return the words after `of the`."""
        return self.value


class Window(Record, frozen=True):
    """A half-open span of a report's time."""

    start_ns: int  # its first nanosecond
    end_ns: int  # one past its last
    is_whole: bool = False  # whether it is all of the rank, from first start to last end
    kind: WindowKind = WindowKind.WHOLE  # its name in texts

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    def clip(self, covered: Intervals) -> Intervals:
        """Return the part of some time that lies in the window."""
        return intervals.clip(covered, self.start_ns, self.end_ns)

    def holds_start(self, start_ns: Int64) -> Mask:
        """Return which starts lie in the window, bool[n]; a whole one includes its very end."""
        stop = self.end_ns + self.is_whole
        return (start_ns >= self.start_ns) & (start_ns < stop)


class Rank(RankInfo, frozen=True, eq=False):
    """One process on one device of one report, with its operations classified.

    A process without GPU work is a rank, too, if it takes part in the training: see `CpuRank`.
    """

    trace: Trace  # the report itself, for data that only some analyses read
    operations: RankOperations  # all operations of the GPU
    kernel_names: Mapping[int, str]  # demangled names by the ids in `operations.kernels.name`
    communication_operations: Mapping[int, str]  # operations (`AllReduce`, …) by the same ids
    training_ranges: TrainingRanges = NO_TRAINING_RANGES  # ranges of its process
    # rates of links, GB/s, from the user or `doctor`
    peak_overrides: Mapping[str, float] = field(default_factory=dict)
    links: KnownLinks = NO_LINKS  # the known links of the GPU
    num_devices: int = 1  # number of devices that the process drives
    may_use_period: bool = False  # whether a period may be a step: no range marks any
    given_flops_per_step: float | None = None  # operations of a step of the rank, by the user
    # results that the ranks of its process share
    process_cache: Cache = field(default_factory=Cache)
    cache: Cache = field(default_factory=Cache)  # results derived from the operations

    def __post_init__(self) -> None:
        """Give each rank its own cache, also a copy with other operations."""
        force_setattr(self, "cache", Cache())

    def __repr__(self) -> str:
        """Return its number and its place, without its data."""
        return f"<{type(self).__name__} {self.rank} of {self.place}>"

    @property
    def key(self) -> RankKey:
        """The process and its device, the key of its GPU operations in the report.

        Raises ValueError: the rank has no device; callers must not ask for its key.
        """
        if self.device is None:
            raise ValueError(f"rank {self.rank} has no device")
        return RankKey(self.process, self.device)

    @property
    def operations_of_process(self) -> list[tuple[RankKey, RankOperations]]:
        """The GPU operations of its process on each device, by key."""
        keys = self.process_cache.get(_keys_of_process, self)
        own, others = self.operations, self.trace.operations
        return [(key, own if key.device == self.device else others[key]) for key in keys]

    @property
    def moved_ns(self) -> int:
        """By how much its GPU's times were moved to the host's clock: see `clocks`."""
        return 0 if self.device is None else self.trace.moved.get(self.key, 0)

    @derived
    def peaks(self) -> hardware.Peaks:
        """The peak rates of its links."""
        return hardware.peaks(self.gpu, self.peak_overrides)

    @derived
    def is_communication_kernel(self) -> Mask:
        """Mask of the kernels that communicate, bool[kernels]."""
        return self.operations.kernels.are_named(self.communication_operations)

    @derived
    def is_peer_copy(self) -> Mask:
        """Mask of the copies from one GPU to another, bool[copies]."""
        copies = self.operations.copies
        source, destination = copies.source_device, copies.destination_device
        known = (source != NULL) & (destination != NULL)
        mask: Mask = copies.kind == CopyKind.PEER_TO_PEER
        return mask | (known & (source != destination))

    @derived
    def compute(self) -> Intervals:
        """Time in which a kernel that does not communicate ran."""
        graphs = self.operations.graphs
        return _union(*self.counted[0], (graphs.start_ns, graphs.end_ns))

    @derived
    def communication(self) -> Intervals:
        """Time in which a communication kernel or a peer copy ran."""
        return _union(*self.communication_spans)

    @derived
    def copy(self) -> Intervals:
        """Time in which a copy that is not communication, or a memory set, ran."""
        return _union(*self.counted[2])

    @derived
    def busy(self) -> Intervals:
        """Time in which the GPU did anything for this rank."""
        return intervals.merge(self.compute, self.communication, self.copy)

    @derived
    def exposed(self) -> Intervals:
        """Time in which it communicated and did not compute."""
        return intervals.subtract(self.communication, self.compute)

    @derived
    def overlapped(self) -> Intervals:
        """Time in which it communicated and computed."""
        return intervals.intersect(self.communication, self.compute)

    @property
    def counted(self) -> tuple[Spans, Spans, Spans]:
        """Start and end of compute kernels, communication and other copies, each by start."""
        kernels, copies, memsets, _ = self.operations.groups
        return (
            (_span(kernels, ~self.is_communication_kernel),),
            self.communication_spans,
            (_span(copies, ~self.is_peer_copy), (memsets.start_ns, memsets.end_ns)),
        )

    @property
    def communication_spans(self) -> Spans:
        """Start and end of communication kernels and of peer copies, each by start."""
        kernels, copies, *_ = self.operations.groups
        return _span(kernels, self.is_communication_kernel), _span(copies, self.is_peer_copy)

    @derived
    def window(self) -> Window:
        """From the start of the first GPU operation to the end of the last."""
        return Window(*self.operations.span_ns, is_whole=True)

    @derived
    def program(self) -> Program:
        """The kind of program that its process ran."""
        kernels = self.operations.kernels
        ids = distinct_values(kernels.name_of_signature[kernels.packed_signature.distinct])
        return program_of(
            self.trace, self.process, [self.kernel_names[id_] for id_ in ids.tolist()]
        )

    @property
    def calls(self) -> ApiCalls | None:
        """The process's API calls; None if the report has none."""
        return self.cache.get(_calls, self)

    @property
    def has_calls(self) -> bool:
        """Whether the report holds API calls of the process, also once these are unloaded."""
        return self.process_cache.get(_has_calls, self)

    @property
    def host_order(self) -> Int32:
        """Place of each call among its process's, by start, end and id: int32[calls]."""
        return self.process_cache.get(_host_order, self.calls)

    @derived
    def launched_by(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Index into `calls` of the launch of each kernel, copy, memset and graph; -1 for none."""
        kernels, copies, memsets, graphs = (
            np.full(len(group), -1, np.int64)
            if self.calls is None
            else self.calls.that_launched(group)
            for group in self.operations.groups
        )
        return kernels, copies, memsets, graphs

    @property
    def num_graph_nodes(self) -> int:
        """The number of kernels that launches of CUDA graphs launched."""
        if not self.trace.calls_any("GraphLaunch") or (calls := self.calls) is None:
            return 0
        launches = self.trace.calls_named(calls, lambda name: "GraphLaunch" in name)
        call = self.launched_by[0]
        return int(np.count_nonzero(launches[call[call >= 0]]))

    @property
    def completeness(self) -> Completeness:
        """What its recording lacks."""
        if self.device is None:
            return COMPLETE
        return self.process_cache.get(completeness_by_device, self).get(self.device, COMPLETE)

    @property
    def losses(self) -> Losses:
        """The same in numbers, for readers of results."""
        losses = self.completeness.losses
        reasons = (*losses.reasons, *_on_overruns(self))
        return structs.replace(losses, lost_ns=self.lost.measure_ns, reasons=reasons)

    @derived
    def lost(self) -> Intervals:
        """Time without a recorded operation in which one that was lost may have run."""
        lost = self.completeness.lost
        if not len(lost):
            return lost
        inside = intervals.clip(lost, self.window.start_ns, self.window.end_ns)
        return intervals.subtract(inside, self.busy)

    @derived
    def not_idle(self) -> Intervals:
        """Time in which the GPU did anything, or may have: what is left is idle."""
        return intervals.merge(self.busy, self.lost)

    @derived
    def step_ranges(self) -> StepRanges | None:
        """The process's training steps on the host, marked or by its optimizer; None without."""
        marked, ends_ns = self.training_ranges.steps, self.training_ranges.optimizer_ends_ns
        if self.completeness.losses.is_unusable:
            return None
        if marked is not None or len(ends_ns) == 0 or self.calls is None:
            return marked
        first_ns = self.process_cache.get(_first_launch, self)
        return steps_by_optimizer(-intervals.BEYOND_NS if first_ns is None else first_ns, ends_ns)

    @derived
    def main_compute(self) -> MainSpan | None:
        """When its main compute ran, after any warm-up; None without main compute."""
        return main_span(
            self.operations,
            self.kernel_names,
            self.communication_operations,
            (self.launched_by[0], self.launched_by[3]),
            self.calls,
            self.training_ranges.warm_up,
        )

    @derived
    @optional("period", otherwise=lambda _: None)
    def periods(self) -> PeriodSteps | None:
        """The periods of its kernels, where they are its steps; None if ranges mark steps."""
        main = self.main_compute if self.may_use_period and self.device is not None else None
        if main is None:
            return None
        if self.completeness.losses.is_unusable:
            return None
        kernels = self.operations.kernels
        return period_steps(
            self.operations,
            self.is_communication_kernel,
            kernels.are_named(
                [key for key, name in self.kernel_names.items() if updates_parameters(name)]
            ),
            lambda index: self.operation_name(_KERNELS, index),
            self.launched_by,
            (main.start_ns, self.window.end_ns),
            main.whole_ns,
        )

    @derived
    @optional("period", otherwise=lambda rank: rank.step_ranges)
    def host_steps(self) -> StepRanges | None:
        """The steps on the host: ranges, or from the launch of one period to the next."""
        if self.step_ranges is not None or self.periods is None or self.calls is None:
            return self.step_ranges
        return self.periods.on_host(self.launched_by, self.calls)

    @derived
    @optional("steps", otherwise=lambda _: None)
    def steps(self) -> StepWindows | None:
        """The training steps on this GPU; None if the report does not show them."""
        if self.step_ranges is None or self.calls is None:
            return None if self.periods is None else self.periods.windows
        return step_windows(self.operations, self.launched_by, self.calls, self.step_ranges)

    def release(self) -> None:
        """Release data derived from the operations; it is derived again when needed.

        What the ranks of a process share stays: `release_process` releases it.
        """
        if self.num_devices <= 1:
            self.release_process()
        if _calls in self.cache and self.calls is not None:
            self.calls.starts.release()
        self.cache.release()
        self.operations.release()

    def release_process(self) -> None:
        """Release what the ranks of its process share, but for what its recording lacks."""
        self.process_cache.release_but(completeness_by_device)

    def name_at(self, time_ns: int) -> str | None:
        """Return the operation that ran at a time, of several the last to start, or None."""
        return self._name_of_last(time_ns, lambda end_ns: end_ns > time_ns)

    def name_ending_at(self, time_ns: int) -> str | None:
        """Return the operation that ended at this very time, or None."""
        return self._name_of_last(time_ns, lambda end_ns: end_ns == time_ns)

    def operation_name(self, group: int, index: int) -> str:
        """Return the readable name of an operation by its place in one of `operations.groups`."""
        if group == _KERNELS:
            return function_name(self.kernel_names[self.operations.kernels.name_id(index)])
        if group == _COPIES:
            return f"{copy_label(int(self.operations.copies.kind[index]))} copy"
        return "memset" if group == _MEMSETS else "CUDA graph"

    def time_by_operation(self, group: int, rows: Int64, time_ns: Int64) -> Counter[str]:
        """Times of operations, ns, summed by name; `rows`: places in one of `operations.groups`."""
        column = {_KERNELS: "name", _COPIES: "kind"}.get(group)
        kind = np.zeros(len(rows), np.int64)
        if column is not None:
            kind = getattr(self.operations.groups[group], column)[rows]
        _, first, which = np.unique(kind, return_index=True, return_inverse=True)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, which.reshape(-1), time_ns)
        spent: Counter[str] = Counter()
        for row, total in zip(rows[first].tolist(), sums.tolist(), strict=True):
            spent[self.operation_name(group, row)] += total
        return spent

    def _name_of_last(self, time_ns: int, is_met: Callable[[Int64], Mask]) -> str | None:
        for number, group in enumerate(self.operations.groups):
            index = _last(group, time_ns, is_met)
            if index >= 0:
                return self.operation_name(number, index)
        return None


class CpuRank(Rank, frozen=True, eq=False):
    """A process without GPU operations that takes part in the training, by `instrument`'s ranges.

    The work of its threads takes the place of a GPU's work; see `cpu_work`.
    """

    @property
    def losses(self) -> Losses:
        """Its launches, where other processes have operations and it has none."""
        num = launches_in_vain(self.trace).get(self.process, 0)
        return Losses(num_launches=num, num_lost=num)

    @derived
    def work(self) -> CpuWork:
        """Its work according to its ranges."""
        return cpu_work(self.trace.label_ranges[self.process])

    @derived
    def compute(self) -> Intervals:
        """Time in which a thread was in `forward`, `backward` or `optimizer step`, not waiting."""
        return self.work.compute

    @derived
    def communication(self) -> Intervals:
        """Time in which a thread communicated or waited for it, or an operation was in flight."""
        return self.work.communication

    @derived
    def window(self) -> Window:
        """From the start of the first range or step to the end of the last range."""
        ranges = self.step_ranges
        begins_ns = np.empty(0, np.int64) if ranges is None else ranges.start_ns
        start_ns = int(begins_ns.min(initial=self.work.start_ns))
        end_ns = int(begins_ns.max(initial=self.work.end_ns))
        return Window(start_ns, end_ns, is_whole=True)

    @property
    def counted(self) -> tuple[Spans, Spans, Spans]:
        """Start and end of its communication operations; it has no kernels and no copies."""
        return (), self.communication_spans, ()

    @property
    def communication_spans(self) -> Spans:
        """Start and end of its communication operations."""
        operations = self.work.operations
        return ((operations.start_ns, operations.end_ns),)

    @derived
    def step_ranges(self) -> StepRanges | None:
        """The training steps, marked or by the optimizer; None if there are neither."""
        ends_ns = self.training_ranges.optimizer_ends_ns
        return self.training_ranges.steps or steps_by_optimizer(self.work.first_compute_ns, ends_ns)

    @derived
    def steps(self) -> StepWindows | None:
        """The training steps: from the start of each one's range to the start of the next."""
        if self.step_ranges is None:
            return None
        return host_step_windows(self.step_ranges, self.work.end_ns)

    def name_at(self, time_ns: int) -> str | None:
        """Return the communication in progress at a time, of several the last to begin, or None."""
        return text_at(self.trace.label_ranges[self.process], self.work, time_ns)


def _on_overruns(rank: Rank) -> Iterator[str]:
    """Kernels that cannot have run as long as recorded, the longest first, in sentences."""
    overruns = sorted(rank.operations.overruns, key=lambda one: -one.recorded_ns)
    for one in overruns[:_MAX_OVERRUNS]:
        yield (
            f"{function_name(rank.kernel_names[one.name])} at {one.start_ns / 1e9:.6f} s is"
            f" recorded with {duration(one.recorded_ns)}, while"
            f" {counted(one.num_covered, 'kernel')} of its own stream ran: it is counted until the"
            f" next of them began, for {duration(one.believed_ns)}"
        )
    if len(overruns) > _MAX_OVERRUNS:
        yield f"{len(overruns) - _MAX_OVERRUNS} more kernels are recorded with such durations"


def _keys_of_process(rank: Rank) -> list[RankKey]:
    return sorted(key for key in rank.trace.operations if key.process == rank.process)


def _calls(rank: Rank) -> ApiCalls | None:
    return rank.trace.api_calls(rank.process)


def _has_calls(rank: Rank) -> bool:
    return rank.calls is not None and len(rank.calls) > 0


def _host_order(calls: ApiCalls | None) -> Int32:
    if calls is None:
        return np.empty(0, np.int32)
    return numbered_rows(calls.start_ns, calls.end_ns, calls.correlation).astype(np.int32)


def _first_launch(rank: Rank) -> int | None:
    assert rank.calls is not None  # noqa: S101  (callers have checked)
    devices = [operations for _, operations in rank.operations_of_process]
    first_ns = first_launch(
        devices,
        rank.kernel_names,
        rank.communication_operations,
        rank.calls,
        rank.training_ranges.warm_up,
    )
    for operations in devices:
        if operations is not rank.operations:
            operations.release()
    return first_ns


def _span(operations: Operations, chosen: Mask) -> tuple[Int64, Int64]:
    return operations.start_ns[chosen], operations.ends(chosen)


def _last(group: Operations, time_ns: int, is_met: Callable[[Int64], Mask]) -> int:
    stop = int(np.searchsorted(group.start_ns, time_ns, side="right"))
    num_tried = _NUM_TRIED_FIRST
    while stop:  # usually it is among the last ones
        first = max(stop - num_tried, 0)
        indices = np.flatnonzero(is_met(group.ends(slice(first, stop))))
        if len(indices):
            return first + int(indices[-1])
        stop, num_tried = first, 4 * num_tried
    return -1


def _union(*spans: tuple[Int64, Int64]) -> Intervals:
    return intervals.merge(*(intervals.union(start, end) for start, end in spans))
