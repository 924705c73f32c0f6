"""Communication that no compute hides, by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import structs
from msgspec.structs import replace

from traceprof import findings as f
from traceprof.analyses.exposed_communication import reasons
from traceprof.analyses.exposed_communication.reasons import PAGE
from traceprof.analyses.links.link_findings import longest
from traceprof.analyses.links.link_usage import peaks_by_scope
from traceprof.analyses.results import CostResult, facts_of
from traceprof.communication.exposure import Reason
from traceprof.communication.messages import num_inside
from traceprof.ranks.comparison import RankComparison
from traceprof.run.rank import CpuRank, Rank, Window
from traceprof.run.steady_steps import covered_per_step, only_step
from traceprof.trace.grouping import distinct_values
from traceprof.units import duration

__all__ = ["FINDINGS", "PAGE", "findings", "refined", "run"]

ID = "exposed-communication"


class ExposedCommunicationMetrics(f.Metrics):
    """Numbers of `exposed-communication`: of each `Reason`, `{reason}_ns`."""

    exposed_ns: Annotated[
        f.Ns,
        "the length of exposed communication, and the impact: the time that"
        " perfect overlap would save",
    ]
    fraction: Annotated[f.Fraction, "the share of communication time that is exposed"]
    overlap_efficiency: Annotated[
        f.Fraction | None,
        "(compute + communication − either) ÷ min(compute, communication); 1 where everything"
        " that can overlap does",
    ]
    waiting_ns: Annotated[
        f.Ns | None,
        "the part of `exposed_ns` before the last rank joined the operation; null where ranks are"
        " missing or clocks are too coarse, and then the other parts include it",
    ]
    late_launch_ns: Annotated[
        f.Ns | None,
        "the part that compute could have hidden if the host had launched the operation earlier",
    ]
    queued_ns: Annotated[
        f.Ns | None,
        "the part that compute could have hidden if the operation had not been"
        " ready but queued behind other communication",
    ]
    same_stream_ns: Annotated[
        f.Ns | None, "the part in operations on the same stream as the compute that comes next"
    ]
    needed_at_once_ns: Annotated[
        f.Ns | None,
        "the part in operations that compute waited for, with no other work to do meanwhile",
    ]
    late_input_ns: Annotated[
        f.Ns | None,
        "the part in operations that began as soon as they could, which compute could have hidden,"
        " had their input come earlier",
    ]
    transfer_ns: Annotated[
        f.Ns | None,
        "the part in such operations that is longer than all compute they could have run beside",
    ]
    unknown_ns: Annotated[
        f.Ns,
        "the part that nothing explains. Where the clocks of GPU and host disagree, and on ranks"
        " without a GPU, everything but `waiting_ns` is unknown, and the parts in between are null",
    ]
    step_cause: Annotated[
        str | None,
        f.one_of(*(reason.name.lower() for reason in Reason)),
        "what makes most of `per_step_ns`, where what makes most of `exposed_ns` is no considerable"
        " part of it; else null",
    ]
    busbw_gb_per_s: Annotated[
        f.Number | None,
        "the bus bandwidth of the operations with most exposed time, waiting left out; null where"
        " ranks or sizes are missing",
    ]
    peak_gb_per_s: Annotated[
        f.Positive | None, "what their link can carry in one direction; null where it is not known"
    ]
    per_step_ns: Annotated[
        f.Ns | None, "exposed time in the mean steady step; null where no step was found"
    ]
    coverage: Annotated[
        f.Fraction,
        "the share of GPU operations whose kind is known; a CUDA graph traced as a whole may"
        " hide communication",
    ]


def _removing(_: object, results: Sequence[ExposedCommunicationResult]) -> tuple[str, ...]:
    """Return what removes the finding: shorter communication slows less compute down, too."""
    is_shorter = any(reasons.SHORTER.intersection(result.remedies) for result in results)
    return ("communication=0" if is_shorter else "perfect-overlap",)


FINDINGS = {
    ID: f.FindingKind(
        ExposedCommunicationMetrics,
        part="exposed communication",
        removed_by=_removing,
        changes_kernels=True,
        needs=f.Sight.COMMUNICATION,
    )
}


class ExposedCommunicationResult(CostResult, frozen=True):
    """The communication of a rank in a window, and its part that nothing hides; times in ns."""

    communication_ns: int  # when the rank communicated
    compute_ns: int  # when it computed
    metrics: ExposedCommunicationMetrics  # the numbers of its finding
    num_operations: int  # communication operations that are inside the window at all
    # what is exposed of each operation, and why; None without a GPU
    operations: reasons.ExposedOperations | None
    # names of the operations that begin in the window, without a GPU
    host_operations: frozenset[str]
    has_gpu: bool  # whether the rank has one; otherwise ranges of its CPU were measured
    is_compute_known: bool  # whether it is known when the rank computed
    # by scope, of the links in a machine and of the network
    peaks_gb_per_s: Mapping[str, float | None]
    # how fast the operations with most exposed time are; None where not known, or where hardly any
    # of it is more than waiting
    rate: reasons.LinkRate | None = None

    @property
    def remedies(self) -> tuple[reasons.Remedy, ...]:
        """What can be done about it."""
        if self.operations is None:
            return reasons.cpu_remedies(self.host_operations)
        return reasons.remedies(
            self.operations, self.rate, is_pytorch=self.is_pytorch, has_compute=self.compute_ns > 0
        )


def run(rank: Rank, window: Window) -> ExposedCommunicationResult:
    """Measure a window of a rank."""
    exposed, communication, compute = (
        window.clip(covered) for covered in (rank.exposed, rank.communication, rank.compute)
    )
    communication_ns, compute_ns = communication.measure_ns, compute.measure_ns
    operations = None if rank.device is None else reasons.exposed_operations(rank, window)
    exposed_ns, possible_ns = exposed.measure_ns, min(compute_ns, communication_ns)
    num_graphs = len(rank.operations.graphs)
    num_known = sum(num_inside(spans, window) for spans in rank.counted) if num_graphs else 0
    metrics = ExposedCommunicationMetrics(
        exposed_ns=exposed_ns,
        fraction=f.share(exposed_ns, communication_ns),
        overlap_efficiency=(communication_ns - exposed_ns) / possible_ns if possible_ns else None,
        **_by_metric(operations, exposed_ns),  # type: ignore[arg-type]
        busbw_gb_per_s=None,
        peak_gb_per_s=None,
        per_step_ns=covered_per_step(rank, window, rank.exposed),
        coverage=num_known / (num_known + num_graphs) if num_graphs else 1.0,
    )
    return ExposedCommunicationResult(
        **facts_of(rank, window),
        communication_ns=communication_ns,
        compute_ns=compute_ns,
        metrics=metrics,
        num_operations=num_inside(rank.communication_spans, window),
        evidence=longest(rank, exposed, "communication"),
        operations=operations,
        host_operations=_host_operations(rank, window),
        only_step=only_step(rank, window, exposed),
        has_gpu=rank.device is not None,
        is_compute_known=rank.device is not None or len(rank.compute) > 0,
        peaks_gb_per_s={} if operations is None else peaks_by_scope(rank),
    )


def refined(
    result: ExposedCommunicationResult, ranks: RankComparison
) -> ExposedCommunicationResult:
    """Return the same with the time that the rank waited for others, and the rate without it."""
    if result.operations is None:
        return result
    groups = [waits.group for waits in ranks.waits]
    member = ranks.ranks.index(result.rank)
    are_all = not any(group.is_partial for group in groups if member in group.members)
    waits = ranks.waits_of(result.rank)
    waiting = result.operations.waiting_by(waits, ranks.ranks, are_all=are_all)
    operations = replace(result.operations, waiting=waiting)
    operations = replace(operations, root=reasons.root_of(operations, ranks, result.rank))
    usual = operations.usual
    moving = usual[Reason.WAITING + 1 :].sum(axis=0)
    costliest = reasons.costliest(operations.kind, moving)
    transfers = ranks.transfers.get(result.rank, {})
    rate = reasons.link_rate(costliest, transfers, result.peaks_gb_per_s)
    metrics = structs.replace(
        result.metrics,
        **_by_metric(operations, result.metrics.exposed_ns),
        busbw_gb_per_s=None if rate is None else rate.busbw_gb_per_s,
        peak_gb_per_s=None if rate is None else rate.peak_gb_per_s,
    )
    # Where nearly all of it is waiting, no link makes it shorter.
    matters = int(moving.sum()) > reasons.MIN_SHARE * int(usual.sum())
    return replace(result, operations=operations, metrics=metrics, rate=rate if matters else None)


def findings(result: ExposedCommunicationResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the measurements."""
    unjudged = _why_unjudged(result)
    if unjudged is not None:
        return [f.NotApplicable(ID, *unjudged, result.rank)]
    exposed_ns = result.metrics.exposed_ns
    operations, has_compute = result.operations, result.compute_ns > 0
    claim = (
        f"{duration(exposed_ns)} of {duration(result.communication_ns)} of communication is"
        " not hidden by compute"
        if has_compute
        else f"{duration(exposed_ns)} of communication, and no compute that could hide it"
    )
    metrics = result.metrics
    if operations is None:
        lines = reasons.cpu_advice(result.host_operations)
        return result.finding(ID, claim, exposed_ns, metrics, lines)
    claim = reasons.title(claim, operations, result.rate, has_compute=has_compute)
    lines = reasons.advice(operations, result.rate, result.remedies, result.how_to_collect)
    evidence = reasons.evidence(operations)
    return result.finding(ID, claim, exposed_ns, metrics, lines, evidence=evidence)


def _by_metric(
    operations: reasons.ExposedOperations | None, exposed_ns: int
) -> dict[str, int | str | None]:
    by_metric: dict[str, int | str | None] = dict.fromkeys(reason.metric for reason in Reason)
    by_metric["step_cause"] = None
    if operations is None:
        return {**by_metric, Reason.UNKNOWN.metric: exposed_ns}
    totals = operations.by_reason.sum(axis=1).tolist()
    by_metric |= {reason.metric: totals[reason] for reason in Reason}
    if operations.step_cause is not None:
        by_metric["step_cause"] = operations.step_cause.name.lower()
    if isinstance(operations.waiting, str):
        by_metric[Reason.WAITING.metric] = None
    return by_metric


def _host_operations(rank: Rank, window: Window) -> frozenset[str]:
    if not isinstance(rank, CpuRank):
        return frozenset()
    operations = rank.work.operations
    kinds = distinct_values(operations.kind[window.holds_start(operations.start_ns)]).tolist()
    calls = (rank.work.calls[kind] for kind in kinds)
    return frozenset(call.operation for call in calls if call is not None)


def _why_unjudged(result: ExposedCommunicationResult) -> tuple[str, str] | None:
    if not result.num_operations and result.has_gpu:
        return None
    if not result.communication_ns and not result.has_gpu:
        return (
            "no range of a communication call lies in the time judged",
            "instrument.enable() in the training script names every call",
        )
    if not result.is_compute_known:
        return (
            "no range shows when the process computed: forward, backward or optimizer step",
            (
                "instrument.enable() names them for DistributedDataParallel and optimizers;"
                " elsewhere put instrument.annotate('forward') around what computes"
            ),
        )
    return None
