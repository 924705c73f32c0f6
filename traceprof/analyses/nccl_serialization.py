"""Communication that was launched, had its input, and waited behind other communication."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.remedies import OWN_GROUPS
from traceprof.analyses.results import CostResult, facts_of
from traceprof.communication import readiness as queueing
from traceprof.communication.exposure import compute_after
from traceprof.communication.messages import asynchronous_calls
from traceprof.communication.readiness import FOLLOWS_NS, Independence, Readiness
from traceprof.intervals import Mask
from traceprof.run.rank import Rank, Window
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.parts import Part
from traceprof.trace.model.special_values import UNKNOWN
from traceprof.units import duration, percent

ID = "nccl-serialization"


class NcclSerializationMetrics(f.Metrics):
    """Numbers of `nccl-serialization`."""

    blocked_ns: Annotated[
        f.Ns, "the sum of the waits of ready operations, which may exceed the elapsed time"
    ]
    num_blocked: Annotated[f.Count, "the number of operations that waited"]
    max_blocked_ns: Annotated[f.Ns, "the longest wait"]
    num_operations: Annotated[f.Count, "communication kernels in the window"]
    independent_blocked_ns: Annotated[
        f.Ns | None,
        "the part of `blocked_ns` behind an independent operation; null where the export has"
        " neither communicators nor peers",
    ]
    known_blocked_ns: Annotated[
        f.Ns, "the part of `blocked_ns` for which it is known whether operations are independent"
    ]
    queued_ns: Annotated[
        f.Ns,
        "the sum of the same waits measured from the launch, whether or not the"
        " input was ready: the host ran ahead, which costs nothing",
    ]
    num_on_compute_stream: Annotated[
        f.Count,
        "the number of communication kernels on compute streams, where more than"
        f" {percent(queueing.COMPUTE_SHARE)} of the kernels compute. They can never overlap that"
        " stream's compute: PyTorch 2.8 and later runs synchronous collectives there",
    ]
    exposed_on_compute_stream_ns: Annotated[
        f.Ns, "how long these kernels ran while nothing computed"
    ]
    coverage: Annotated[f.Fraction, "the share of these kernels whose launch is in the capture"]


FINDINGS = {
    ID: f.FindingKind(
        NcclSerializationMetrics,
        removed_by=("no-serialization",),
        part_of="exposed-communication",
        needs=f.Sight.COMMUNICATION,
    )
}


class SerializationResult(CostResult, frozen=True):
    """Waits of a rank's communication kernels for one another. Times and durations are ns."""

    metrics: NcclSerializationMetrics  # the numbers of its finding
    num_judged: int  # communication kernels whose launch is in the capture
    waited_ns: int  # the union of the waits of ready operations
    # the union of the waits behind an operation that is not known to be dependent, as far as no
    # compute ran
    avoidable_ns: int
    independent_avoidable_ns: int  # the same behind one that is known to be independent
    # the same of operations for which compute waited in the middle of a step, behind one for which
    # it did not
    needed_avoidable_ns: int
    # chains of operations that waited for each other, costliest first, then longest
    chains: tuple[f.Evidence, ...]
    # the longest communication kernels on streams that compute as well
    among_compute: tuple[f.Evidence, ...]
    compute_streams: tuple[int, ...]  # these streams
    on_compute_stream: tuple[str, ...]  # names of the operations there
    has_events: bool  # whether inputs are known from event records, not from the order of launches


def run(rank: Rank, window: Window) -> SerializationResult:
    """Measure the waits of the communication kernels that start in the window."""
    queue = queueing.queue_of(rank)
    kernels = queue.kernels
    inside = window.holds_start(kernels.start_ns)
    blocked = inside & (queue.blocked_ns > 0)
    independent, dependent = (
        blocked & (queue.independence == independence)
        for independence in (Independence.INDEPENDENT, Independence.DEPENDENT)
    )
    exposed = window.clip(rank.exposed)
    avoidable = intervals.intersect(queue.waits(blocked & ~dependent), exposed)

    on_compute = inside & is_in(kernels.stream, queueing.compute_streams(rank))
    ran_there = intervals.union(kernels.start_ns[on_compute], kernels.end_ns[on_compute])
    waited = window.clip(queue.waits(blocked))

    def total(chosen: Mask) -> int:
        return intervals.total(queue.blocked_ns[chosen])

    num_operations, num_blocked = int(inside.sum()), int(blocked.sum())
    num_judged = int((inside & (kernels.launch_ns != UNKNOWN)).sum())
    independent_ns = total(independent)
    known_ns = independent_ns + total(dependent)
    metrics = NcclSerializationMetrics(
        blocked_ns=total(blocked),
        num_blocked=num_blocked,
        max_blocked_ns=int(queue.blocked_ns[blocked].max(initial=0)),
        num_operations=num_operations,
        independent_blocked_ns=independent_ns if known_ns or not num_blocked else None,
        known_blocked_ns=known_ns,
        queued_ns=intervals.total(queue.queued_ns[inside]),
        num_on_compute_stream=int(on_compute.sum()),
        exposed_on_compute_stream_ns=intervals.intersect(ran_there, exposed).measure_ns,
        coverage=f.share(num_judged, num_operations),
    )
    return SerializationResult(
        **facts_of(rank, window, avoidable),
        metrics=metrics,
        num_judged=num_judged,
        waited_ns=waited.measure_ns,
        avoidable_ns=avoidable.measure_ns,
        independent_avoidable_ns=intervals.intersect(queue.waits(independent), exposed).measure_ns,
        needed_avoidable_ns=intervals.intersect(
            queue.waits(blocked & ~dependent & _hold_compute_up(rank, kernels)), exposed
        ).measure_ns,
        chains=queueing.chains(rank, queue, blocked, avoidable),
        among_compute=queueing.among_compute(rank, queue, on_compute),
        compute_streams=tuple(sorted({*kernels.stream[on_compute].tolist()})),
        on_compute_stream=tuple(
            queue.sent.operations[kind]
            for kind in distinct_values(queue.sent.operation[on_compute]).tolist()
        ),
        has_events=kernels.has_events,
    )


def _hold_compute_up(rank: Rank, kernels: Readiness) -> Mask:
    """Operations for which compute waits, unlike for the one before them on their stream, bool[n].

    More communication follows in the same step: at its end all that it sent may be needed.
    """
    steps, num = rank.steps, len(kernels)
    if steps is None:
        return np.zeros(num, np.bool_)
    after = compute_after(rank, kernels.start_ns, kernels.stream)
    late_ns = queueing.times_of(rank, np.maximum(after, 0))[0] - kernels.end_ns
    goes_on = (after >= 0) & (late_ns >= 0) & (late_ns <= FOLLOWS_NS)
    step = intervals.holder(steps.start_ns, steps.end_ns, kernels.start_ns)
    continues = np.zeros(num + 1, np.bool_)
    continues[kernels.before] = (step >= 0) & (np.append(step, -1)[kernels.before] == step)
    return goes_on & continues[:num] & ~np.append(goes_on, False)[kernels.before]


def findings(result: SerializationResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the measurements."""
    if not result.metrics.num_operations:
        return []
    if not result.num_judged:
        why = (
            "the export does not show when communication was launched, so queueing cannot be"
            " distinguished from a late launch"
        )
        how = f"{result.how_to_collect(Part.API_CALLS)}, from before the first communication on"
        return [f.NotApplicable(ID, why, how, result.rank)]
    severity = _severity(result)
    if severity is None:
        return []
    return result.finding(
        ID,
        _title(result),
        result.avoidable_ns,
        result.metrics,
        _advice(result),
        evidence=result.chains or result.among_compute,
        severity=severity,
    )


def _severity(result: SerializationResult) -> f.Severity | None:
    """Return the severity: by the time lost by independent operations or such that compute needs.

    Otherwise it is at most `info`: if the export has no communicators, waiting in line is mostly
    NCCL's own order, since PyTorch gives each communicator a stream of its own.
    """
    lost_ns = max(result.independent_avoidable_ns, result.needed_avoidable_ns)
    known = f.severity_of_cost(f.share(lost_ns, result.window_ns))
    if known is not None:
        return known
    worth_a_word = max(result.waited_ns, result.metrics.exposed_on_compute_stream_ns)
    return (
        f.Severity.INFO
        if f.severity_of_cost(f.share(worth_a_word, result.window_ns)) is not None
        else None
    )


def _title(result: SerializationResult) -> str:
    metrics = result.metrics
    where = f"stream{'s' if len(result.compute_streams) > 1 else ''}"
    where += f" {', '.join(map(str, result.compute_streams))}"
    has_waited = f.severity_of_cost(f.share(result.waited_ns, result.window_ns)) is not None
    if not has_waited and metrics.exposed_on_compute_stream_ns > result.waited_ns:
        return (
            f"{metrics.num_on_compute_stream} of {metrics.num_operations} communication operations"
            f" run on {where} among compute kernels, which they can never overlap"
        )
    title = (
        f"{metrics.num_blocked} of {metrics.num_operations} communication operations were ready and"
        f" waited {duration(metrics.blocked_ns)} in all behind others on their stream"
    )
    if metrics.independent_blocked_ns:
        return f"{title}, {duration(metrics.independent_blocked_ns)} of it behind independent ones"
    if metrics.known_blocked_ns == metrics.blocked_ns:
        return f"{title}, always in the order of their own communicator"
    if 2 * result.needed_avoidable_ns > result.avoidable_ns:
        held = f"compute was held up for {duration(result.needed_avoidable_ns)}"
        return f"{title}; {held}, behind operations that it did not need yet"
    return f"{title}; the export does not show whether they depend on each other"


def _advice(result: SerializationResult) -> tuple[str, ...]:
    metrics = result.metrics
    advice: list[str] = []
    if metrics.num_blocked:
        advice += _QUEUE_ADVICE
    if metrics.num_on_compute_stream:
        advice.append(_off_the_compute_stream(result.on_compute_stream))
    if metrics.known_blocked_ns < metrics.blocked_ns:
        how = result.how_to_collect(Part.COMMUNICATORS)
        advice.append(
            f"To see which of these depend on each other, export communicators and peers: {how}"
        )
    if metrics.num_blocked and not result.has_events:
        how = result.how_to_collect(Part.EVENT_RECORDS)
        advice.append(
            "Inputs are known from the order of launches only; what each operation waits for on the"
            f" GPU is recorded with {how}"
        )
    return tuple(advice)


_QUEUE_ADVICE = (
    OWN_GROUPS,
    (
        "Send to and receive from several peers at once with torch.distributed.batch_isend_irecv:"
        " one kernel, in which they progress together. Compare both: where the path goes through"
        " the host, single isend and irecv calls were faster"
    ),
    (
        "Let communicators overlap: NCCL 2.26 or later with NCCL_LAUNCH_ORDER_IMPLICIT=1 and CUDA"
        " 12.3 or later (off by default); before, every rank must launch in the same order"
    ),
    (
        "Send and receive outside the gradients' process group: with"
        " init_process_group(device_id=…) an unbatched send or receive uses the group's own"
        " communicator and waits for its collectives"
    ),
    "Launch first what the next computation waits for",
)


def _off_the_compute_stream(operations: Iterable[str]) -> str:
    return (
        f"Call {asynchronous_calls(operations)}, and wait() where the result is needed: from"
        " PyTorch 2.8 on, a synchronous operation runs on the current stream, where no kernel of"
        " that stream can run beside it"
    )


PAGE = {
    "follows": f"{FOLLOWS_NS // 1000} µs",
    "advice": f.bullets((*_QUEUE_ADVICE, _off_the_compute_stream(OPERATIONS))),
}
