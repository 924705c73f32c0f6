"""Cost of overlap: kernels that take longer beside communication than alone.

Each kernel is compared with others of the same name, grid and block on the same device and, where
steps are known, at the same place of the step, so that no model of the GPU is needed: only a run
that holds both kinds. Kernels beside other compute say nothing about communication, and are not
compared.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import (
    MIN_ALONE,
    ComparedSignatures,
    ExpectedTimes,
    SignatureSlowdown,
    compare,
    slowdowns,
)
from traceprof.analyses.kernels.placed_kernels import beside_other_compute
from traceprof.analyses.kernels.placed_kernels import places_in_steps as places
from traceprof.analyses.results import CostResult, facts_of
from traceprof.hardware import board
from traceprof.intervals import Float64, Int64, Intervals, Mask
from traceprof.kernel_names import function_name
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_in_mean
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.units import duration, percent

_MIN_ERRORS = 3  # standard errors: a smaller difference between other places is noise
_ERRORS = 2  # to either side, within which a rate lies in 95 %


class BesideCommunication(Record, frozen=True):
    """Some compute kernels of a rank, n of them."""

    length_ns: Int64  # int64[n]
    beside_ns: Int64  # int64[n], during which something communicated
    is_judged: Mask  # bool[n], beside no other compute, which may slow the others
    is_beside: Mask  # bool[n], during which something communicated
    is_half: Mask  # bool[n], during at least half of which something did
    has_places: bool  # whether places of kernels in steps are known
    # those that were judged, by signature: alone, and beside communication for half of their time
    # or more, at the same place of their step where steps are known
    compared: ComparedSignatures


class SlowedKernels(Record, frozen=True):
    """The n compute kernels of a rank beside communication, and how much longer that makes them."""

    kernel: Int64  # int64[n], indices
    beside_ns: Int64  # int64[n], during which something communicated
    # float64[n], by how much each is longer for each nanosecond of that; negative where its like
    # were shorter by chance. Known from kernels at the same place of a step; where there are none,
    # from all of the signature, if the difference is beyond noise; else 0. From those beside
    # communication for half of their time, where there are any
    rate: Float64
    # float64[n], the least that it may be: where only other places are known, nothing
    least: Float64
    # float64[n], the most that it may be if kernels lose as much as their like at other places: no
    # kernel loses more than its time beside communication, which counts where none of the
    # signature ran alone
    most: Float64
    limit: Float64  # float64[n], what it cannot exceed whatever kernels lose at other places
    num_elsewhere: int  # how many are only known from kernels at other places
    num_unknown: int  # of how many none of the signature ran alone


def slowed_kernels(rank: Rank) -> SlowedKernels:
    """Return the compute kernels of a rank beside communication."""
    return rank.cache.get_alone(_slowed_kernels, rank, rank.release)


def _slowed_kernels(rank: Rank) -> SlowedKernels:
    computes = np.flatnonzero(~rank.is_communication_kernel)
    return _slowed_of(rank, computes, beside_communication(rank, computes))


def _slowed_of(rank: Rank, computes: Int64, beside: BesideCommunication) -> SlowedKernels:
    signature = rank.operations.kernels.packed_signature.kept.take(computes)
    size = int(signature.max(initial=0)) + 1
    rates = np.zeros((4, size))  # `rate`, `least`, `most` and `limit` by signature
    rates[2:] = 1.0
    is_unknown = np.ones(size, np.bool_)
    is_unknown[beside.compared.signature] = False
    rest = np.flatnonzero(is_unknown.take(signature) & beside.is_judged)
    is_beside, is_half = beside.is_beside[rest], beside.is_half[rest]
    num_half = np.bincount(signature[rest[is_half]], minlength=size)
    elsewhere = compare(
        beside.length_ns[rest],
        beside.beside_ns[rest],
        signature[rest],
        ~is_beside,
        np.where(num_half[signature[rest]] > 0, is_half, is_beside),
    )
    rate, error = elsewhere.rate, elsewhere.rate_error
    # None loses more than the time that it spends beside communication.
    rate = np.where(np.abs(rate) > _MIN_ERRORS * error, np.minimum(rate, 1.0), 0.0)
    rates[:3, elsewhere.signature] = rate, np.minimum(rate, 0), np.maximum(rate, 0)
    rate, error = beside.compared.rate, _ERRORS * beside.compared.rate_error
    most = np.clip(rate + error, 0, 1)  # communication makes no kernel faster
    rates[:3, beside.compared.signature] = rate, rate - error, most
    if beside.has_places:
        rates[3, beside.compared.signature] = most
    chosen = np.flatnonzero(beside.is_beside)
    of_chosen = signature[chosen]
    num_elsewhere = int(is_in(of_chosen, elsewhere.signature).sum())
    rate, least, most, limit = rates.take(of_chosen, axis=1)
    return SlowedKernels(
        kernel=computes.take(chosen),
        beside_ns=beside.beside_ns.take(chosen),
        rate=rate,
        least=least,
        most=most,
        limit=limit,
        num_elsewhere=num_elsewhere,
        num_unknown=int(is_unknown[of_chosen].sum()) - num_elsewhere,
    )


def beside_communication(rank: Rank, chosen: Int64) -> BesideCommunication:
    """Compare kernels of a rank: `chosen`, int64[n] indices of compute kernels."""
    is_judged = ~beside_other_compute(rank).take(chosen)  # first of all, since it takes memory
    kernels = rank.operations.kernels
    start, length = kernels.start_ns.take(chosen), kernels.packed_length.at(chosen)
    beside = intervals.covered_within(rank.communication, start, start + length)
    is_beside, is_half = beside > 0, (beside > 0) & (beside >= length - beside)
    place = places(rank)
    compared = compare(
        length,
        beside,
        kernels.packed_signature.kept.take(chosen),
        is_judged & ~is_beside,
        is_judged & is_half,
        None if place is None else lambda rows: place(chosen.take(rows)),
    )
    return BesideCommunication(
        length, beside, is_judged, is_beside, is_half, place is not None, compared
    )


ID = "overlap-slowdown"


class OverlapSlowdownMetrics(f.Metrics):
    """Numbers of `overlap-slowdown`."""

    slowdown: Annotated[
        f.Positive, "the durations of the overlapped kernels divided by their expected durations"
    ]
    excess_ns: Annotated[
        f.Ns, "the difference of these two, summed over kernels that may run at the same time"
    ]
    assumed_excess_ns: Annotated[
        f.Ns,
        "the same of kernels that never ran alone at their place, compared by name and grid alone:"
        " they may do other work. 0 where it is not beyond chance",
    ]
    num_assumed: Annotated[f.Count, "the number of these"]
    num_overlapped: Annotated[f.Count, "the number of overlapped kernels that were compared"]
    num_alone: Annotated[f.Count, "the number of kernels that they were compared with"]
    matched_fraction: Annotated[
        f.Fraction, "the share of all overlapped kernels that could be compared, by time"
    ]
    num_disturbed: Annotated[
        f.Count,
        "the number of overlapped kernels that were not compared, since they"
        " also ran beside other compute",
    ]
    communication_slowdown: Annotated[
        f.Number | None,
        "null. A communication kernel's duration includes its wait for the other ranks, which"
        " cannot be separated in one report",
    ]
    sure_slowdown: Annotated[
        f.Number,
        "the same ratio with cautious expected durations: the third quartile or"
        " the mean of the kernels that ran alone, whichever is longer",
    ]
    noise_ns: Annotated[f.Ns, "one standard error of `excess_ns`"]
    hidden_ns: Annotated[
        f.Ns, "communication time during which compute ran: the most that overlap gained"
    ]
    net_gain_ns: Annotated[int, "`hidden_ns` minus the impact"]
    num_sms_taken: Annotated[
        f.Count | None,
        "the median grid size of the communication kernels; a block of NCCL takes one SM",
    ]
    max_sms_taken: Annotated[f.Count | None, "the largest grid size of the communication kernels"]
    num_sms: Annotated[f.Count | None, "the number of SMs of the GPU; null if unknown"]
    coverage: Annotated[
        f.Fraction,
        "the share, by number, of the kernels beside communication that could be compared",
    ]


FINDINGS = {
    ID: f.FindingKind(
        OverlapSlowdownMetrics,
        removed_by=("no-overlap-slowdown",),
        changes_kernels=True,
        only_compute=True,
        needs=f.Sight.COMMUNICATION,
    )
}

# Fewer kernels show nothing.
MIN_OVERLAPPED = 20
# Where less than a fifth of the time is compared, what was not found may be in the rest.
MIN_MATCHED = 0.2
# How far chance goes, in real traces: of kernels that ran alone (19 ranks, 16 traces), 2 to 25 %
# were labelled overlapped, at random or for a stretch of time. In 17 % of 2219 draws these took
# 1.05 times their medians or more, mostly where one name and grid stand for different work, whose
# median lies below its mean. With the other two limits as well (2 % beyond what slow kernels take
# alone, three standard errors beyond the mean), 0.4 % did.
MIN_SLOWDOWN = 1.05
MIN_SURE_SLOWDOWN = 1.02
MIN_STANDARD_ERRORS = 3


class OverlapSlowdownResult(CostResult, frozen=True):
    """Durations of one rank's compute kernels beside communication, and alone."""

    num_communication: int  # communication kernels and peer copies that start in the window
    has_peer_copies: bool  # whether there are peer copies
    num_beside: int  # compute kernels and whole graphs during which something communicated
    num_half: int  # the overlapped kernels: something communicated for at least half of their time
    half_ns: int  # the sum of their durations
    half_wall_ns: int  # the measure of their union
    # those of them beside other compute on the device: the cause of a slowdown is not known, and
    # they are not compared
    num_disturbed: int
    comparison: ExpectedTimes  # the comparison of those that also ran alone
    # the wall time of the excess: the last part of each slowed kernel is its excess, and this is
    # the measure of their union, but not more than the sure excess
    wall_excess_ns: int
    # the comparison by name and grid alone of those that never ran alone at their place, and the
    # wall time of its excess; that may be other work
    assumed: ExpectedTimes
    assumed_ns: int
    hidden_ns: int  # the measure of communication ∩ compute
    # how much longer communication makes operations beside it at most, in the mean steady step:
    # all that ran beside it for what never ran alone
    per_step_at_most_ns: int
    # of the kernels beside communication, those whose like ran alone only at other places of a
    # step
    num_elsewhere: int
    num_unknown: int  # those whose like never ran alone
    # the median grid of the communication kernels, which is NCCL's number of channels and so of
    # SMs; None if none has a grid
    num_sms_taken: int | None
    max_sms_taken: int | None  # the largest
    num_sms: int | None  # SMs of the GPU; None if the GPU is not known
    signatures: tuple[SignatureSlowdown, ...]  # the kernels compared, the largest excess first

    @property
    def matched_fraction(self) -> float:
        """The share of the overlapped kernels' time that could be compared, 0 to 1."""
        return f.share(self.comparison.overlapped_ns, self.half_ns)

    @property
    def net_gain_ns(self) -> int:
        """Time that overlap hides, less its cost."""
        return self.hidden_ns - self.wall_excess_ns

    @property
    def coverage(self) -> float:
        """The share of the kernels beside communication that could be compared, 0 to 1."""
        return self.comparison.num_overlapped / self.num_beside if self.num_beside else 1.0


def run(rank: Rank, window: Window) -> OverlapSlowdownResult:
    """Compare the compute kernels that start in the window, by signature."""
    kernels, copies = rank.operations.kernels, rank.operations.copies
    graphs = rank.operations.graphs
    hidden = window.clip(rank.overlapped)
    inside = window.holds_start(kernels.start_ns)
    communicates = inside & rank.is_communication_kernel
    peers = rank.is_peer_copy & window.holds_start(copies.start_ns)
    graphs_beside = window.holds_start(graphs.start_ns) & (
        intervals.covered_within(rank.communication, graphs.start_ns, graphs.end_ns) > 0
    )
    chosen = np.flatnonzero(inside & ~rank.is_communication_kernel)
    beside = beside_communication(rank, chosen)
    compared, is_half = beside.compared, beside.is_half
    kernel = chosen[is_half]
    half = intervals.union(
        kernels.start_ns.take(kernel), np.minimum(kernels.ends(kernel), window.end_ns)
    )
    slowed = _slowed_of(rank, chosen, beside)
    at_most = _at_most(rank, slowed)
    comparison, signatures = slowdowns(rank, compared, chosen)
    tails = _last_parts(rank, compared, chosen, window)
    by_name = _by_name(rank, beside, chosen)
    assumed = slowdowns(rank, by_name, chosen)[0]
    assumed_ns = _last_parts(rank, by_name, chosen, window).measure_ns
    sms = np.sort(rank.trace.signatures.shape[kernels.packed_signature.at(communicates), 0])
    sms = sms[sms > 0]  # grids are NCCL's channels; unknown ones are negative
    known = board(rank.gpu)
    return OverlapSlowdownResult(
        **facts_of(rank, window, tails),
        num_communication=int(communicates.sum() + peers.sum()),
        has_peer_copies=bool(peers.any()),
        num_beside=int(beside.is_beside.sum() + graphs_beside.sum()),
        num_half=int(is_half.sum()),
        half_ns=intervals.total(beside.length_ns.compress(is_half)),
        half_wall_ns=half.measure_ns,
        num_disturbed=int((is_half & ~beside.is_judged).sum()),
        comparison=comparison,
        wall_excess_ns=min(tails.measure_ns, comparison.sure_excess_ns),
        assumed=assumed,
        assumed_ns=min(assumed_ns, assumed.sure_excess_ns),
        hidden_ns=hidden.measure_ns,
        per_step_at_most_ns=min(covered_in_mean(rank, window, one) for one in (at_most, hidden)),
        num_elsewhere=slowed.num_elsewhere,
        num_unknown=slowed.num_unknown,
        num_sms_taken=int(sms[(len(sms) - 1) // 2]) if len(sms) else None,
        max_sms_taken=int(sms[-1]) if len(sms) else None,
        num_sms=known.num_sms if known else None,
        signatures=signatures,
    )


def findings(result: OverlapSlowdownResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the slowdown of the kernels that could be compared, or are assumed to be alike."""
    comparison, assumed = result.comparison, result.assumed
    measured_ns = result.wall_excess_ns if _is_beyond_chance(comparison) else 0
    assumed_ns = result.assumed_ns if _is_beyond_chance(assumed) else 0
    impact = min(measured_ns + assumed_ns, result.window_ns)
    severity = f.severity_of_cost(f.share(impact, result.window_ns))
    compared = comparison if measured_ns else assumed
    if severity is None or compared.slowdown is None:
        missing = _missing(result)
        return [] if missing is None else [missing]
    if assumed_ns > measured_ns:
        severity = min(severity, f.Severity.LOW)
    elif result.net_gain_ns > 0:
        severity = min(severity, f.Severity.MEDIUM)
    metrics = OverlapSlowdownMetrics(
        slowdown=compared.slowdown,
        excess_ns=comparison.excess_ns if measured_ns else 0,
        assumed_excess_ns=assumed.excess_ns if assumed_ns else 0,
        num_assumed=assumed.num_overlapped if assumed_ns else 0,
        num_overlapped=comparison.num_overlapped,
        num_alone=compared.num_alone,
        matched_fraction=result.matched_fraction,
        num_disturbed=result.num_disturbed,
        communication_slowdown=None,
        sure_slowdown=compared.sure_slowdown,
        noise_ns=round(compared.noise_ns),
        hidden_ns=result.hidden_ns,
        net_gain_ns=result.hidden_ns - measured_ns - assumed_ns,
        num_sms_taken=result.num_sms_taken,
        max_sms_taken=result.max_sms_taken,
        num_sms=result.num_sms,
        coverage=result.coverage,
    )
    if not measured_ns:  # how much of it is in a step is not known
        result = replace(result, share_per_step=None)
    return result.finding(
        ID,
        _title(metrics, assumed, impact),
        impact,
        metrics,
        ADVICE,
        evidence=_evidence(result) if measured_ns else (),
        severity=severity,
    )


def _title(metrics: OverlapSlowdownMetrics, assumed: ExpectedTimes, impact: int) -> str:
    cost = f"this costs {duration(impact)}, while overlap hides {duration(metrics.hidden_ns)}"
    longer = f"Kernels take {metrics.slowdown:.2f} times as long beside communication as alone"
    same = "if kernels of one name and grid do the same work"
    if not metrics.num_assumed:
        return f"{longer}: {cost}"
    if not metrics.excess_ns:
        checked = f"none of {metrics.num_assumed} can be checked"
        return f"{longer}, {same} ({checked}): {cost}"
    return (
        f"{longer}, and {metrics.num_assumed} more {assumed.slowdown or 1.0:.2f} times, {same}:"
        f" {cost}"
    )


def _last_parts(
    rank: Rank, compared: ComparedSignatures, chosen: Int64, window: Window
) -> Intervals:
    excess = np.maximum(compared.overlapped_ns - np.ceil(compared.expected_ns), 0).astype(np.int64)
    order = np.argsort(compared.overlapped)  # by time, in which their union is quick
    end = rank.operations.kernels.ends(chosen.take(compared.overlapped.take(order)))
    return intervals.union(end - excess.take(order), np.minimum(end, window.end_ns))


def _by_name(rank: Rank, beside: BesideCommunication, chosen: Int64) -> ComparedSignatures:
    """Compare the overlapped kernels that never ran alone at their place, wherever others did."""
    overlapped = beside.is_judged & beside.is_half
    overlapped[beside.compared.overlapped] = False
    return compare(
        beside.length_ns,
        beside.beside_ns,
        rank.operations.kernels.packed_signature.kept.take(chosen),
        beside.is_judged & ~beside.is_beside,
        overlapped,
    )


def _at_most(rank: Rank, slowed: SlowedKernels) -> Intervals:
    """Return the last part of each operation, as much as communication beside it costs at most."""
    kernels, copies, _, graphs = rank.operations.groups
    ends = [kernels.ends(slowed.kernel)]
    lost = [np.ceil(slowed.limit * slowed.beside_ns).astype(np.int64)]
    own = np.flatnonzero(~rank.is_peer_copy)
    for start_ns, end_ns in (
        (copies.start_ns[own], copies.ends(own)),
        (graphs.start_ns, graphs.end_ns),
    ):
        ends.append(end_ns)
        lost.append(intervals.covered_within(rank.communication, start_ns, end_ns))
    end = np.concatenate(ends)
    return intervals.union(end - np.concatenate(lost), end)


def _missing(result: OverlapSlowdownResult) -> f.NotApplicable | None:
    if not result.num_communication:
        return None
    # Slowdown cannot cost more than all the time of the overlapped kernels.
    could_cost = f.share(result.half_wall_ns, result.window_ns)
    enough = (
        result.comparison.num_overlapped >= MIN_OVERLAPPED
        and result.matched_fraction >= MIN_MATCHED
    )
    if enough or f.severity_of_cost(could_cost) is None:
        return None
    disturbed = (
        f"; {result.num_disturbed} ran beside other compute, which may be what slows them, and are"
        " not compared"
        if result.num_disturbed
        else ""
    )
    return f.NotApplicable(
        ID,
        f"of {result.num_half} kernels beside communication, {result.comparison.num_overlapped}"
        f" ({percent(result.matched_fraction)} of their time) can be compared with {MIN_ALONE} or"
        " more kernels of the same name, grid and block that ran alone; at least"
        f" {MIN_OVERLAPPED} and {percent(MIN_MATCHED)} are needed{disturbed}",
        "record more steps, some of them without communication (under DDP's no_sync()), or the same"
        " script on one GPU while nothing communicates",
        result.rank,
    )


def _is_beyond_chance(comparison: ExpectedTimes) -> bool:
    by_mean = comparison.overlapped_ns - comparison.expected_at_least_ns
    return (
        (comparison.slowdown or 0.0) >= MIN_SLOWDOWN
        and comparison.num_overlapped >= MIN_OVERLAPPED
        and comparison.sure_slowdown >= MIN_SURE_SLOWDOWN
        and by_mean > MIN_STANDARD_ERRORS * comparison.noise_ns
    )


def _evidence(result: OverlapSlowdownResult) -> tuple[f.Evidence, ...]:
    return tuple(
        f.Evidence(
            *row.longest,
            f"{function_name(row.name)}, {duration(round(row.mean_overlapped_ns))} beside"
            f" communication on average, and {duration(round(row.mean_alone_ns))} alone",
        )
        for row in result.signatures[: f.MAX_EVIDENCE]
        if row.excess_ns > 0
    )


ADVICE = (
    (
        "Give NCCL fewer SMs: NCCL_MAX_CTAS (NCCL 2.17 and later; NCCL_MAX_NCHANNELS before), half"
        " the present number at a time; for send and receive NCCL_MAX_P2P_NCHANNELS; measure the"
        " step, since communication takes longer then"
    ),
    "Let NCCL choose fewer SMs itself: NCCL_CTA_POLICY=EFFICIENCY (NCCL 2.27 and later)",
    (
        "Move the bytes without SMs: copy-engine collectives (NCCL 2.28 and later,"
        " NCCL_CTA_POLICY=ZERO, buffers registered as symmetric windows), or peer copies through"
        " torch.distributed._symmetric_memory"
    ),
    (
        "Halve the memory traffic: registered buffers (ncclCommRegister; NCCL 2.23 and later within"
        " a node) skip NCCL's own copies, and the DDP hook bf16_compress_hook sends half the bytes"
    ),
    (
        "Move communication beside kernels that it disturbs less: matrix multiplications bound by"
        " arithmetic suffer less than elementwise kernels bound by memory"
    ),
)

PAGE = {
    "min_alone": str(MIN_ALONE),
    "min_overlapped": str(MIN_OVERLAPPED),
    "min_matched": percent(MIN_MATCHED),
    "min_slowdown": str(MIN_SLOWDOWN),
    "min_sure_slowdown": str(MIN_SURE_SLOWDOWN),
    "min_standard_errors": str(MIN_STANDARD_ERRORS),
    "advice": f.bullets(ADVICE),
}
