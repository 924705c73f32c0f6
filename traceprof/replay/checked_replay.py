"""A replay that is checked before anything is concluded from it.

Missing records leave traces: operations without a launch, event calls without a record, silences
that last as long as the GPU works, delays that end with another stream's work, and steps that are
replayed wrong with the delays of other steps. A gate measures each of them; one that fails refuses
the answers that it makes unsure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import breakdown, gpu_idle
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.steps import counted_steps, mean_ns, slowest_rank, step_ns
from traceprof.analyses.verdict.phases import name_of_counted_phase
from traceprof.analyses.verdict.savings import Gate, GateName
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.host.idle_causes import IdleCause, why_unknown
from traceprof.intervals import Float64
from traceprof.progress import UNHEARD, Progress
from traceprof.replay.assumptions.assumption import Assumption, Way, profilers_share, variants_of
from traceprof.replay.assumptions.run_change import RunChange, changed_steps
from traceprof.replay.graph.longest_path import CannotReplayError, CircularError
from traceprof.replay.graph.process_part import LOADING, ProcessFacts, unseen_pace
from traceprof.replay.graph.run_graph import (
    MapItems,
    RunGraph,
    by_number,
    in_this_process,
    measured_steps,
    replayed_steps,
    run_graph,
    steady_shares,
)
from traceprof.replay.graph.steps import Sample
from traceprof.replay.graph.stream_waits import MAX_LOST_RECORDS
from traceprof.replay.graph.weights import Reading, Variant
from traceprof.replay.results import Baseline, Refusal
from traceprof.run.step_ranges import StepsSource
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of
from traceprof.trace.model.kinds import UNIFIED_COPIES
from traceprof.trace.model.parts import Part
from traceprof.units import percent

MAX_UNLAUNCHED = 0.01
MAX_HIDDEN_HOST = 0.01
MAX_HIDDEN_STREAM = 0.03
MAX_UNEXPLAINED = 0.05
MAX_OFF_FLOOR = 0.05
MAX_BELOW_FLOOR = 0.001
"""Tolerance of an answer below a step's least time, as a share: rounding."""
MAX_MISFIT, MAX_MISFIT_WITHOUT_EVENTS = 0.02, 0.035
MIN_HELD_OUT = 6
"""With fewer steps, none is held out: the mean step is compared."""
_OF_SPREAD, _OF_STEP = 0.3, 0.005
_FAR_OFF = 10.0  # digits of a share beyond it say nothing


class _Meaning(Record, frozen=True):
    why: str  # what is wrong, with a place for the value
    part: Part | None  # what to record instead; None if no recording is known to help
    refuses: frozenset[str]  # kinds of changes that it makes unsure


ALL = frozenset(("host", "gpu", "streams", "ranks"))
MEANINGS: dict[GateName, _Meaning] = {
    "launches": _Meaning(
        "the report lacks the calls that launched {} of the operations, or these themselves (calls"
        " made before the capture began; pages of unified memory have none), so what delayed them"
        " is unknown",
        None,
        ALL,
    ),
    "records": _Meaning(
        "{} of the calls that record an event have no record: what streams waited for is unknown",
        Part.EVENT_RECORDS,
        frozenset(),  # what needs them says so, where there is a send or bucket
    ),
    "hidden-host-waits": _Meaning(
        "for {} of the time threads waited for the GPU in calls that are not in the report",
        None,
        ALL,
    ),
    "hidden-stream-waits": _Meaning(
        "for {} of the time streams waited for each other because of calls that are not in the"
        " report",
        Part.EVENT_RECORDS,
        ALL,
    ),
    "misfit": _Meaning("the replay is {} off the measurement", Part.EVENT_RECORDS, ALL),
    "unexplained": _Meaning(
        "the GPU was idle for {} of the time for reasons that are not in the report",
        Part.THREAD_SWITCHES,
        frozenset(("host",)),  # delays of the GPU are in the intervals
    ),
    "host-floor": _Meaning(
        "with GPU times at zero, the replayed step is {} off the host's own time: the report"
        " does not show how threads pace each other",
        None,
        ALL,
    ),
}


def gates_of(
    analysis: OpenAnalysis,
    graph: RunGraph,
    share: Float64,
    measured: Float64,
    replayed: tuple[Float64, Float64, Float64],
) -> tuple[Gate, ...]:
    """Return the gates of a replay.

    `share`, `measured`: float64[s], weights of steps in the mean, and their lengths in ns.
    `replayed`: lengths of replayed steps, float64[s] each: without unexplained delays, with delays
    of other steps, without GPU time.
    """
    facts = graph.facts
    lost = sum(rank.completeness.losses.num_lost for rank in analysis.run.ranks)
    num = max(sum(process.num_operations for process in facts), 1)
    unjoined = (sum(process.num_unlaunched for process in facts) + lost) / (num + lost)
    return (
        _gate("launches", unjoined, MAX_UNLAUNCHED),
        _gate("records", max(process.lost_records for process in facts), MAX_LOST_RECORDS),
        _gate(
            "hidden-host-waits",
            max(process.hidden_host_ns / process.span_ns for process in facts),
            MAX_HIDDEN_HOST,
        ),
        _gate(
            "hidden-stream-waits",
            max(process.hidden_stream_ns / process.span_ns for process in facts),
            MAX_HIDDEN_STREAM,
        ),
        _misfit(share, measured, *replayed[:2], has_events=graph.has_event_records),
        _gate("unexplained", _unexplained(analysis, facts), MAX_UNEXPLAINED),
        _gate("host-floor", _off_floor(graph, share, measured, replayed[2]), MAX_OFF_FLOOR),
    )


def floor_gate(below: float) -> Gate:
    """Return the gate that no answer is `below` a step's least time, as a share of it."""
    return _gate("floor", below, MAX_BELOW_FLOOR)


def failed(gates: tuple[Gate, ...], assumption: Assumption) -> Gate | None:
    """Return the first failed gate that an assumption depends on, or None."""
    return next(
        (
            gate
            for gate in gates
            if not gate.holds
            and gate.name in MEANINGS
            and MEANINGS[gate.name].refuses & assumption.changed
        ),
        None,
    )


def why_not(gate: Gate) -> str:
    """Return why a failed gate refuses answers."""
    if gate.value is None:
        value = "an unknown share"
    else:
        value = "over 1000 %" if abs(gate.value) > _FAR_OFF else percent(abs(gate.value))
    return MEANINGS[gate.name].why.format(value)


def how_to_collect(analysis: OpenAnalysis, gate: Gate) -> str:
    """Return what to do about a failed gate, or that nothing is known to help."""
    part, ranks = MEANINGS[gate.name].part, analysis.run.ranks
    num_pages = sum(is_in(rank.operations.copies.kind, UNIFIED_COPIES).sum() for rank in ranks)
    num_unlaunched = sum((calls < 0).sum() for rank in ranks for calls in rank.launched_by)
    if gate.name == "launches" and num_pages <= num_unlaunched / 2:
        return "record from the beginning of the training, or begin the capture between two steps"
    has_records = all(rank.trace.event_records(rank.process) for rank in ranks)
    if part is None or (part is Part.EVENT_RECORDS and has_records):
        return "no recorder is known to show more: ask for other assumptions, or compare two runs"
    return ranks[0].trace.how_to_collect(part)


def _gate(name: GateName, value: float | None, limit: float) -> Gate:
    value = None if value is None else float(value)  # numpy's own are not written to JSON
    return Gate(name, value, limit, value is not None and abs(value) <= limit)


def _misfit(
    share: Float64, measured: Float64, removed: Float64, held_out: Float64, *, has_events: bool
) -> Gate:
    """Return the gate of held-out steps; of the mean step if there are too few steps."""
    step = float(share @ measured)
    if not step:
        return _gate("misfit", None, MAX_MISFIT)
    if np.count_nonzero(share) < MIN_HELD_OUT:
        limit = MAX_MISFIT if has_events else MAX_MISFIT_WITHOUT_EVENTS
        return _gate("misfit", float(share @ removed) / step - 1, limit)
    spread = float(share @ (measured - step) ** 2) ** 0.5
    error = float(share @ (held_out - measured) ** 2) ** 0.5
    return _gate("misfit", error / step, max(_OF_SPREAD * spread / step, _OF_STEP))


def _off_floor(
    graph: RunGraph, share: Float64, measured: Float64, without: Float64
) -> float | None:
    """Return the distance of a step without GPU time from the host's own time, as a share.

    The host's own time is that between the launches of the steps' first operations, less waits.
    Where other threads load batches, it may be any time up to the step's.
    """
    needed = []
    for rank_steps in graph.steps:
        facts = next(facts for facts in graph.facts if rank_steps.rank in facts.ranks)
        waited = np.diff(intervals.covered_before(facts.host_waits, rank_steps.launched_ns))
        needed.append((np.diff(rank_steps.launched_ns) - waited)[:, np.newaxis].astype(np.float64))
    step = float(median_of(measured))
    if not step:
        return None
    # A rank that waits for others in between is as slow as the slowest of them.
    own = by_number(graph.steps, needed)[:, 0]
    brings_batches = any(process.brings_batches for process in graph.facts)
    if brings_batches or unseen_pace(graph.facts) is not None:
        # Who waits for a loader may do so with a quicker GPU, too.
        floor, low, high = (float(share @ ns) for ns in (without, own, measured))
        low = 0.0 if brings_batches else low  # the loader's thread may wait for the GPU instead
        return (floor - min(max(floor, low), high)) / step
    low = float(median_of(own))
    high = max(low, *(float(median_of(of_rank)) for of_rank in needed))
    floor = float(median_of(without))
    return (floor - min(max(floor, low), high)) / step


def _unexplained(analysis: OpenAnalysis, facts: tuple[ProcessFacts, ...]) -> float:
    """Return the largest share of a rank's time that is idle for no known reason.

    Idle time while operations were queued counts only if the replay does not explain it either.
    """
    late_ns = {rank: ns for process in facts for rank, ns in process.late_ns.items()}
    shares = [0.0]
    for result in analysis.measured.of(gpu_idle):
        _, silent = result.unknown_ns
        queued = result.by_cause[IdleCause.QUEUED]
        unknown = silent + min(queued, late_ns.get(result.rank, 0))
        shares.append(unknown / max(result.window_ns, 1))
    return max(shares)


class StepsUnder(Record, frozen=True):
    """Step lengths under an assumption."""

    steps: Float64  # float64[s, w], ns, by `Way`
    otherwise: tuple[Float64, ...] = ()  # float64[s, w], by other readings of the assumption
    paced: Float64 | None = None  # float64[s, w], if loading the data is the critical resource
    note: str = ""  # why loading may be


class CheckedReplay(Record, frozen=True):
    """Steps replayed under assumptions."""

    analysis: OpenAnalysis  # of the run
    graph: RunGraph  # of it, weighed
    baseline: Baseline  # the step as it is
    share: Float64  # float64[s], weights of steps in the mean, by their end; sum 1
    share_by_begin: Float64  # float64[s], weights by their begin
    as_it_is: Float64  # float64[s, w], replayed step lengths, ns, by `Way`
    communication: Float64  # float64[s], communication time, ns
    # float64[s, w n], ns, under n assumptions, without changes of edges between ranks
    lengths: Float64
    # float64[w (1 + n)], ns, the mean step by begin of the rank where it is longest: as it is, then
    # under the n assumptions
    own: Float64
    others: tuple[range, ...]  # places of each one's other readings among the n

    @property
    def brings_batches(self) -> bool:
        """Whether other threads than the training threads load batches: answers are then limits."""
        return any(part.brings_batches for part in self.graph.facts)

    @property
    def misfit_ns(self) -> float:
        """The change of the mean step without delays of unknown reason, ns."""
        kept, removed = (self.share @ self.as_it_is)[[Way.PLAIN, Way.WITHOUT_DELAYS]].tolist()
        return abs(float(removed - kept))

    def of(self, place: int, assumption: Assumption) -> StepsUnder | Refusal:
        """Return the step lengths under an assumption, or why they are not known."""
        under: StepsUnder | Refusal | None = assumption.refusal(self.analysis)
        gate = failed(self.baseline.gates, assumption)
        if gate is not None and not isinstance(under, Refusal):
            under = Refusal(why_not(gate), how_to_collect(self.analysis, gate))
        under = under or self._steps(place, assumption)
        if isinstance(under, Refusal):
            return under
        for other, reading in zip(self.others[place], assumption.others, strict=True):
            steps = self._steps(other, reading)
            if isinstance(steps, StepsUnder):
                under = replace(under, otherwise=(*under.otherwise, steps.steps))
        under = self._paced(assumption, under)
        if any(entry.is_at_least_communication for entry in assumption.entries):
            least = self.communication[:, np.newaxis]
            under = replace(under, steps=np.maximum(under.steps, least))
        return under

    def _paced(self, assumption: Assumption, under: StepsUnder) -> StepsUnder:
        """Add the step lengths if loading the data is the critical resource."""
        facts, otherwise = self.graph.facts, under.otherwise
        unseen = unseen_pace(facts)
        doubt = assumption.doubt(self.analysis) or unseen
        ran = max(part.workers_ran for part in facts) * self.baseline.step_ns
        loading = ran or max(part.may_load for part in facts) * self.baseline.step_ns
        loading = loading if assumption.keeps_loading else 0.0
        if unseen is not None and "waits" in assumption.changed:
            # Who asks for a batch earlier may get it earlier, and sleep no more.
            slept = max(part.unseen_pace_ns for part in facts) * self.share.max()
            otherwise = (*otherwise, np.maximum(under.steps - slept, ran))
        paced = np.minimum(self.as_it_is, loading)
        if doubt is not None:
            return replace(under, otherwise=otherwise, paced=self.as_it_is, note=doubt)
        if (under.steps < paced).any():
            paced = np.maximum(under.steps, paced)
            most = np.maximum(self.share @ under.steps, self.share @ self.as_it_is)
            paced -= np.maximum(self.share @ paced - most, 0)
            return replace(under, otherwise=otherwise, paced=paced, note=LOADING)
        return replace(under, otherwise=otherwise)

    def _steps(self, place: int, assumption: Assumption) -> StepsUnder | Refusal:
        low, high = len(Way) * place, len(Way) * (place + 1)
        if not assumption.changes_run:
            return StepsUnder(self.lengths[:, low:high])
        numbers = range(len(Way) + low, len(Way) + high)
        graph = replace(self.graph, weights=self.graph.weights.chosen(numbers))
        changes = assumption.run_changes(self.analysis, graph)
        if isinstance(changes, Refusal):
            return changes
        return self._changed(graph, changes)

    def _changed(self, graph: RunGraph, changes: Sequence[RunChange]) -> StepsUnder | Refusal:
        others = [
            [*changes[:index], other, *changes[index + 1 :]]
            for index, change in enumerate(changes)
            for other in change.otherwise
        ]
        ways = range(graph.weights.num)
        try:
            steps, *otherwise = [changed_steps(graph, ways, some) for some in (changes, *others)]
        except CircularError:
            return Refusal(
                "the ranks would wait for each other forever, as where one bucket holds gradients"
                " of two backward passes"
            )
        known = ~np.isnan(steps[:, 0])
        if not self.share[known].any():
            return Refusal("the ranks that count have none of the steps that count")
        for some in (steps, *otherwise):  # what is not known changes as the rest in the mean
            change = np.average((some - self.as_it_is)[known], 0, self.share[known])
            some[~known] = self.as_it_is[~known] + change
        return StepsUnder(steps, tuple(otherwise))

    def own_change_ns(self, place: int, assumption: Assumption) -> float:
        """Return the change of the slowest rank's mean step, ns: staggered ranks gain unequally."""
        if assumption.changes_run:
            return 0.0
        return float(self.own[len(Way) * (1 + place) + Way.PLAIN] - self.own[Way.PLAIN])

    def least_ns(self, place: int, assumption: Assumption) -> tuple[float, float]:
        """Return two lower bounds of a step under an assumption, in ns: a safe one and an estimate.

        The safe one is the longest sum of a stream's work. The estimate adds what other streams of
        the slowest rank compute meanwhile: kernels may be slower beside each other than alone.
        """
        if assumption.changes_run:
            return 0.0, 0.0
        covered_ns = mean_ns(slowest_rank(self.analysis.measured.of(breakdown)), "compute_ns")
        share, sums, covered = self.share_by_begin, [], []
        parts = [part for part in self.graph.remaining if len(part.stream_ns[0]) == len(share)]
        for reading in (place, *self.others[place]):
            column = len(Way) * (1 + reading)
            removed = max((float(share @ part.removed_ns[column]) for part in parts), default=0.0)
            sums.append(max((float(share @ part.stream_ns[column]) for part in parts), default=0.0))
            covered.append(max(covered_ns - removed, sums[-1]))
        return min(sums), min(covered)


def checked_replay(
    analysis: OpenAnalysis,
    assumptions: Sequence[Assumption],
    sample: Sample | None = None,
    *,
    map_items: MapItems = in_this_process,
    progress: Progress = UNHEARD,
) -> CheckedReplay | Refusal:
    """Replay a run as measured and under each assumption: the steps of a sample, or all."""
    refusal = cannot_be_replayed(analysis)
    if refusal is not None:
        return refusal
    replayed_as, others = _with_others([reading.prepared(analysis) for reading in assumptions])
    of_profiler = profilers_share(analysis)
    variants = [
        variant for reading in (None, *replayed_as) for variant in variants_of(reading, of_profiler)
    ]
    try:
        graph = run_graph(
            analysis,
            [
                *variants,
                Variant(None, Reading(is_held_out=True)),
                Variant(None, Reading(has_gpu_time=False)),
            ],
            sample,
            map_items=map_items,
            progress=progress,
        )
    except CannotReplayError as error:
        return Refusal(str(error), None)
    measured = measured_steps(graph)
    replayed, by_end, of_ranks = replayed_steps(graph)
    slowest = slowest_rank(analysis.measured.of(breakdown))
    share_by_begin, share_by_end = steady_shares(graph.steps, slowest)
    of_slowest = (
        lengths
        for steps, lengths in zip(graph.steps, of_ranks, strict=True)
        if steps.rank == slowest.rank and steps.is_marked and len(lengths) == len(replayed)
    )
    own = share_by_begin @ next(of_slowest, replayed)  # the mean if it lacks some of the steps
    removed, held_out, without = (replayed[:, way] for way in (Way.WITHOUT_DELAYS, -2, -1))
    baseline = _baseline(graph, measured, removed, share_by_begin, slowest)
    gates = gates_of(analysis, graph, share_by_begin, measured, (removed, held_out, without))
    num_measured = baseline.num_steps if sample is None else len(counted_steps(slowest))
    baseline = replace(baseline, num_measured=num_measured, gates=gates)
    refusing = [failed(gates, one) for one in assumptions if one.refusal(analysis) is None]
    if refusing and refusing[0] is not None and all(refusing):
        first = refusing[0]
        return Refusal(why_not(first), how_to_collect(analysis, first), baseline)
    return CheckedReplay(
        analysis=analysis,
        graph=graph,
        baseline=baseline,
        share=share_by_end,
        share_by_begin=share_by_begin,
        as_it_is=by_end[:, : len(Way)],
        communication=_communication(analysis, graph),
        lengths=by_end[:, len(Way) : -2],
        own=own,
        others=others,
    )


def _with_others(assumptions: Sequence[Assumption]) -> tuple[list[Assumption], tuple[range, ...]]:
    """Return the assumptions followed by their alternative readings, and where these are."""
    replayed, others = list(assumptions), []
    for assumption in assumptions:
        others.append(range(len(replayed), len(replayed) + len(assumption.others)))
        replayed += assumption.others
    return replayed, tuple(others)


def cannot_be_replayed(analysis: OpenAnalysis) -> Refusal | None:
    """Return why a run cannot be replayed, None if it may."""
    ranks = analysis.run.ranks
    if any(rank.device is None for rank in ranks):
        return Refusal("a rank has no GPU: what delayed its work is not recorded", None)
    if not ranks:
        return Refusal("no report holds a GPU operation", None)
    for rank in ranks:
        has_calls = rank.has_calls
        if analysis.run.has_report_per_process:
            rank.release()
            rank.trace.unload()
        if not has_calls:
            how = rank.trace.how_to_collect(Part.API_CALLS)
            return Refusal("the report has no CUDA API calls: what the host did is not known", how)
    # Where effects come before their causes, nothing seems to wait for the GPU.
    known = {result.rank: result.why_unknown for result in analysis.measured.of(gpu_idle)}
    for rank in ranks:
        cause = known[rank.rank] if rank.rank in known else why_unknown(rank)
        if cause is not None:
            return Refusal(cause.reason, cause.how_to_collect)
    graphs = [rank for rank in ranks if len(rank.operations.graphs)]
    if graphs:
        how = graphs[0].trace.how_to_collect(Part.GRAPH_KERNELS)
        why = "CUDA graphs were recorded as a whole: what ran inside is not known"
        return Refusal(why, how)
    return refused_periods(analysis)


def refused_periods(analysis: OpenAnalysis) -> Refusal | None:
    """Return why periods cannot be replayed as steps; None if they can."""
    phases = {
        (result.num_periods, *Counter(step.phase for step in result.steps).items())
        for result in analysis.measured.of(breakdown)
        if result.steps_source is StepsSource.PERIOD
    }
    how = "mark steps, or use --no-period, which takes the training as one step"
    if len(phases) > 1:
        return Refusal(
            "no range marks steps, and kernels repeat a different number of times on different"
            " ranks",
            how,
        )
    if phases and any(rank.host_steps is None for rank in analysis.run.ranks):
        why = "no range marks steps, and the host launches several repetitions of a kernel at once"
        return Refusal(why, how)
    return None


def _baseline(
    graph: RunGraph, measured: Float64, replayed: Float64, share: Float64, slowest: BreakdownResult
) -> Baseline:
    step, whole_ns, subject = float(share @ measured), step_ns(slowest), slowest.unit.unit.one
    if counted_phase := name_of_counted_phase(slowest):
        subject += f" of the {counted_phase}"
    if not any(rank_steps.is_marked for rank_steps in graph.steps):
        whole_ns = max(whole_ns, round(step))  # GPUs of one process begin together
        subject = f"the {slowest.judged_kind}"
    misfit = float(share @ replayed) / step - 1 if step else 0.0
    num_steps, replayed_ns = int(np.count_nonzero(share)), round(whole_ns * (1 + misfit))
    return Baseline(whole_ns, replayed_ns, num_steps, num_steps, (), subject)


def _communication(analysis: OpenAnalysis, graph: RunGraph) -> Float64:
    """Return the mean communication time over ranks of each step, float64[s], ns."""
    results = {result.rank: result for result in analysis.measured.of(breakdown)}
    values = []
    for rank_steps in graph.steps:
        result = results[rank_steps.rank]
        by_number_ns = {step.number: step.measures.communication_ns for step in result.steps}
        column = [
            by_number_ns.get(number, 0) if rank_steps.is_marked else result.judged.communication_ns
            for number in rank_steps.number.tolist()
        ]
        values.append(np.array(column, np.float64)[:, np.newaxis])
    return by_number(graph.steps, values)[:, 0]
