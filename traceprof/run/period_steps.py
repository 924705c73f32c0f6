"""Steps of a rank by its periods: from one return of a kernel to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from traceprof import intervals
from traceprof.errors import one_line
from traceprof.run.periods import MIN_COVERED, Items, Periods, Phase, find_periods
from traceprof.run.step_ranges import StepRanges, StepsSource, StepWindows
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.periods import Names
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import RankOperations

_MAX_NAME = 80  # characters in a sentence
MAX_PERIODS = 20_000
"""If there are more, those in the middle are steps: each costs 2 kB, also as JSON."""
GRAPH = "CUDA graph"
"""What begins a period that a graph begins, whose kernels are hidden."""


class Period(Struct, frozen=True, forbid_unknown_fields=True):
    """What a program, or a phase of it, repeats."""

    kernel: Annotated[str, "Where a period begins: a kernel, or `CUDA graph`."]
    num_kernels: Annotated[
        int,
        Meta(ge=1),
        "Number of kernels without communication; on the busiest stream only, if no other"
        " stream is regular.",
    ]
    is_only: Annotated[bool, "True if no other kernel of the period has the same name."]

    def __str__(self) -> str:
        """Return in words where it begins and ends."""
        kernels = f"{self.num_kernels} kernel{'s' * (self.num_kernels != 1)}"
        name = one_line(self.kernel, _MAX_NAME)
        if self.is_only:
            return f"from one {name} to the next ({kernels})"
        return f"a period of {kernels} that begins with {name}"


def about_periods(phases: Sequence[Period], layers: tuple[int, int] | None = None) -> str:
    """A sentence that says what a step is where no range marks any.

    `layers`: the numbers of the first and the last layer, where the periods are layers.
    """
    if layers is None:
        return f"No range marks steps; an iteration is {from_to(phases)}."
    first, last = layers
    return (
        f"No range marks steps; a period is a layer of one pass of the model, layers {first} to"
        f" {last}: {from_to(phases)}."
    )


def from_to(phases: Sequence[Period]) -> str:
    """Return the beginning and the end of the periods of each phase, in words."""
    steps = ", then ".join(dict.fromkeys(map(str, phases)))
    where = f", in {len(phases)} phases of the program" if len(phases) > 1 else ""
    return f"{steps}{where}"


class PeriodSteps(Record, frozen=True):
    """The periods of a rank as its steps, numbered from 0."""

    # the steps; the last one of each phase ends with its last operation. Of very many periods only
    # those in the middle of each phase
    windows: StepWindows
    phases: tuple[Period, ...]  # what returns in each phase of the program, in order of time
    span_ns: tuple[int, int]  # when the first of the n periods began, and the last one ended
    is_graph: Mask  # bool[n], whether a CUDA graph begins it
    begins: Int64  # int64[n], the index of the kernel or graph that begins it

    @property
    def num(self) -> int:
        """The number of periods; not all of them need be steps."""
        return len(self.begins)

    @property
    def is_part(self) -> bool:
        """Whether not all of them are steps."""
        return len(self.windows) < self.num

    def on_host(self, launched_by: Sequence[Int64], calls: ApiCalls) -> StepRanges | None:
        """Launch times of the periods; None if one call launched several.

        `launched_by` has the index of the call of each operation by group, -1 for none.
        """
        call = np.empty(len(self.begins), np.int64)
        for of_graphs, group in ((False, 0), (True, 3)):
            chosen = self.is_graph == of_graphs
            call[chosen] = launched_by[group][self.begins[chosen]]
        if (call < 0).any():
            return None
        start = np.sort(calls.start_ns[call])
        if not (np.diff(start) > 0).all():
            return None
        end = np.append(start[1:], max(self.span_ns[1], int(start[-1]) + 1))
        return StepRanges(np.arange(self.num), start, end)


def period_steps(
    operations: RankOperations,
    communicates: Mask,
    name_of: Callable[[int], str],
    span_ns: tuple[int, int],
    whole_ns: tuple[int, int],
) -> PeriodSteps | None:
    """Steps of a rank by the periods of its kernels; None if it has no period.

    Periods are searched among all kernels in order of start, since streams may take turns, and on
    the busiest stream alone, since others may run ahead: the more regular ones count. They are the
    program's only if they hold most of what ran on all streams.

    Kernels that `communicates` (bool[kernels]) are left out: they wait for other ranks. `name_of`:
    the readable name of a kernel by its index. `span_ns`: the training, in which periods are
    searched. `whole_ns`: the time most of which periods must hold.
    """
    kernels, graphs = operations.kernels, operations.graphs
    searched = min(span_ns[0], whole_ns[0]), span_ns[1]
    places = np.flatnonzero(~communicates & _within(kernels.start_ns, searched))
    of_graphs = np.flatnonzero(_within(graphs.start_ns, searched))
    signature = np.concatenate(
        (kernels.packed_signature.at(places) + 1, np.zeros(len(of_graphs), np.int64))
    )
    start = np.concatenate((kernels.start_ns[places], graphs.start_ns[of_graphs]))
    end = np.concatenate((kernels.ends(places), graphs.ends(of_graphs)))
    stream = np.concatenate((kernels.packed_stream.at(places), graphs.packed_stream.at(of_graphs)))
    place = np.concatenate((places, of_graphs))
    if len(of_graphs) and len(places):
        order = np.argsort(start, kind="stable")
        signature, start, end, stream, place = (
            column[order] for column in (signature, start, end, stream, place)
        )
    everything = signature, start, end
    first = int(np.searchsorted(start, span_ns[0]))
    signature, start, end, stream, place = (
        column[first:] for column in (signature, start, end, stream, place)
    )
    items = Items(_narrow(signature), start, end)
    periods, chosen = find_periods(items), np.arange(len(place))
    busiest = _busiest(stream, end - start)
    if busiest is not None:
        on_stream = items.chosen(busiest)
        alone = find_periods(replace(on_stream, signature=_narrow(on_stream.signature)))
        if alone is not None and (periods is None or alone.match > periods.match):
            periods, chosen = alone, np.flatnonzero(busiest)
    if periods is None:
        return None
    begins = chosen[np.concatenate([phase.begins for phase in periods.phases])]
    windows = _windows(periods)
    judged = intervals.union(windows.start_ns, windows.end_ns)
    names = np.append(kernels.name_of_signature, -1)[everything[0] - 1]
    is_begin = is_in(names, distinct_values(names[first + begins]))
    if not _holds_most(judged, whole_ns, *everything[1:], is_begin):
        return None
    is_graph = signature == 0

    def period(phase: Phase) -> Period:
        middle = int(phase.begins[len(phase.begins) // 2 - 1])
        inside = chosen[middle : middle + phase.lag]
        _, distinct = np.unique(signature[inside], return_index=True)
        same = [
            GRAPH if is_graph[index] else name_of(int(place[index]))
            for index in [inside[0], *inside[distinct]]
        ]
        return Period(same[0], phase.lag, same[1:].count(same[0]) == 1 == _count(signature[inside]))

    return PeriodSteps(
        windows.chosen(_middle(windows.phases)),
        tuple(map(period, periods.phases)),
        (int(windows.start_ns[0]), int(windows.end_ns.max())),
        is_graph[begins],
        place[begins],
    )


def _holds_most(
    judged: Intervals, whole_ns: tuple[int, int], start_ns: Int64, end_ns: Int64, is_begin: Mask
) -> bool:
    """Whether periods hold most of a rank's kernel time and of the launches that begin them.

    Else a part would be judged as the whole: one of several streams that run one after the other,
    or the launches of one size in a benchmark that tries many.

    `judged`: the time of all periods. `whole_ns`: the time most of which they must hold.
    `start_ns`, `end_ns`: of the kernels and graphs of all streams. `is_begin`: whether the name
    begins periods.
    """
    low, high = whole_ns
    judged = intervals.clip(judged, low, high)
    held_ns = intervals.total(intervals.covered_within(judged, start_ns, end_ns))
    length_ns = np.maximum(np.minimum(end_ns, high) - np.maximum(start_ns, low), 0)
    if held_ns < MIN_COVERED * intervals.total(length_ns):
        return False
    begun = start_ns[is_begin & _within(start_ns, whole_ns)]
    num_held = np.count_nonzero(intervals.covered_within(judged, begun, begun + 1))
    return bool(num_held >= MIN_COVERED * len(begun))


def about_part(num: int, num_periods: int) -> str:
    """Return a note on a rank some of whose periods are not steps."""
    return (
        f"no range marks steps, and its kernels repeat {num_periods} times: {num} of these"
        " periods, from the middle, are its steps"
    )


def _middle(phase: Int64) -> Mask:
    """Periods that become steps: at most `MAX_PERIODS`, the middle of each phase."""
    kept = np.ones(len(phase), np.bool_)
    if len(phase) <= MAX_PERIODS:
        return kept
    for number in distinct_values(phase).tolist():
        places = np.flatnonzero(phase == number)
        num = max(len(places) * MAX_PERIODS // len(phase), 1)
        first = (len(places) - num) // 2
        kept[places[:first]] = kept[places[first + num :]] = False
    return kept


def _count(signature: Int64) -> int:
    return int((signature == signature[0]).sum())


def _within(start_ns: Int64, span_ns: tuple[int, int]) -> Mask:
    inside: Mask = (start_ns >= span_ns[0]) & (start_ns < span_ns[1])
    return inside


def _narrow(values: npt.NDArray[np.integer]) -> Names:
    if not len(values):
        return values.astype(np.uint16)
    used = np.bincount(values) > 0
    number = np.cumsum(used) - 1
    narrow: Names = number.astype(np.min_scalar_type(int(number[-1])))[values]
    return narrow


def _busiest(stream: Int64, length_ns: Int64) -> Mask | None:
    """Operations on the stream with most time; None if there is one stream."""
    if not len(stream) or (stream == stream[0]).all():
        return None
    streams, which = np.unique(stream, return_inverse=True)
    busiest: Mask = which == np.bincount(which, length_ns, len(streams)).argmax()
    return busiest


def _windows(periods: Periods) -> StepWindows:
    start = [periods.items.start_ns[phase.begins] for phase in periods.phases]
    end = [
        np.append(begins[1:], periods.items.end_ns[phase.begins[-1] : phase.stop].max())
        for begins, phase in zip(start, periods.phases, strict=True)
    ]
    phase = np.repeat(np.arange(len(start)), [len(begins) for begins in start])
    number = np.arange(len(phase))
    ends = np.concatenate(end)
    # Beside the end of a phase on one stream another one may have begun.
    ends[:-1] = np.minimum(ends[:-1], np.concatenate(start)[1:])
    return StepWindows(number, np.concatenate(start), ends, number, StepsSource.PERIOD, phase)
