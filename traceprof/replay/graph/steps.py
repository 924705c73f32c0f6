"""Steps: which are replayed, the nodes that limit them, and their lengths in a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses.breakdown import BreakdownResult, step_times
from traceprof.analyses.steps import judged_steps, phases
from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.replay.graph.columns import COMPUTE, Recorded
from traceprof.replay.graph.longest_path import CannotReplayError
from traceprof.replay.graph.process_graph import Process
from traceprof.run.opening import Rank, Run
from traceprof.run.rank import WindowKind
from traceprof.run.step_ranges import StepWindows
from traceprof.run.windows import training_of
from traceprof.structs import Record

MIN_STEPS = 10
"""So many steps are compared if there are as many, however many operations they have."""
MAX_OPERATIONS = 100_000
"""Operations of all ranks that are replayed at most, but no fewer than `MIN_STEPS` steps."""
MIN_LEAD = 2
"""Steps replayed before those that are compared: what the host is ahead by comes from them."""


class Sample(Record, frozen=True):
    """Consecutive steps, and the host's time in them."""

    steps: Mapping[int, StepWindows]  # of each rank, by its number, those that are replayed
    compared: tuple[int, int]  # the numbers of the first and the last step that are compared
    # the host's time by (report, process), ns of the report's own time
    spans: Mapping[tuple[int, int], tuple[int, int]]

    def span_of(self, rank: Rank) -> tuple[int, int]:
        """Return when the host of a rank's process was in these steps."""
        return self.spans[rank.report, rank.process]


def sample_of(
    run: Run, measured: Sequence[BreakdownResult], numbers: Mapping[int, Int64] | None = None
) -> Sample | None:
    """Choose steps of all ranks from the middle of the training, or of the judged `numbers`.

    None if these would not be fewer, or steps are unknown. Of several phases it is the longest.
    """
    of_rank = {result.rank: result for result in measured}
    steps = {rank.rank: _training_steps(rank, of_rank.get(rank.rank)) for rank in run.ranks}
    known = {number: windows for number, windows in steps.items() if windows is not None}
    if len(known) < len(steps) or not known:
        return None
    common = reduce(np.intersect1d, [windows.number for windows in known.values()])
    numbers = numbers or longest_phases(measured)
    judged = common if numbers is None else reduce(np.intersect1d, [common, *numbers.values()])
    if len(judged) == 0:
        return None
    num_operations = max(sum(len(rank.operations) for rank in run.ranks), 1)
    num = max(MAX_OPERATIONS * len(common) // num_operations, MIN_STEPS)
    begin, end = np.searchsorted(common, (judged[0], judged[-1])).tolist()
    end += 1
    if num < end - begin:
        begin += (end - begin - num) // 2
        end = begin + num
    # Where the last one ends is where the next one begins.
    low, high = max(begin - MIN_LEAD, 0), min(end + 1, len(common))
    if (low, high) == (0, len(common)) and numbers is None:
        return None
    first, last = common[low], common[high - 1]
    inside = {
        number: windows.chosen((windows.number >= first) & (windows.number <= last))
        for number, windows in known.items()
    }
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for rank in run.ranks:
        ranges, source = rank.host_steps, inside[rank.rank].source
        assert ranges is not None  # noqa: S101  (all ranks of a sample have steps)
        span = int(ranges.start_ns[source].min()), int(ranges.end_ns[source].max())
        others = spans.get((rank.report, rank.process), span)
        spans[rank.report, rank.process] = min(span[0], others[0]), max(span[1], others[1])
    return Sample(inside, (int(common[begin]), int(common[end - 1])), spans)


def longest_phases(results: Iterable[BreakdownResult]) -> dict[int, Int64] | None:
    """Return the numbers of the steps in the longest phase of each rank; None without phases."""
    numbers = {}
    for result in results:
        counted = next((phase for phase in phases(result) if phase.counts), None)
        if counted is not None:
            inside = [step.number for step in judged_steps(result) if step.phase == counted.phase]
            numbers[result.rank] = np.array(inside, np.int64)
    return numbers or None


def _training_steps(rank: Rank, result: BreakdownResult | None) -> StepWindows | None:
    """Return the training steps of a rank in order of time; None if unknown."""
    if result is not None and result.judged_kind in {WindowKind.TRAINING, WindowKind.SERVING}:
        steps = _measured_steps(rank, result)
        if steps is not None:
            return steps
    steps = rank.steps
    if steps is None or len(steps) == 0 or rank.host_steps is None:  # periods without API calls
        return None
    steps = steps.chosen(steps.start_ns >= training_of(rank).start_ns)
    rank.release()
    return steps if (np.diff(steps.number) > 0).all() else None


def _measured_steps(rank: Rank, result: BreakdownResult) -> StepWindows | None:
    """Return the steps of a breakdown; None if a number is not that of one range."""
    ranges, steps = rank.host_steps, [step for step in result.steps if step.is_training]
    if ranges is None or not steps:
        return None
    number = np.array([step.number for step in steps], np.int64)
    start, length = step_times(steps)
    order = np.argsort(ranges.number, kind="stable")
    in_order = ranges.number[order]
    if not (np.diff(in_order) > 0).all() or not (np.diff(number) > 0).all():
        return None
    source = order[np.searchsorted(in_order, number)]
    return StepWindows(number, start, start + length, source)


class RankSteps(Record, frozen=True):
    """Begins and ends of the s steps of one rank; without steps, of its training.

    They are operations, indices into `GpuWork`, and then nodes of the graph.
    """

    rank: int  # the rank's number
    number: Int64  # int64[s], the numbers of the steps
    limits: Int64  # int64[s + 1], where each step begins, and where the last one ends
    last: Int64  # int64[s], what ends last of the work that was launched within each step
    limits_ns: Int64  # int64[s + 1], when steps began and the last one ended, on the run's clock
    launched_ns: Int64  # int64[s + 1], when these operations were launched; else when they ran
    is_marked: bool  # whether the report has steps
    # int64[o], where the work of each stream is over, without steps: the training ends with the
    # last of them, whichever that is then
    others: Int64
    counts: bool = True  # whether its steps count

    def as_nodes(self, process: Process) -> RankSteps:
        """Return the same steps as nodes of the graph."""
        begin, end = self.limits[:-1], self.limits[-1:]
        limits = np.append(process.start_node(begin), process.end_node(end))
        last, others = process.end_node(self.last), process.end_node(self.others)
        return replace(self, limits=limits, last=last, others=others)

    def compared(self, sample: Sample) -> RankSteps:
        """Return those steps of a sample that are compared."""
        low, high = sample.compared
        inner = slice(*np.searchsorted(self.number, (low, high + 1)).tolist())
        limits = slice(inner.start, inner.stop + 1)
        return replace(
            self,
            number=self.number[inner],
            limits=self.limits[limits],
            last=self.last[inner],
            limits_ns=self.limits_ns[limits],
            launched_ns=self.launched_ns[limits],
        )


def begun_together(steps_by_rank: Sequence[RankSteps]) -> list[RankSteps]:
    """Let the trainings of ranks without steps begin with the first: one host launches all."""
    first = min(steps_by_rank, key=lambda rank_steps: int(rank_steps.limits_ns[0]))
    return [
        replace(
            rank_steps,
            limits=np.append(first.limits[:1], rank_steps.limits[1:]),
            limits_ns=np.append(first.limits_ns[:1], rank_steps.limits_ns[1:]),
            launched_ns=np.append(first.launched_ns[:1], rank_steps.launched_ns[1:]),
        )
        for rank_steps in steps_by_rank
    ]


def step_operations(rank: Rank, index: int, process: Recorded, sample: Sample | None) -> RankSteps:
    """Return the operations at which the steps of a rank begin and end.

    The steps are those of a sample, or of the training. `index`: of the rank, in the run.
    """
    work, shift = process.work, process.shift_ns
    own = np.flatnonzero(work.rank == index)
    steps: StepWindows | None
    if sample is not None:
        steps = sample.steps[rank.rank]
        end_ns = int(steps.end_ns[-1])
    else:
        training, steps = training_of(rank), rank.steps
        end_ns = training.end_ns
        if steps is not None:
            steps = steps.chosen(steps.start_ns >= training.start_ns)
            end_ns = int(steps.end_ns.max()) if len(steps) else end_ns  # more may follow
    if steps is not None and len(steps) > 0:
        limits = np.append(steps.start_ns, end_ns) + shift
        numbers = steps.number
    else:
        limits = np.array([training.start_ns, end_ns]) + shift
        numbers = np.zeros(1, np.int64)
    ended = own[work.end_ns[own] <= limits[-1]]
    if not len(ended):
        raise CannotReplayError(f"no operation of rank {rank.rank} was over before its steps were")
    by_start = own[np.argsort(work.start_ns[own], kind="stable")]
    begin = by_start[np.searchsorted(work.start_ns[by_start], limits[:-1])]
    last = ended[np.argmax(work.end_ns[ended])]
    if steps is not None and len(steps) > 0:
        of_steps, others = _last_of_steps(rank, process, own, steps.source), NO_NUMBERS
    else:
        latest = ended[np.lexsort((work.end_ns[ended], work.chain[ended]))]
        of_steps = np.array([last])
        others = latest[np.append(np.diff(work.chain[latest]) != 0, True)]
    call = work.call[np.append(begin, last)]
    launched = process.calls.start_ns[call]
    launched[-1] = process.calls.end_ns[call[-1]]
    return RankSteps(
        rank=rank.rank,
        number=numbers,
        limits=np.append(begin, last),
        last=of_steps,
        limits_ns=limits,
        launched_ns=np.where(call >= 0, launched, limits),
        is_marked=rank.host_steps is not None,
        others=others,
    )


def _last_of_steps(rank: Rank, process: Recorded, own: Int64, source: Int64) -> Int64:
    """Return the operation that ends last of those launched in each step, int64[s].

    On the stream that computes most, if every step uses it: a loader runs ahead.
    """
    ranges, work, shift = rank.host_steps, process.work, process.shift_ns
    assert ranges is not None  # noqa: S101  (there are steps)
    launched = own[work.call[own] >= 0]
    computes = launched[work.kind[launched] == COMPUTE]
    if len(computes):
        spent = np.bincount(work.chain[computes], work.length_ns[computes])
        busiest = launched[work.chain[launched] == int(np.argmax(spent))]
        called_ns = np.sort(process.calls.start_ns[work.call[busiest]] - shift)
        low, high = (
            np.searchsorted(called_ns, times[source]) for times in (ranges.start_ns, ranges.end_ns)
        )
        launched = busiest if (high > low).all() else launched
    called_ns = process.calls.start_ns[work.call[launched]] - shift
    order = np.argsort(called_ns, kind="stable")
    launched, called_ns = launched[order], called_ns[order]
    low = np.searchsorted(called_ns, ranges.start_ns[source])
    high = np.searchsorted(called_ns, ranges.end_ns[source])
    if (low == high).any():
        raise CannotReplayError(f"a step of rank {rank.rank} launched no operation")
    step_of, inside = intervals.pairs(low, high)
    order = np.lexsort((work.end_ns[launched[inside]], step_of))
    is_latest = np.append(np.diff(step_of[order]) != 0, True)
    return launched[inside[order[is_latest]]]
