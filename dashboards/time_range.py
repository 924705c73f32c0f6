"""Measurements within the time range that the reader chose, made on demand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar, cast

from traceprof.analyses.compute import compute_parts
from traceprof.analyses.kernels import kernel_table, launched_kernels
from traceprof.analyses.registry import ANALYSES
from traceprof.run.windows import time_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.address import Scope
    from dashboards.time_axis import RankClock
    from traceprof.analyses.compute.compute_parts import ComputeParts
    from traceprof.analyses.kernels.kernel_table import KernelTable
    from traceprof.analyses.shape.results import Judge, Result
    from traceprof.run.rank import Rank, Window

    Range = tuple[int | None, int | None]
    Key = tuple[int, str, int, int]

Measured = TypeVar("Measured")
_MAX_KEPT = 4096  # results
_BY_NAME = {analysis.name: analysis for analysis in ANALYSES}
_lock = threading.Lock()
_kept: OrderedDict[Key, object] = OrderedDict()


def time_range(scope: Scope, clock: RankClock) -> tuple[int | None, int | None]:
    """Return the chosen time range on the clock of a rank's report; None for an open end."""
    start, end = scope.start_ns, scope.end_ns
    return (None if start is None else clock.own(start), None if end is None else clock.own(end))


def measured_within(
    rank: Rank, module: Judge[Result], scope: Scope, clock: RankClock
) -> Result | None:
    """Return the result of an analysis for a rank in the chosen time range.

    Args:
        rank: of an open report.
        module: one of `ANALYSES` that measures ranks one by one.
        scope: the reader's choice, on the run's clock.
        clock: of the rank.

    Returns:
        None if the analysis does not apply to this rank, or the rank did nothing in that time.
    """
    analysis = _BY_NAME[module.__name__]
    if analysis.measure is None or (rank.device is None and not analysis.is_for_cpu):
        return None
    if not all(rank.trace.holds(part) for part in analysis.requires):
        return None
    return cast(
        "Result | None", _measured(rank, time_range(scope, clock), analysis.name, analysis.measure)
    )


def kernels_within(rank: Rank, scope: Scope, clock: RankClock) -> KernelTable | None:
    """Return a rank's table of kernels in the chosen time; None if it did nothing then."""
    if rank.device is None:
        return None
    return _measured(rank, time_range(scope, clock), kernel_table.__name__, kernel_table.run)


def compute_within(rank: Rank, scope: Scope, clock: RankClock) -> ComputeParts | None:
    """Return the parts of a rank's compute in the chosen time; None if it did nothing then."""
    if rank.device is None:
        return None
    return _measured(rank, time_range(scope, clock), compute_parts.__name__, _compute)


def _compute(rank: Rank, window: Window) -> ComputeParts:
    return compute_parts.run(rank, window, launched_kernels.run(rank, window))


def _measured(
    rank: Rank, chosen: Range, name: str, run: Callable[[Rank, Window], Measured]
) -> Measured | None:
    window, whole = time_window(rank, chosen), rank.window
    if window.end_ns <= whole.start_ns or window.start_ns > whole.end_ns or not window.length_ns:
        return None
    key = (id(rank), name, window.start_ns, window.end_ns)
    # One at a time: what a rank was measured from takes memory, and is released afterwards.
    with _lock:
        if key not in _kept:
            _kept[key] = (rank, run(rank, window))
            rank.release()
        _kept.move_to_end(key)
        if len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)
        return cast("tuple[Rank, Measured]", _kept[key])[1]
