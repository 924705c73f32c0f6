"""Assumptions about kernels: no slowdown by communication, half precision, equal work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import overlap_slowdown, pipeline_bubble, rank_work
from traceprof.analyses.full_precision_matmul import half_precision_shares
from traceprof.analyses.overlap_slowdown import slowed_kernels
from traceprof.ranks.passes import OTHER, WEIGHTS
from traceprof.replay.assumptions.run_change import CannotChange
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of, places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64
    from traceprof.ranks.passes import RankPasses
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations
    from traceprof.run.opening import Rank

    Reading = Literal["rate", "least", "most"]
    """Which attribute of `SlowedKernels` is taken for the rate."""

_ELSEWHERE = (
    "kernels that were never alone at their place are assumed to lose as much as their like"
)
_UNKNOWN = (
    "kernels whose like never ran alone are assumed to lose all their time beside communication"
)
_ALONE, _BESIDE = 0.05, 0.5  # of its time that communication has compute beside it
_MIN_SEEN = 3


def unlike_kernels(analysis: OpenAnalysis) -> str:
    """Return what is assumed of kernels that were not alone at their place; nothing without any."""
    results = analysis.measured.of(overlap_slowdown)
    parts = (
        _ELSEWHERE if any(result.num_elsewhere for result in results) else "",
        _UNKNOWN if any(result.num_unknown for result in results) else "",
    )
    return "; ".join(filter(None, parts))


def without_slowdown(process: Process, durations: Durations) -> Durations:
    """Remove the largest possible slowdown of kernels beside communication."""
    return with_shorter_communication(process, durations, 0.0, "most")


def with_shorter_communication(
    process: Process, durations: Durations, share: float, reading: Reading = "rate"
) -> Durations:
    """Scale the slowdown of kernels with the communication that remains beside them.

    Each stretch of communication begins when it did, and takes a share of its time: a kernel keeps
    its slowdown while communication still runs beside it.
    """
    work, before = process.work, durations.removed_slowdown_ns
    before = np.zeros(len(work)) if before is None else before
    lost = _slowed_ns(process, reading, share)
    unslowed = np.where(np.abs(lost) > np.abs(before), lost, before)
    # What is faster for another reason loses as much less.
    left = np.maximum(work.length_ns - unslowed, 0.0)
    length = durations.length_ns * (left / np.maximum(work.length_ns - before, 1.0))
    return replace(durations, length_ns=length, removed_slowdown_ns=unslowed)


def still_slowed_ns(process: Process, durations: Durations) -> Float64:
    """Return the slowdown of each operation by communication, ns, float64[operations]."""
    slowed = np.maximum(_slowed_ns(process, "rate"), 0.0)
    return (
        slowed
        if durations.removed_slowdown_ns is None
        else np.maximum(slowed - durations.removed_slowdown_ns, 0)
    )


def slowed_by_compute_ns(process: Process) -> Float64:
    """Return the slowdown of one rank's communication by compute, ns, float64[operations].

    Known where kernels of one name ran alone, and mostly beside compute, several times each; their
    sizes may differ.
    """
    work, names, lost = process.work, process.operation_names, np.zeros(len(process.work))
    for index, _ in process.ranks:
        rows = np.flatnonzero((work.rank == index) & (work.kind == COMMUNICATION))
        length = work.length_ns[rows].astype(np.float64)
        computing = (work.rank == index) & (work.kind == COMPUTE)
        busy = intervals.union(work.start_ns[computing], work.end_ns[computing])
        covered = intervals.covered_within(busy, work.start_ns[rows], work.end_ns[rows])
        beside = covered / np.maximum(length, 1)
        for name in distinct_values(names[rows]).tolist():
            of_name = names[rows] == name
            alone, most = (of_name & which for which in (beside < _ALONE, beside > _BESIDE))
            if min(alone.sum(), most.sum()) >= _MIN_SEEN:
                rate = 1 - median_of(length[alone]) / median_of(length[most])
                lost[rows[of_name]] = (max(rate, 0.0) * beside * length)[of_name]
    return lost


def _slowed_ns(process: Process, reading: Reading, share: float = 0.0) -> Float64:
    """Return the slowdown that goes with a share of the communication."""
    lost_ns = np.zeros(len(process.work))
    for index, rank in process.ranks:
        slowed = slowed_kernels(rank)
        row = process.work.rows_of_kernels(index, rank)[slowed.kernel]
        known = row >= 0
        lost = getattr(slowed, reading) * slowed.beside_ns
        if share:
            lost *= 1 - _still_beside(rank, slowed.kernel, share)
        lost_ns[row[known]] = lost[known]
    return lost_ns


def _still_beside(rank: Rank, kernel: Int64, share: float) -> Float64:
    """Return the share of the communication beside each kernel that is left, float64[n]."""
    kernels, whole = rank.operations.kernels, rank.communication
    start, end = kernels.start_ns[kernel], kernels.ends(kernel)
    shorter = np.rint(share * (whole.end_ns - whole.start_ns)).astype(np.int64)
    left = intervals.union(whole.start_ns, whole.start_ns + shorter)
    before = intervals.covered_within(whole, start, end)
    after = intervals.covered_within(left, start, end)
    return after / np.maximum(before, 1)


def with_half_precision(process: Process, durations: Durations) -> Durations:
    """Scale kernels by the lowest factor that autocast can reach."""
    work = process.work
    length = durations.length_ns.copy()
    for index, rank in process.ranks:
        shares = half_precision_shares(rank) or {}
        names = rank.operations.kernels.name_of_signature
        of_name = np.array([shares.get(id_, 1.0) for id_ in names.tolist()])
        rows = np.flatnonzero((work.rank == index) & (work.group == 0))
        if len(rows):
            signature = rank.operations.kernels.packed_signature.at(work.place[rows])
            length[rows] *= of_name[signature]
    return replace(durations, length_ns=length)


def not_in_full_precision(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why half precision cannot be assumed; None if it can of a rank."""
    shares = [half_precision_shares(rank) for rank in analysis.run.ranks]
    if any(shares):
        return None
    if all(of_rank is None for of_rank in shares):
        return CannotChange("whether the GPUs have tensor cores is not in the report")
    return CannotChange("no kernel is known to multiply matrices of FP32 numbers")


_NUM_KINDS = WEIGHTS + 1


def slower_ranks(analysis: OpenAnalysis) -> tuple[Mapping[int, float]]:
    """Return by which factor ranks are slower than their peers, by index of the rank in the run."""
    slower = rank_work.run(analysis.measured).slower
    return ({i: slower.get(rank.rank, 1.0) for i, rank in enumerate(analysis.run.ranks)},)


def with_equal_kernels(
    process: Process, durations: Durations, slower: Mapping[int, float]
) -> Durations:
    """Let the kernels of slower ranks take as long as those of their peers."""
    work, length = process.work, durations.length_ns.copy()
    for index, _ in process.ranks:
        length[(work.rank == index) & (work.kind == COMPUTE)] /= slower[index]
    return replace(durations, length_ns=length)


def not_uneven(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why kernels cannot be made equal; None if the same ranks are always slower."""
    work = rank_work.run(analysis.measured)
    if all(row.peers is None for row in work.ranks):
        return CannotChange("no two ranks do the same work")
    if not work.excesses:
        return CannotChange("no rank's kernels take significantly longer than those of the others")
    if work.is_changing:
        return CannotChange("another rank is the longest each time")
    return None


class StageFactors(Record, frozen=True):
    """Factors on the times of a stage's kernels that make all stages equal."""

    passes: RankPasses  # the n passes of the stage
    factor: Float64  # float64[n], of the kernels of each pass
    otherwise: float  # of kernels of no pass that is known on all stages

    def at(self, launch_ns: Int64, end_ns: Int64) -> Float64:
        """Return the factors of k kernels, float64[k].

        Their launching calls began at `launch_ns`, by the report's clock; they ended at `end_ns`.
        """
        place = np.searchsorted(self.passes.launched_ns, launch_ns, side="right") - 1
        is_inside = (place >= 0) & (end_ns <= self.passes.end_ns[place])
        return np.where(is_inside, self.factor[place], self.otherwise)


def equal_stages(analysis: OpenAnalysis) -> tuple[Mapping[int, StageFactors]]:
    """Return the factors of the stages of all pipelines, by index of the rank in the run.

    A micro-batch's forward takes the mean of that forward over the stages, and its backward too.
    What no range calls either takes the mean of all such of the step.
    """
    ranks = {rank.rank: (index, rank) for index, rank in enumerate(analysis.run.ranks)}
    by_rank: dict[int, StageFactors] = {}
    for stages in filter(_are_labelled, _pipelines(analysis)):
        numbers = []
        for stage in stages:
            steps = ranks[stage.rank][1].host_steps
            known = np.empty(0, np.int64) if steps is None else steps.number
            numbers.append(np.append(known, -1)[stage.step])
        for stage, factors in zip(stages, stage_factors(stages, numbers), strict=True):
            by_rank[ranks[stage.rank][0]] = factors
    return (by_rank,)


def with_equal_stages(
    process: Process, durations: Durations, stages: Mapping[int, StageFactors]
) -> Durations:
    """Let the kernels of stages take as long as if all stages were equal."""
    work, calls = process.work, process.calls
    length = durations.length_ns.copy()
    for index, rank in process.ranks:
        if index in stages and rank.calls is not None:
            rows = np.flatnonzero((work.rank == index) & (work.kind == COMPUTE) & (work.call >= 0))
            call = calls.index[work.call[rows]]
            launch = rank.calls.start_ns[call]
            shift = calls.start_ns[work.call[rows]] - launch
            length[rows] *= stages[index].at(launch, work.end_ns[rows] - shift)
    return replace(durations, length_ns=length)


def without_stages(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why stages cannot be made equal; None if they are known."""
    pipelines = _pipelines(analysis)
    if not pipelines:
        return CannotChange(pipeline_bubble.NO_STAGES)
    if not all(map(_are_labelled, pipelines)):
        why = (
            "on some stage it is unknown which kernels belong to a forward and which to a backward"
        )
        return CannotChange(why, pipeline_bubble.HOW_TO_COLLECT)
    return None


def _pipelines(analysis: OpenAnalysis) -> list[list[RankPasses]]:
    """Return the passes of the stages of each pipeline."""
    measured = analysis.measured
    return [
        [measured.passes[stage.member] for stage in pipeline.stages]
        for pipeline in pipeline_bubble.run(measured).pipelines
    ]


def _are_labelled(stages: Sequence[RankPasses]) -> bool:
    return all((stage.kind != OTHER).any() for stage in stages)


def stage_factors(stages: Sequence[RankPasses], numbers: Sequence[Int64]) -> Iterator[StageFactors]:
    """Yield the factors of each stage of a pipeline; `numbers`: the step of each of its passes."""
    num = len(stages)
    stage = np.repeat(np.arange(num), [len(passes) for passes in stages])
    kind = np.concatenate([passes.kind for passes in stages])
    compute = np.concatenate([passes.compute_ns for passes in stages])
    step = np.unique(np.concatenate(numbers), return_inverse=True)[1].reshape(-1)
    shape = (int(step.max()) + 1, _NUM_KINDS, num)
    at = np.ravel_multi_index((step, kind, stage), shape)
    counts = np.bincount(at, minlength=int(np.prod(shape))).reshape(shape)
    # Where a capture cuts a step, the n-th pass is not that of the same micro-batch on all stages.
    known = counts[:, OTHER + 1 :]
    is_whole = (known == known[:, :, :1]).all(axis=(1, 2)) & (counts.sum(axis=1) > 0).all(axis=1)
    number = np.where(kind == OTHER, 0, places(at)[0])
    keys = np.stack((step, kind, number))
    group = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    of_stage = group * num + stage
    totals = np.bincount(of_stage, compute, (int(group.max()) + 1) * num)
    equal = totals.reshape(-1, num).mean(axis=1)[group]
    own, chosen = totals[of_stage], is_whole[step]
    factor = np.divide(equal, own, out=np.ones(len(own)), where=own > 0)
    scaled = np.bincount(stage[chosen], (compute * factor)[chosen], num)
    total = np.bincount(stage[chosen], compute[chosen], num)
    otherwise = np.divide(scaled, total, out=np.ones(num), where=total > 0)
    factor = np.where(chosen, factor, otherwise[stage])
    for place, passes in enumerate(stages):
        yield StageFactors(passes, factor[stage == place], float(otherwise[place]))
