"""A replay that is checked before anything is concluded from it.

Three gates stand before every answer. The replay of what was measured has to come out at what was
measured (`misfit`); delays without a known reason must not matter (`unexplained`); and the GPU must
matter: with all its times zero a step falls to what the host needs by itself (`host-floor`), for a
replay in which the GPU's times never count would fit as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses import breakdown, gpu_idle
from traceprof.analyses.steps.step_lengths import compute_ns, slowest_rank, step_ns
from traceprof.analyses.verdict.savings import Gate
from traceprof.host.idle_causes import why_unknown
from traceprof.replay.assumptions.assumption import Variant
from traceprof.replay.assumptions.run_change import CannotChange, changed_steps
from traceprof.replay.graph.longest_path import CircularError
from traceprof.replay.graph.run_graph import in_this_process, reweighed, run_graph
from traceprof.replay.graph.step_lengths import (
    by_number,
    measured_steps,
    replayed_steps,
    steady_shares,
)
from traceprof.run.steps.step_ranges import StepsSource
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.verdict.savings import GateName
    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.replay.assumptions.assumption import Assumption
    from traceprof.replay.assumptions.run_change import RunChange, StreamOrder
    from traceprof.replay.graph.longest_path import Float64
    from traceprof.replay.graph.run_graph import RunGraph, Share
    from traceprof.replay.graph.sample import Sample

MAX_MISFIT = 0.02
MAX_MISFIT_WITHOUT_EVENTS = 0.035
MAX_UNEXPLAINED = 0.05
MAX_OFF_FLOOR = 0.05
MAX_UNLAUNCHED = 0.01
"""The share of operations launched before the capture, above which nothing can be said."""


@dataclass(frozen=True)
class Baseline:
    """The step as it was, and as it is replayed.

    Attributes:
        step_ns: the mean of all steady steps of the rank where it is longest.
        replayed_ns: of the replayed ones; None where no replay was possible.
        num_steps: how many steady ones were replayed; 1 is the whole training where no steps are
            known.
        gates: the checks.
    """

    step_ns: int
    replayed_ns: int | None
    num_steps: int
    gates: tuple[Gate, ...]

    @property
    def misfit(self) -> float | None:
        """Replayed over measured, less 1."""
        return None if self.replayed_ns is None else self.replayed_ns / self.step_ns - 1


@dataclass(frozen=True)
class Refusal:
    """The reason for which a run cannot be replayed.

    Attributes:
        why: in a few words.
        how_to_collect: what to record so that it can, if that is known.
        baseline: the step as it is, where that much is known.
    """

    why: str
    how_to_collect: str | None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class StepsUnder:
    """The lengths of steps under an assumption.

    Attributes:
        steps: float64[s, w], ns: delays of unknown reason kept, and removed; who waits for
            communication waits for all before it on its stream; and where a report has no event
            records, streams wait for nothing but what was seen.
        otherwise: float64[s, w] each, the same by other ways to read the assumption.
        orders: of sends, on streams where it is another one.
        note: why there are other ways.
    """

    steps: Float64
    otherwise: tuple[Float64, ...] = ()
    orders: tuple[StreamOrder, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class CheckedReplay:
    """Steps replayed under assumptions; all gates hold.

    Attributes:
        analysis: of the run.
        graph: of it, weighed.
        baseline: the step as it is.
        share: float64[s], what each counts for in the mean step, by end: they sum to 1.
        share_by_begin: the same by begin.
        as_it_is: float64[s, w], the same replayed, in as many ways as `StepsUnder.steps`.
        communication: float64[s], how long somebody communicated in each.
        lengths: float64[s, w n], the same under each of n assumptions, but for what these change in
            how ranks meet.
        first: the column of the graph's weights that the first of these is.
        others: for each assumption that was asked, which of the n are other readings of it.
    """

    analysis: OpenAnalysis
    graph: RunGraph
    baseline: Baseline
    share: Float64
    share_by_begin: Float64
    as_it_is: Float64
    communication: Float64
    lengths: Float64
    first: int
    others: tuple[range, ...]

    def of(self, place: int, assumption: Assumption) -> StepsUnder | CannotChange:
        """Return the steps under one of the assumptions."""
        refusal = assumption.refusal(self.analysis)
        if refusal is not None:
            return refusal
        under = self._steps(place, assumption)
        if isinstance(under, CannotChange):
            return under
        for other, reading in zip(self.others[place], assumption.others, strict=True):
            steps = self._steps(other, reading)
            if isinstance(steps, StepsUnder):
                under = replace(under, otherwise=(*under.otherwise, steps.steps))
        doubt = assumption.doubt(self.analysis)
        if doubt is not None:
            under = replace(under, otherwise=(*under.otherwise, self.as_it_is), note=doubt)
        if assumption.is_at_least_communication:
            least = self.communication[:, np.newaxis]
            under = replace(under, steps=np.maximum(under.steps, least))
        return under

    def _steps(self, place: int, assumption: Assumption) -> StepsUnder | CannotChange:
        num_ways = self.as_it_is.shape[1]
        low, high = num_ways * place, num_ways * (place + 1)
        if not assumption.changes_run:
            return StepsUnder(self.lengths[:, low:high])
        numbers = range(self.first + low, self.first + high)
        graph = replace(self.graph, weights=self.graph.weights.chosen(numbers))
        changes = assumption.run_changes(self.analysis, graph)
        if isinstance(changes, CannotChange):
            return changes
        try:
            return _changed_steps(graph, changes)
        except CircularError:
            return CannotChange("the ranks would wait for each other forever")

    def least_ns(self, place: int, assumption: Assumption) -> float:
        """Return what a step takes at least under one of the assumptions.

        That is the longest sum of one stream's remaining work, and what the kernels of the rank
        whose step takes longest cover, less what they are taken to be faster. Kernels may run side
        by side that ran one after the other, but nothing says that they would be as fast then.
        """
        if assumption.changes_run:
            return 0.0
        share = self.share_by_begin
        parts = [one for one in self.graph.remaining if len(one.number) == len(share)]
        covered_ns = compute_ns(slowest_rank(self.analysis.measured.of(breakdown)))
        least = []
        for one in (place, *self.others[place]):
            column = self.first + self.as_it_is.shape[1] * one
            streams = [float(share @ part.stream_ns[:, column]) for part in parts]
            removed = [float(share @ part.removed_ns[:, column]) for part in parts]
            least.append(max([covered_ns - max(removed, default=0.0), *streams]))
        return min(least)

    def under(self, assumption: Assumption) -> CheckedReplay:
        """Replay the same steps under another assumption, if the graph's processes are kept."""
        replayed, others = _with_others([assumption])
        has_events = self.graph.has_event_records
        variants = [variant for one in replayed for variant in _variants(one, has_events)]
        graph = reweighed(self.graph, variants)
        lengths = replayed_steps(graph)[1]
        return replace(self, graph=graph, lengths=lengths, first=0, others=others)


def checked_replay(
    analysis: OpenAnalysis,
    assumptions: Sequence[Assumption],
    sample: Sample | None = None,
    *,
    keeps_processes: bool = False,
    share: Share = in_this_process,
) -> CheckedReplay | Refusal:
    """Replay a run as it was measured, and under each assumption by itself.

    Args:
        analysis: of a run whose reports are open.
        assumptions: what to replay.
        sample: the steps to replay; all where not given.
        keeps_processes: whether other assumptions will follow.
        share: shares the preparation among processes.
    """
    refusal = _impossible(analysis)
    if refusal is not None:
        return refusal
    has_events = all(rank.trace.event_records(rank.process) for rank in analysis.run.ranks)
    replayed_as, others = _with_others(assumptions)
    variants = [variant for one in (None, *replayed_as) for variant in _variants(one, has_events)]
    num_ways = len(_variants(None, has_events))
    try:
        graph = run_graph(
            analysis,
            [*variants, Variant(None, False, False)],
            sample,
            keeps_processes=keeps_processes,
            share=share,
        )
    except CircularError as error:
        why = f"calls and operations seem to wait for each other ({error})"
        return Refusal(why, None)
    num_unlaunched = sum(facts.num_unlaunched for facts in graph.facts)
    num_operations = sum(facts.num_operations for facts in graph.facts)
    measured = measured_steps(graph)
    replayed, by_end = replayed_steps(graph)
    slowest = slowest_rank(analysis.measured.of(breakdown))
    share_by_begin, share_by_end = steady_shares(graph.marks, slowest)
    baseline = _baseline(graph, measured, replayed, share_by_begin, step_ns(slowest))
    if num_unlaunched > MAX_UNLAUNCHED * num_operations:
        why = (
            f"the calls that launched {num_unlaunched} of {num_operations} operations are not in"
            " the report (made before the capture began; pages of unified memory have none): what"
            " held these operations is not known"
        )
        how = "record from the beginning of the training, or begin the capture between two steps"
        return Refusal(why, how, baseline)
    failed = [gate for gate in baseline.gates if not gate.holds]
    if failed:
        return Refusal(_why_not(failed[0]), _how_to(analysis, graph), baseline)
    return CheckedReplay(
        analysis=analysis,
        graph=graph,
        baseline=baseline,
        share=share_by_end,
        share_by_begin=share_by_begin,
        as_it_is=by_end[:, :num_ways],
        communication=_communication(analysis, graph),
        lengths=by_end[:, num_ways:-1],
        first=num_ways,
        others=others,
    )


def _with_others(
    assumptions: Sequence[Assumption],
) -> tuple[list[Assumption], tuple[range, ...]]:
    """Return assumptions with all other readings of them, and where the readings of each stand."""
    replayed, others = list(assumptions), []
    for one in assumptions:
        others.append(range(len(replayed), len(replayed) + len(one.others)))
        replayed += one.others
    return replayed, tuple(others)


def _changed_steps(graph: RunGraph, changes: Sequence[RunChange]) -> StepsUnder:
    """Return how long steps take with changes of how ranks meet, and by other ways to read them."""
    others = [
        [*changes[:index], other, *changes[index + 1 :]]
        for index, change in enumerate(changes)
        for other in change.otherwise
    ]
    ways = range(graph.weights.num)
    return StepsUnder(
        changed_steps(graph, ways, changes),
        tuple(changed_steps(graph, ways, other) for other in others),
        tuple(order for change in changes for order in change.orders),
    )


def _variants(assumption: Assumption | None, has_events: bool) -> list[Variant]:
    """Return the ways to weigh a run: what is not known of it as one may take it."""
    ways = [
        Variant(assumption),
        Variant(assumption, keeps_unexplained=False),
        Variant(assumption, has_whole_streams=True),
    ]
    return ways if has_events else [*ways, Variant(assumption, has_possible_waits=False)]


def _impossible(analysis: OpenAnalysis) -> Refusal | None:
    """Return why a run cannot be replayed, None where it may."""
    ranks = analysis.run.ranks
    if any(rank.device is None for rank in ranks):
        return Refusal("a rank has no GPU: what held its work back is not recorded", None)
    if not ranks:
        return Refusal("no report holds a GPU operation", None)
    without = [rank for rank in ranks if rank.calls is None or len(rank.calls) == 0]
    if without:
        how = without[0].trace.how_to_collect(Part.API_CALLS)
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
    return _refused_periods(analysis)


def _refused_periods(analysis: OpenAnalysis) -> Refusal | None:
    """Return why steps that nobody marked cannot be replayed, None where they can."""
    phases = {
        tuple(Counter(step.phase for step in result.steps).items())
        for result in analysis.measured.of(breakdown)
        if result.steps_source is StepsSource.PERIOD
    }
    how = "go without these steps (--no-period): the training is one step then; or mark steps"
    if len(phases) > 1:
        return Refusal("no range marks steps, and ranks differ in how often kernels return", how)
    if phases and any(rank.host_steps is None for rank in analysis.run.ranks):
        why = "no range marks steps, and the host launches several returns of a kernel at once"
        return Refusal(why, how)
    return None


def _baseline(
    graph: RunGraph, measured: Float64, replayed: Float64, share: Float64, step_ns: int
) -> Baseline:
    step = float(share @ measured)
    if not any(mark.is_marked for mark in graph.marks):
        step_ns = max(step_ns, round(step))  # GPUs of one process begin together
    kept, removed = (share @ replayed[:, :2]).tolist()
    has_events = graph.has_event_records
    limit = MAX_MISFIT if has_events else MAX_MISFIT_WITHOUT_EVENTS
    misfit = removed / step - 1 if step else None
    unexplained = abs(kept - removed) / kept if kept else None
    floor = _off_floor(graph, measured, replayed[:, -1])
    return Baseline(
        step_ns=step_ns,
        replayed_ns=round(step_ns * (1 + (misfit or 0.0))),
        num_steps=int(np.count_nonzero(share)),
        gates=(
            _gate("misfit", misfit, limit),
            _gate("unexplained", unexplained, MAX_UNEXPLAINED),
            _gate("host-floor", floor, MAX_OFF_FLOOR),
        ),
    )


def _gate(name: GateName, value: float | None, limit: float) -> Gate:
    return Gate(name, value, limit, value is not None and abs(value) <= limit)


def _off_floor(graph: RunGraph, measured: Float64, without: Float64) -> float | None:
    """Return by how much a step without GPU time is off what the host needs by itself.

    That is from the launch of one step's first operation to that of the next one's, less the waits
    of the threads that launch.
    """
    needed = []
    for mark in graph.marks:
        facts = next(facts for facts in graph.facts if mark.rank in facts.ranks)
        waited = np.diff(intervals.covered_before(facts.host_waits, mark.launched_ns))
        needed.append((np.diff(mark.launched_ns) - waited)[:, np.newaxis].astype(np.float64))
    step = float(np.median(measured))
    if not step:
        return None
    # A rank that waits for others in between is as slow as the slowest of them.
    low = float(np.median(by_number(graph.marks, needed)[:, 0]))
    high = max(low, *(float(np.median(of_rank)) for of_rank in needed))
    floor = float(np.median(without))
    return (floor - min(max(floor, low), high)) / step


def _why_not(gate: Gate) -> str:
    share = "unknown" if gate.value is None else f"{100 * gate.value:.1f} %"
    return {
        "misfit": f"the replay misses the measured step by {share}",
        "unexplained": f"delays without a recorded reason make {share} of the step",
        "host-floor": f"with GPU times at zero the replay misses the host's own time by {share}"
        ": some of what the host waits for is not recorded",
    }[gate.name]


def _how_to(analysis: OpenAnalysis, graph: RunGraph) -> str | None:
    if graph.has_event_records:
        return None
    return analysis.run.ranks[0].trace.how_to_collect(Part.EVENT_RECORDS)


def _communication(analysis: OpenAnalysis, graph: RunGraph) -> Float64:
    """Return how long somebody communicated in each step, ns, float64[s]: the mean over ranks."""
    by_rank: dict[int, dict[int, int]] = {}
    whole: dict[int, int] = {}
    for result in analysis.measured.of(breakdown):
        whole[result.rank] = result.judged.communication_ns
        by_rank[result.rank] = {
            step.number: step.measures.communication_ns for step in result.steps
        }
    values = []
    for mark in graph.marks:
        if mark.is_marked:
            column = [by_rank[mark.rank].get(number, 0) for number in mark.number.tolist()]
        else:
            column = [whole[mark.rank]] * len(mark.number)
        values.append(np.array(column, np.float64)[:, np.newaxis])
    communication: Float64 = by_number(graph.marks, values)[:, 0]
    return communication
