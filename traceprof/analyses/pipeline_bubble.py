"""Bubbles: the time in which the GPU of a pipeline stage waits for other stages, by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from traceprof import findings as f
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.remedies import HELD_UP
from traceprof.ranks.bubbles import PipelineBubbles, StageGaps, bubbles_of
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.passes import BACKWARD, FORWARD
from traceprof.ranks.pipelines import pipelines
from traceprof.structs import Record
from traceprof.trace.grouping import median_of
from traceprof.units import duration, percent

ID = "pipeline-bubble"
HOW_TO_COLLECT = (
    "record with the ranges of `instrument`, which name the peer of every send and receive,"
    " forwards and backwards: traceprof record -- python -m instrument SCRIPT"
)
_UNORDERED = "the bubbles of a pipeline cannot be measured: its messages could not be put in order"
NO_STAGES = "no ranks are known to be the stages of a pipeline"
MIN_WHOLE = 0.9
"""The share of a bubble from which on it is part of another finding's time."""


class PipelineBubbleMetrics(f.Metrics):
    """Numbers of `pipeline-bubble`."""

    bubble_ns: Annotated[
        f.Ns,
        "how long the stage waits for other stages: the impact, and the sum of"
        " the next four numbers",
    ]
    warm_up_ns: Annotated[
        f.Ns,
        "fill and drain: the bubble that the same order of passes leaves when all stages are equal",
    ]
    imbalance_ns: Annotated[f.Ns, "added by stages and micro-batches of unequal length"]
    transfer_ns: Annotated[f.Ns, "added by the time that messages take"]
    late_ns: Annotated[
        f.Ns, "the rest: launches, data or sends that came late, here or on another stage"
    ]
    communicating_ns: Annotated[
        f.Ns, "the part of `bubble_ns` in which a send or a receive was running; the rest was idle"
    ]
    stage: Annotated[f.Count, "the index of the rank in its pipeline, from 0"]
    num_stages: Annotated[f.Count, "the number of stages of the pipeline"]
    num_micro_batches: Annotated[
        f.Count | None, "the number of micro-batches of a step; null if it cannot be determined"
    ]
    num_chunks: Annotated[
        f.Count | None,
        "the number of parts of the model on each stage (virtual stages); null if unknown",
    ]
    schedule: Annotated[
        str | None,
        f.one_of("gpipe", "1f1b", "interleaved", "zero-bubble", None),
        "the schedule, by the order of forwards and backwards; null if it is"
        " another one or unknown",
    ]
    ideal_fraction: Annotated[
        f.Number | None,
        "the bubble of equal stages without transfer, as a share of their compute time: (stages -"
        " 1) / (micro-batches x chunks); null if unknown, and for zero-bubble",
    ]
    forward_ns: Annotated[f.Ns | None, "the median forward pass of the stage; null if unknown"]
    backward_ns: Annotated[f.Ns | None, "its median backward pass; null if unknown"]
    longest_stage: Annotated[
        f.Count | None,
        "the stage whose passes take longest in a step, from 0; null where stages are as good as"
        " equal",
    ]
    longest_rank: Annotated[f.Count | None, "the rank of that stage"]
    actual_fraction: Annotated[f.Number, "`bubble_ns` as a share of the time of the stage's passes"]
    coverage: Annotated[
        f.Fraction,
        "the share of the stages that were recorded, of those that are known to be there: 1 if"
        " none exchanges messages with a rank that was not recorded",
    ]


_MIN_LONGER = 0.05  # by which a stage must be longer than the others to be named
_MIN_PART = 0.1  # of the bubble, from which on a part is worth advice, and a replay


def _imbalance(group: Sequence[f.Finding]) -> float:
    whole, part = (
        sum(int(finding.metrics[name] or 0) for finding in group)
        for name in ("bubble_ns", "imbalance_ns")
    )
    return f.share(part, whole)


def _removing(group: Sequence[f.Finding], _: object) -> tuple[str, ...]:
    return ("equal-stages",) if _imbalance(group) >= _MIN_PART else ()


FINDINGS = {
    ID: f.FindingKind(
        PipelineBubbleMetrics,
        removed_by=_removing,
        removed_share=_imbalance,
        changes_kernels=True,
        needs=f.Sight.COMMUNICATION,
    )
}

_MORE_MICRO_BATCHES = (
    "Split the batch into more micro-batches: fill and drain cost (stages -"
    " 1) / micro-batches of the compute time"
)
_MORE_CHUNKS = (
    "Give each stage several parts of the model: --num-layers-per-virtual-pipeline-stage in"
    " Megatron-LM, torch.distributed.pipelining.ScheduleInterleaved1F1B (PyTorch 2.5 and later)."
    " With n parts, fill and drain shrink to one n-th, and n times as much is sent"
)
_EQUAL_STAGES = (
    "Move layers from the stages that compute longest to those that wait most. Embedding and loss"
    " count, too: --account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split"
    " or --decoder-last-pipeline-num-layers in Megatron-LM, split points in"
    " torch.distributed.pipelining"
)
_HIDDEN_TRANSFER = (
    "Post receives before their input is needed, so that messages move while another micro-batch"
    " computes (Megatron-LM does so with virtual stages, unless --no-overlap-p2p-communication is"
    " set), and place neighbouring stages on GPUs with NVLink between them. See link-saturated,"
    " link-underused and nccl-p2p-slower-than-copy for the links"
)
_RECORD_ALL = "Record the other stages, too: the time that they take is lateness here"
_ADVICE = {
    "warm_up_ns": (_MORE_MICRO_BATCHES, _MORE_CHUNKS),
    "imbalance_ns": (_EQUAL_STAGES,),
    "transfer_ns": (_HIDDEN_TRANSFER,),
    "late_ns": (HELD_UP,),
}
_WORDS = {
    "warm_up_ns": "fill and drain",
    "imbalance_ns": "unequal stages",
    "transfer_ns": "transfer",
    "late_ns": "lateness",
}
PARTS = tuple(_WORDS)
"""The parts of a bubble, by the names of their metrics."""
PAGE = {
    "advice": f.bullets(line for lines_ in _ADVICE.values() for line in lines_),
    "min_part": percent(_MIN_PART),
}


class PipelineBubbleResult(Record, frozen=True):
    """The pipelines of a run."""

    ranks: RankComparison  # the comparison of the ranks
    pipelines: tuple[PipelineBubbles, ...]  # with their bubbles
    # of each pipeline, the numbers of each stage's finding
    metrics: tuple[tuple[PipelineBubbleMetrics, ...], ...]
    windows_ns: tuple[int, ...]  # by rank's index, the length of what is judged
    missing: tuple[f.NotApplicable, ...]  # why some pipelines have no bubbles


def run(measured: MeasuredRun) -> PipelineBubbleResult:
    """Find the pipelines of a run, and measure their bubbles, once."""
    return measured.cache.get(_run, measured)


def _run(measured: MeasuredRun) -> PipelineBubbleResult:
    passes, ranks = measured.passes, measured.ranks
    windows = tuple(rank.window_ns for rank in passes)
    if not any(len(rank) for rank in passes):
        return PipelineBubbleResult(ranks, (), (), windows, ())
    arrivals = [packed.unpacked for packed in measured.arrivals]
    runs = [measured.run.run_numbers[rank.report] for rank in passes]
    by_pipeline: list[PipelineBubbles] = []
    missing: list[f.NotApplicable] = []
    for pipeline in pipelines(ranks, passes, arrivals, runs):
        bubbles = bubbles_of(pipeline, ranks, passes, arrivals)
        if bubbles is None:
            missing.append(f.NotApplicable(ID, _UNORDERED, HOW_TO_COLLECT))
            continue
        by_pipeline.append(bubbles)
    longest = longest_stages([result.stages for result in by_pipeline])
    metrics = tuple(
        tuple(_metrics(result, ranks.ranks, longest.get(len(result.stages))))
        for result in by_pipeline
    )
    return PipelineBubbleResult(ranks, tuple(by_pipeline), metrics, windows, tuple(missing))


def _metrics(
    pipeline: PipelineBubbles, ranks: Sequence[int], longest: int | None
) -> list[PipelineBubbleMetrics]:
    schedule, num = pipeline.schedule, len(pipeline.stages)
    return [
        PipelineBubbleMetrics(
            bubble_ns=stage.bubble_ns,
            **dict(zip(PARTS, stage.parts_ns.sum(axis=0).tolist(), strict=True)),
            communicating_ns=stage.communicating_ns,
            stage=place,
            num_stages=num,
            num_micro_batches=schedule.num_micro_batches,
            num_chunks=schedule.num_chunks,
            schedule=schedule.name,
            ideal_fraction=schedule.ideal_fraction,
            forward_ns=_median_pass(stage, FORWARD),
            backward_ns=_median_pass(stage, BACKWARD),
            longest_stage=longest,
            longest_rank=None if longest is None else ranks[pipeline.stages[longest].member],
            actual_fraction=f.share(stage.bubble_ns, int((stage.end_ns - stage.start_ns).sum())),
            coverage=num / (num + pipeline.num_missing),
        )
        for place, stage in enumerate(pipeline.stages)
    ]


def _median_pass(stage: StageGaps, kind: int) -> int | None:
    chosen = stage.kind == kind
    return int(median_of((stage.end_ns - stage.start_ns)[chosen])) if chosen.any() else None


def longest_stages(pipelines: Sequence[Sequence[StageGaps]]) -> dict[int, int]:
    """Return the stage whose passes take longest, by the number of stages; none if none is far off.

    Of pipelines side by side the median counts: where only one is long, it is the rank that is
    slow, and not the stage.
    """
    took: dict[int, list[list[int]]] = {}
    for stages in pipelines:
        of_stages = took.setdefault(len(stages), [])
        of_stages.append([])
        for stage in stages:  # without names of forwards and backwards, all passes count
            is_named = (stage.kind == FORWARD) | (stage.kind == BACKWARD)
            chosen = is_named if is_named.any() else ~is_named
            of_stages[-1].append(int((stage.end_ns - stage.start_ns)[chosen].sum()))
    longest = {}
    for num, of_each in took.items():
        usual = median_of(np.array(of_each), axis=0)
        place = int(np.argmax(usual))
        if usual[place] > (1 + _MIN_LONGER) * float(median_of(np.delete(usual, place))):
            longest[num] = place
    return longest


def findings(result: PipelineBubbleResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the bubble of each stage by its share of the window."""
    claims: list[f.Finding | f.NotApplicable] = [*result.missing]
    for pipeline, metrics in zip(result.pipelines, result.metrics, strict=True):
        for stage, numbers in zip(pipeline.stages, metrics, strict=True):
            window_ns = result.windows_ns[stage.member]
            # A pipeline's training begins and ends with other stages' passes, before and after
            # the rank's own.
            passes_ns = int((stage.end_ns - stage.start_ns).sum())
            impact = min(numbers.bubble_ns, max(window_ns - passes_ns, 0))
            found = f.costly(
                ID,
                result.ranks.ranks[stage.member],
                window_ns,
                _title(numbers, metrics),
                impact,
                numbers,
                _evidence(result.ranks, stage),
                _advice(numbers),
            )
            claims += [replace(claim, part_of=_part_of(numbers)) for claim in found]
    return claims


def parts_of(metrics: PipelineBubbleMetrics) -> dict[str, int]:
    """Return the parts of a bubble by their metrics' names, largest first."""
    values = {name: getattr(metrics, name) for name in PARTS}
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _title(metrics: PipelineBubbleMetrics, stages: Sequence[PipelineBubbleMetrics]) -> str:
    parts = [
        f"{duration(value)} by {_WORDS[name]}"
        for name, value in parts_of(metrics).items()
        if value >= 0.01 * metrics.bubble_ns
    ]
    ideal, both, recorded = "", "", f"of {metrics.num_stages}"
    if _part_of(metrics) is None:
        communicating = percent(f.share(metrics.communicating_ns, metrics.bubble_ns))
        both = f"; {communicating} of it is exposed-communication, too, the rest gpu-idle"
    if metrics.coverage < 1:
        missing = round(metrics.num_stages / metrics.coverage) - metrics.num_stages
        recorded = f"of the {metrics.num_stages} recorded ones (at least {missing} more)"
    if metrics.coverage == 1 and metrics.ideal_fraction is not None:
        ideal = (
            f"; {percent(metrics.actual_fraction)} of its computing, where equal stages and no"
            f" transfer would leave {percent(metrics.ideal_fraction)}"
        )
    return (
        f"{_longest_first(stages)}Stage {metrics.stage} {recorded} waits"
        f" {duration(metrics.bubble_ns)} for other stages: {', '.join(parts)}{ideal}{both}"
    )


def _longest_first(stages: Sequence[PipelineBubbleMetrics]) -> str:
    """Name the stage for which the others wait, with what it takes; empty if none stands out."""
    longest = stages[0].longest_stage
    if longest is None:
        return ""
    times = []
    for name in ("forward", "backward"):
        took = [getattr(stage, f"{name}_ns") for stage in stages]
        if None not in took:
            others = sorted(ns for place, ns in enumerate(took) if place != longest)
            low, high = duration(others[0]), duration(others[-1])
            to = "" if low == high else f" to {high}"
            times.append(f"{name} {duration(took[longest])}, {low}{to} elsewhere")
    ends = {0: "The first stage", len(stages) - 1: "The last stage"}
    which = ends.get(longest, f"Stage {longest}")
    known = f" ({'; '.join(times)})" if times else ""
    return f"{which} (rank {stages[0].longest_rank}) computes longest{known}, the others wait. "


def _advice(metrics: PipelineBubbleMetrics) -> tuple[str, ...]:
    if metrics.coverage < 1 and metrics.late_ns >= _MIN_PART * metrics.bubble_ns:
        return (_RECORD_ALL,)
    return tuple(
        line
        for name, value in sorted(
            parts_of(metrics).items(),
            key=lambda part: metrics.longest_stage is None or part[0] != "imbalance_ns",
        )
        if value >= _MIN_PART * metrics.bubble_ns
        for line in _ADVICE[name]
        if not (name == "warm_up_ns" and metrics.schedule == "zero-bubble")
    )


def _part_of(metrics: PipelineBubbleMetrics) -> str | None:
    if metrics.communicating_ns >= MIN_WHOLE * metrics.bubble_ns:
        return "exposed-communication"
    if metrics.communicating_ns <= (1 - MIN_WHOLE) * metrics.bubble_ns:
        return "gpu-idle"
    return None


def _evidence(ranks: RankComparison, stage: StageGaps) -> tuple[f.Evidence, ...]:
    lengths = stage.parts_ns.sum(axis=1)
    longest = np.argsort(-lengths, kind="stable")[: f.MAX_EVIDENCE]
    longest = longest[lengths[longest] > 0]
    report = ranks.reports[stage.member]
    start, end = (
        ranks.clocks.to_report(report, times[longest])
        for times in (stage.gap_start_ns, stage.gap_end_ns)
    )
    return tuple(
        f.Evidence(
            low,
            high,
            f"{duration(int(lengths[gap]))}, most of it by"
            f" {_WORDS[PARTS[int(stage.parts_ns[gap].argmax())]]}",
        )
        for low, high, gap in zip(start.tolist(), end.tolist(), longest.tolist(), strict=True)
    )
