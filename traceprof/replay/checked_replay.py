"""A replay that is checked before anything is concluded from it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown, gpu_idle
from traceprof.analyses.steps.step_means import compute_ns, counted_steps, slowest_rank, step_ns
from traceprof.host.idle_causes import why_unknown
from traceprof.progress import UNHEARD
from traceprof.replay.assumptions.assumption import Variant, Way, profilers_share, variants_of
from traceprof.replay.assumptions.run_change import CannotChange, changed_steps
from traceprof.replay.gates import failed, gates_of, how_to_collect, is_paced, why_not
from traceprof.replay.graph.longest_path import CannotReplayError, CircularError
from traceprof.replay.graph.process_part import LOADING, unseen_pace
from traceprof.replay.graph.run_graph import (
    by_number,
    in_this_process,
    lacks_calls,
    measured_steps,
    replayed_steps,
    reweighed,
    run_graph,
    steady_shares,
)
from traceprof.replay.results import Baseline, Refusal
from traceprof.run.step_ranges import StepsSource
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64
    from traceprof.progress import Progress
    from traceprof.replay.assumptions.assumption import Assumption
    from traceprof.replay.assumptions.run_change import RunChange
    from traceprof.replay.graph.run_graph import MapItems, RunGraph
    from traceprof.replay.graph.steps import Sample
    from traceprof.replay.results import StreamOrder
    from traceprof.run.rank import Rank

_OF_WORK = frozenset(("host", "gpu"))  # kinds of changes to what takes time


class StepsUnder(Record, frozen=True):
    """Step lengths under an assumption."""

    steps: Float64  # float64[s, w], ns, by `Way`
    # float64[s, w] each, for alternative readings of the assumption
    otherwise: tuple[Float64, ...] = ()
    orders: tuple[StreamOrder, ...] = ()  # of sends, on streams where it differs
    # float64[s, w], if loading the data is the critical resource; None if it is not
    paced: Float64 | None = None
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
    # float64[s, w n], ns, under each of n assumptions, without their changes of edges between ranks
    lengths: Float64
    first: int  # first column of `lengths` in the graph's weights
    # places of each assumption's alternative readings among the n
    others: tuple[range, ...]
    # whether limits are wanted where threads wait for each other in unknown ways
    has_limits: bool = False

    def limit_ns(self, place: int, assumption: Assumption) -> float | None:
        """Return a lower bound of a step, in ns, when threads wait for each other in unknown ways.

        Even then, a stream runs its remaining work sequentially. None if no limit is wanted.
        """
        paced = self.has_limits and is_paced(failed(self.baseline.gates, assumption))
        # Without waits, and beside communication, kernels take another time than before.
        is_unsure = not assumption.changed <= _OF_WORK or bool(self.communication.any())
        if not paced or is_unsure or assumption.refusal(self.analysis) is not None:
            return None
        if assumption.of_communication:
            return self.baseline.step_ns
        return self.least_ns(place, assumption)[0]

    @property
    def brings_batches(self) -> bool:
        """Whether other threads than the training threads load batches: answers are then limits."""
        return any(part.brings_batches for part in self.graph.facts)

    def changes_nothing(self, assumption: Assumption) -> bool:
        """Return whether an assumption is about communication, and the run does not communicate."""
        return assumption.of_communication and not self.communication.any()

    def loader_ns(self, assumption: Assumption) -> float:
        """Return a lower bound of a step: the loader's time for a batch, in ns."""
        if not assumption.keeps_loading:
            return 0.0
        return max(part.loader_ns for part in self.graph.facts)

    def of(self, place: int, assumption: Assumption) -> StepsUnder | CannotChange:
        """Return the step lengths under an assumption, or why they are not known."""
        under: StepsUnder | CannotChange | None = assumption.refusal(self.analysis)
        gate = failed(self.baseline.gates, assumption)
        if gate is not None and not isinstance(under, CannotChange):
            under = CannotChange(why_not(gate), how_to_collect(self.analysis, gate))
        under = under or self._steps(place, assumption)
        if isinstance(under, CannotChange):
            return under
        for other, reading in zip(self.others[place], assumption.others, strict=True):
            steps = self._steps(other, reading)
            if isinstance(steps, StepsUnder):
                under = replace(under, otherwise=(*under.otherwise, steps.steps))
        under = self._paced(assumption, under)
        if assumption.is_at_least_communication:
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
        return self._changed(graph, changes)

    def _changed(self, graph: RunGraph, changes: Sequence[RunChange]) -> StepsUnder | CannotChange:
        others = [
            [*changes[:index], other, *changes[index + 1 :]]
            for index, change in enumerate(changes)
            for other in change.otherwise
        ]
        ways = range(graph.weights.num)
        try:
            steps, *otherwise = [changed_steps(graph, ways, some) for some in (changes, *others)]
        except CircularError:
            return CannotChange("the ranks would wait for each other forever")
        known = ~np.isnan(steps[:, 0])
        if not self.share[known].any():
            return CannotChange("the ranks that count have none of the steps that count")
        for some in (steps, *otherwise):  # what is not known changes as the rest in the mean
            change = np.average((some - self.as_it_is)[known], 0, self.share[known])
            some[~known] = self.as_it_is[~known] + change
        orders = tuple(order for change in changes for order in change.orders)
        return StepsUnder(steps, tuple(otherwise), orders)

    def least_ns(self, place: int, assumption: Assumption) -> tuple[float, float]:
        """Return two lower bounds of a step under an assumption, in ns: a safe one and an estimate.

        The safe bound is the longest sum of a stream's remaining work. The estimate also includes
        the time covered by kernels of the slowest rank, less their savings: a replay may overlap
        kernels that ran sequentially, but they might be slower then.
        """
        if assumption.changes_run:
            return 0.0, 0.0
        covered_ns = compute_ns(slowest_rank(self.analysis.measured.of(breakdown)))
        share, sums, covered = self.share_by_begin, [], []
        parts = [part for part in self.graph.remaining if len(part.number) == len(share)]
        for reading in (place, *self.others[place]):
            column = self.first + self.as_it_is.shape[1] * reading
            removed = max((float(share @ part.removed_ns[column]) for part in parts), default=0.0)
            sums.append(max((float(share @ part.stream_ns[column]) for part in parts), default=0.0))
            covered.append(max(covered_ns - removed, sums[-1]))
        return min(sums), min(covered)

    def under(self, assumption: Assumption) -> CheckedReplay:
        """Replay the same steps under another assumption, if the graph's processes are kept."""
        replayed, others = _with_others([assumption.prepared(self.analysis)])
        share = profilers_share(self.analysis)
        variants = [variant for reading in replayed for variant in variants_of(reading, share)]
        graph = reweighed(self.graph, variants)
        lengths = replayed_steps(graph)[1]
        return replace(self, graph=graph, lengths=lengths, first=0, others=others)


def checked_replay(
    analysis: OpenAnalysis,
    assumptions: Sequence[Assumption],
    sample: Sample | None = None,
    *,
    keeps_processes: bool = False,
    has_limits: bool = False,
    map_items: MapItems = in_this_process,
    progress: Progress = UNHEARD,
) -> CheckedReplay | Refusal:
    """Replay a run as measured, and under each assumption separately.

    Without a sample, all steps are replayed. `keeps_processes` allows other assumptions later
    (`CheckedReplay.under`), `has_limits` allows limits where threads wait for each other in
    unknown ways. `map_items` prepares the processes of the run; `progress` counts them.
    """
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
            [*variants, Variant(is_held_out=True), Variant(has_gpu_time=False)],
            sample,
            keeps_processes=keeps_processes,
            map_items=map_items,
            progress=progress,
        )
    except CannotReplayError as error:
        return Refusal(str(error), None)
    measured = measured_steps(graph)
    replayed, by_end = replayed_steps(graph)
    slowest = slowest_rank(analysis.measured.of(breakdown))
    share_by_begin, share_by_end = steady_shares(graph.steps, slowest)
    removed, held_out, without = (replayed[:, way] for way in (Way.WITHOUT_DELAYS, -2, -1))
    baseline = _baseline(graph, measured, removed, share_by_begin, slowest)
    gates = gates_of(analysis, graph, share_by_begin, measured, (removed, held_out, without))
    num_measured = baseline.num_steps if sample is None else len(counted_steps(slowest))
    baseline = replace(baseline, num_measured=num_measured, gates=gates)
    has_limits = has_limits and any(_num_launching(rank) > 1 for rank in analysis.run.ranks)
    refusing = [failed(gates, one) for one in assumptions if one.refusal(analysis) is None]
    if refusing and all(gate and not (has_limits and is_paced(gate)) for gate in refusing):
        (first, *_) = (gate for gate in refusing if gate is not None)
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
        first=len(Way),
        others=others,
        has_limits=has_limits,
    )


def _num_launching(rank: Rank) -> int:
    if rank.calls is None:
        return 0
    launching = np.concatenate(rank.launched_by)
    return len(distinct_values(rank.calls.packed_thread.at(launching[launching >= 0])))


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
    may_unload = analysis.run.has_report_per_process
    without = [rank for rank in ranks if lacks_calls(rank, may_unload=may_unload)]
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
    step, whole_ns, subject = float(share @ measured), step_ns(slowest), "a step"
    if not any(rank_steps.is_marked for rank_steps in graph.steps):
        whole_ns = max(whole_ns, round(step))  # GPUs of one process begin together
        subject = f"the {slowest.judged_kind}"
    misfit = float(share @ replayed) / step - 1 if step else 0.0
    num_steps, replayed_ns = int(np.count_nonzero(share)), round(whole_ns * (1 + misfit))
    return Baseline(whole_ns, replayed_ns, num_steps, num_steps, (), subject)


def _communication(analysis: OpenAnalysis, graph: RunGraph) -> Float64:
    """Return the mean communication time over ranks of each step, float64[s], ns."""
    by_rank: dict[int, dict[int, int]] = {}
    whole: dict[int, int] = {}
    for result in analysis.measured.of(breakdown):
        whole[result.rank] = result.judged.communication_ns
        by_rank[result.rank] = {
            step.number: step.measures.communication_ns for step in result.steps
        }
    values = []
    for rank_steps in graph.steps:
        if rank_steps.is_marked:
            column = [
                by_rank[rank_steps.rank].get(number, 0) for number in rank_steps.number.tolist()
            ]
        else:
            column = [whole[rank_steps.rank]] * len(rank_steps.number)
        values.append(np.array(column, np.float64)[:, np.newaxis])
    communication: Float64 = by_number(graph.steps, values)[:, 0]
    return communication
