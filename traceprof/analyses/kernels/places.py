"""Places of kernels in a step: the same kernel runs at the same place of every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.intervals import by_rows, num_before
from traceprof.trace.grouping import is_in, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.intervals import Int32, Int64
    from traceprof.run.opening import Rank


def places(rank: Rank) -> Callable[[Int64], Int32] | None:
    """Return a function that returns the places of kernels in their step; None without steps.

    The n-th kernel of its signature that a step launched is at the n-th place of all steps that
    launch as many of them. Where ranges of `instrument` show more backward passes than steps, each
    pass is taken instead of a step: gradients are reduced in one of several micro-batches only.

    Args:
        rank: the rank; the function takes int64[n], indices of kernels, and returns int32[n], -1
            where the launch is not known, or comes before the first step.
    """
    starts_ns, calls = unit_starts(rank), rank.calls
    if starts_ns is None or calls is None:
        return None

    def unit_of(launch: Int64) -> Int32:
        return (num_before(starts_ns, launch, "right") - 1).astype(np.int32)

    def of(chosen: Int64) -> Int32:
        kernels = rank.operations.kernels
        signature = kernels.packed_signature.kept
        call = rank.launched_by[0]
        wanted = np.zeros(int(signature.max(initial=0)) + 1, np.bool_)
        wanted[signature.take(chosen)] = True
        known = np.flatnonzero(wanted.take(signature) & (call >= 0)).astype(np.int32)
        # By signature, then launch: launches are nearly in order, and narrow numbers sort quickly.
        launch = calls.start_ns.take(call.take(known))
        order = np.argsort(launch, kind="stable")
        known = known.take(order)
        launch = launch.take(order)
        del order  # there can be many
        unit = by_rows(unit_of, launch)
        narrow = signature.take(known).astype(np.min_scalar_type(len(wanted)))
        order = np.argsort(narrow, kind="stable")
        known, unit, narrow = (column.take(order) for column in (known, unit, narrow))
        begins = np.ones(len(known), np.bool_)
        begins[1:] = (unit[1:] != unit[:-1]) | (narrow[1:] != narrow[:-1])
        first = np.flatnonzero(begins)
        del launch, order, narrow, begins
        num = np.diff(np.append(first, len(known)))
        numbers = np.arange(len(known))
        numbers -= np.repeat(first, num)
        numbers *= int(num.max(initial=0)) + 1
        numbers += np.repeat(num, num)
        numbers = numbered(numbers)[1]
        numbers[unit < 0] = -1
        place = np.full(len(kernels), -1, np.int32)
        place[known] = numbers
        return place.take(chosen)

    return of


def unit_starts(rank: Rank) -> Int64 | None:
    """Return where steps begin on the host, or the passes that are taken instead of them."""
    steps, ranges = rank.step_ranges, rank.trace.label_ranges.get(rank.process)
    if steps is None:
        return None
    if ranges is not None:
        kinds = [
            index for index, kind in enumerate(ranges.kinds) if kind.operation == labels.BACKWARD
        ]
        ends: Int64 = np.sort(ranges.end_ns[is_in(ranges.kind, np.array(kinds, np.int64))])
        if len(ends) > len(steps.start_ns):
            return np.append(steps.start_ns[:1], ends[ends > steps.start_ns[0]])
    return steps.start_ns
