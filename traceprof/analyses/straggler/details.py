"""Numbers behind a straggler's cause, from other measurements of the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses import gpu_idle, uneven_kernels
from traceprof.ranks.lateness import MORE_WORK, SLOWER
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from traceprof.analyses.measurements.measured import MeasuredRun

_OF_HOST = ("launch", "host code", "waiting")


def details(measured: MeasuredRun, rank: int, cause: str, lateness_ns: int) -> str:
    """Return the numbers behind a cause; empty if nothing else was measured.

    Args:
        measured: the run.
        rank: the late one, by number.
        cause: of the straggler.
        lateness_ns: what all its lateness cost the others.
    """
    if cause in {SLOWER, MORE_WORK}:
        metrics = uneven_kernels.run(measured).metrics
        if metrics is not None and metrics.is_constant and metrics.rank == rank:
            longer = percent(metrics.slower - 1)
            return f"{longer} longer at the same places, {uneven_kernels.because(metrics)}"
    if cause in _OF_HOST:
        stalls = next((host for host in measured.stalls if host.rank == rank), None)
        # A stall is the cause only where it makes up most of the lateness.
        if stalls is not None and stalls.unknown is None and 2 * stalls.idle_ns >= lateness_ns > 0:
            return (
                f"{counted(len(stalls), 'call')} of its host stalled, for"
                f" {duration(stalls.stalled_ns)} beyond the usual, and its GPU idled for"
                f" {duration(stalls.idle_ns)}"
            )
    if cause == "data loading":
        idle = next((gaps for gaps in measured.results.of(gpu_idle) if gaps.rank == rank), None)
        loading_ns = 0 if idle is None else idle.metrics.data_loading_ns
        if loading_ns:
            return f"its GPU idled for {duration(loading_ns)} for it"
    return ""
