"""Rates of operations once all ranks were inside, and their latency.

The time of an operation follows t = latency + S ÷ rate, the model of NCCL's own tuner
(src/graph/tuning.cc). Both are fitted to the run's own operations of one kind on one communicator.
A small message is then judged by its latency, a large one by its rate.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof import intervals
from traceprof.communication.latency import DISTINCT_SIZES
from traceprof.structs import Record
from traceprof.trace.grouping import DISTANCE_TO_DEVIATION, OF_MEDIANS, distinct_values, median_of
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from traceprof.intervals import Float64, Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.waits import GroupWaits

    Scope = Literal["intra-node", "inter-node"]

# Fewer times do not show how much they vary.
_MIN_TIMES = 4
_MIN_STRAYING = 0.01
# Degrees of freedom of a median distance for each time: its efficiency as a deviation
# (Rousseeuw and Croux, J. Am. Stat. Assoc. 88, 1993).
_FREEDOM = 0.37
_SURE = 2.0  # standard errors, within which 95 % lie
# nccl-tests, doc/PERFORMANCE.md. Sizes of these are of one rank; the total counts.
_OF_ALL_RANKS = ("AllGather", "ReduceScatter", "AlltoAll")


class OperationKind(Record, frozen=True):
    """The operations of one kind of one rank on one communicator."""

    member: int  # index into the run's ranks
    operation: str  # the operation's name
    communicator: str | None  # the communicator's name, as in `analyses.collectives`


class Transfer(Record, frozen=True):
    """Waits, times and rates of the matched operations of an `OperationKind`."""

    num_matched: int  # the number of operations
    wait_ns: int | None  # the sum of this rank's waits; None if clocks leave most of them open
    transfer_ns: int  # the sum of the operations' own times
    # bytes over transfer times of those of known size, in 1e9 bytes per second
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None  # the same times nccl-tests' factor
    latency_ns: int | None  # the latency of the model; None if it cannot be fitted
    latency_uncertainty_ns: int | None  # half of its interval of 95 %; None if it cannot be fitted
    # the rate of the model, for the size that algorithm bandwidth counts
    rate_gb_per_s: float | None
    scope: Scope | None  # whether all members are on one machine; None if that is unknown


class Fit(Record, frozen=True):
    """The time of an operation by its size."""

    # the time at size 0; None if it is not significant against the noise of times
    latency_ns: int | None
    uncertainty_ns: int | None  # half of the latency's interval of 95 %
    rate_gb_per_s: float  # bytes per ns beyond the latency


def transfers(
    waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals], machines: Sequence[str | None]
) -> dict[OperationKind, Transfer]:
    """Times and rates of operations with known waits, by rank, kind and communicator.

    `machines`: of each report, None if unknown.
    """
    parts: dict[OperationKind, list[tuple[GroupWaits, int, Int64]]] = defaultdict(list)
    for wait in waits:
        inside = np.flatnonzero(wait.is_inside & wait.is_known)
        for kind in distinct_values(wait.group.operation[inside]).tolist():
            chosen = inside[wait.group.operation[inside] == kind]
            for column, member in enumerate(wait.group.members):
                place = int(wait.group.place[chosen[0], column])
                name = communicator_name(arrivals[member], place)
                key = OperationKind(member, wait.group.operations[kind], name)
                parts[key].append((wait, column, chosen))
    return {key: _transfer(key, of_key, arrivals, machines) for key, of_key in parts.items()}


def communicator_name(arrivals: Arrivals, index: int) -> str | None:
    """Return the communicator of an operation: NCCL's id, else PyTorch's group, else None."""
    if arrivals.communicator[index] >= 0:
        return arrivals.communicators[int(arrivals.communicator[index])]
    if arrivals.group[index] >= 0:
        return f"group {arrivals.groups[int(arrivals.group[index])]}"
    return None


def counted_bytes(operation: str, size: Int64, num_ranks: Int64) -> tuple[Float64, Float64]:
    """Sizes that algorithm and bus bandwidth count, NaN where unknown, float64[n].

    `size`: one rank's message as NCCL counts it. `num_ranks`: of the communicator. Both are -1 if
    unknown.
    """
    known = np.where(size != UNKNOWN, size, np.nan)
    ranks = np.where(num_ranks > 0, num_ranks, np.nan)
    total = known * ranks if operation in _OF_ALL_RANKS else known
    factor = np.full(len(size), np.nan)
    if operation == "AllReduce":
        factor = 2 * (ranks - 1) / ranks
    elif operation in _OF_ALL_RANKS:
        factor = (ranks - 1) / ranks
    elif operation in ("Broadcast", "Reduce", "SendRecv"):
        factor = np.ones(len(size))
    return total, total * factor


def rate(size: Float64, durations: Int64) -> float | None:
    """Return the known sizes over their durations, in GB/s; None if there are none."""
    known = ~np.isnan(size)
    took = intervals.total(durations[known])
    return float(size[known].sum()) / took if took else None


def latency_and_rate(size: Float64, took: Int64, shared_error_ns: float = 0.0) -> Fit | None:
    """Fit t = latency + S ÷ rate to sizes in bytes and times in ns, n each.

    Each size counts once, by the median of its times. Relative errors are minimised, so that small
    messages count as much as large ones. The variance of the latency follows from the variance of
    times of one size and of the medians around the line (least squares: the covariance is (XᵀX)⁻¹
    Xᵀ diag(σ²) X (XᵀX)⁻¹). `shared_error_ns`, the standard error of what all times have in common,
    is added: it is all latency. A latency that is not significant is None.

    None if the sizes are too similar, the times too few, or times do not grow with size.
    """
    known = ~np.isnan(size) & (took > 0) & (size > 0)
    sizes, which, count = np.unique(size[known], return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes[-1] < DISTINCT_SIZES * sizes[0] or len(which) < _MIN_TIMES:
        return None
    times = np.array([median_of(took[known][which == index]) for index in range(len(sizes))])
    columns = np.stack((1 / times, sizes / times), axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    misfit = 1 - columns @ np.array([latency, per_byte])
    inverse = np.linalg.pinv(columns)
    error = _SURE * float(np.sqrt(inverse[0] ** 2 @ _variance(took[known], which, count, times)))
    if len(sizes) > 2:  # two points are always on a line
        freedom = len(sizes) - 2
        squares = np.full(len(sizes), (misfit**2).sum() / freedom)
        student = 1.0
        if len(sizes) == len(which):  # the misfit is all that shows how times vary
            # Not by as much for all sizes: HC3 of MacKinnon and White (J. Econometrics 29, 1985).
            free = np.maximum(1 - (columns.T * inverse).sum(axis=0), np.finfo(np.float64).eps)
            squares = np.maximum(squares, (misfit / free) ** 2)
            student = float(_student(np.array(freedom)))
        error = max(error, _SURE * student * float(np.sqrt(inverse[0] ** 2 @ squares)))
    error = float(np.hypot(error, _SURE * shared_error_ns))
    if latency > error:
        is_growing = per_byte > 0
        return Fit(round(latency), round(error), 1 / float(per_byte)) if is_growing else None
    ratio = sizes / times  # no latency to be seen: all is rate
    return Fit(None, None, float((ratio**2).sum() / ratio.sum()))


def _variance(took: Int64, which: Int64, count: Int64, times: Float64) -> Float64:
    """Relative variance of the median time of each size, float64[sizes].

    `which`: the size of each of n times. `count` and `times`: number and median of each size.
    """
    apart = np.abs(took - times[which])
    residual = np.array([median_of(apart[which == index]) for index in range(len(count))]) / times
    few, enough = np.flatnonzero(count < _MIN_TIMES), np.flatnonzero(count >= _MIN_TIMES)
    residual[enough] *= _student((_FREEDOM * count[enough]).astype(np.float64))
    # Few times of one size do not show how they vary: those of other sizes do.
    if len(enough):  # larger sizes vary at least as much in ns, smaller ones in shares
        beside = enough[np.minimum(np.searchsorted(enough, few), len(enough) - 1)]
        residual[few] = residual[beside] * np.maximum(times[beside] / times[few], 1)
    elif len(took) > len(count):  # each size took one median from its times; one time shows nothing
        freedom, shown = len(took) - len(count), count[which] > 1
        share, left = median_of((apart / times[which])[shown]), median_of(apart[shown])
        correction = np.sqrt(shown.sum() / freedom) * _student(np.array(_FREEDOM * freedom))
        residual = np.maximum(share, left / times) * correction
    sigma = np.maximum(DISTANCE_TO_DEVIATION * residual, _MIN_STRAYING)
    variance: Float64 = sigma**2 * np.where(count > 2, OF_MEDIANS, 1) / count
    return variance


def _student(freedom: Float64) -> Float64:
    """Student's quantile of 97.5 % over the normal one, by degrees of freedom."""
    # The first terms of its series: Abramowitz and Stegun, 26.7.5.
    ratio: Float64 = 1 + 1.21 / freedom + 1.44 / freedom**2
    return ratio


def _waited(parts: Sequence[tuple[GroupWaits, int, Int64]]) -> int | None:
    """Sum of a rank's waits, None if the clocks leave most of them open."""
    num_unknown = sum(int(waits.is_unknown[chosen].sum()) for waits, _, chosen in parts)
    if 2 * num_unknown > sum(len(chosen) for *_, chosen in parts):
        return None
    return sum(intervals.total(waits.wait_ns[chosen, column]) for waits, column, chosen in parts)


def _transfer(
    key: OperationKind,
    parts: Sequence[tuple[GroupWaits, int, Int64]],
    arrivals: Sequence[Arrivals],
    machines: Sequence[str | None],
) -> Transfer:
    size = np.concatenate([waits.group.bytes[chosen] for waits, _, chosen in parts])
    took = np.concatenate([waits.transfer_ns[chosen] for waits, _, chosen in parts])
    num_ranks = np.concatenate(
        [
            np.full(len(chosen), max(waits.group.num_ranks, len(waits.group.members)))
            for waits, _, chosen in parts
        ]
    )
    total, bus = counted_bytes(key.operation, size, num_ranks)
    fit = latency_and_rate(total, took, max(waits.clock_error_ns for waits, *_ in parts))
    reports = {arrivals[member].report for waits, *_ in parts for member in waits.group.members}
    return Transfer(
        num_matched=len(took),
        wait_ns=_waited(parts),
        transfer_ns=intervals.total(took),
        algbw_gb_per_s=rate(total, took),
        busbw_gb_per_s=rate(bus, took),
        latency_ns=None if fit is None else fit.latency_ns,
        latency_uncertainty_ns=None if fit is None else fit.uncertainty_ns,
        rate_gb_per_s=None if fit is None else fit.rate_gb_per_s,
        scope=_scope(reports, machines),
    )


def _scope(reports: Collection[int], machines: Sequence[str | None]) -> Scope | None:
    hosts = {machines[report] for report in reports}
    if len(reports) > 1 and None in hosts:
        return None
    return "intra-node" if len(hosts) == 1 else "inter-node"
