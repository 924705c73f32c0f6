"""The shared measurements of a rank, by the names that analyses give them in `READS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceprof.analyses.compute import compute_parts
from traceprof.analyses.gradients import buckets
from traceprof.analyses.kernels import kernel_table, launched_kernels, placed_kernels
from traceprof.analyses.measurements import process_groups
from traceprof.analyses.steps import slow_steps, step_means
from traceprof.host.rank_stalls import rank_stalls
from traceprof.ranks import arrivals
from traceprof.ranks.passes import rank_passes
from traceprof.run.guard import optional
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from traceprof.run.rank import Rank, Window


class Measurement(Record, frozen=True):
    """A measurement that makes no findings by itself."""

    meaning: str
    """What is measured, as `traceprof explain` says it."""
    measure: Callable[[Rank, Window, Window, Mapping[str, Any]], Any]
    """Measures a rank: its judged window, its shown window, and what was measured before."""
    reads: tuple[str, ...] = ()
    """The measurements that it needs."""
    has_gpu: bool | None = None
    """Whether it is for ranks with a GPU, or for those without one; None for both."""


def _measurement(
    name: str,
    meaning: str,
    measure: Callable[[Rank, Window, Window, Mapping[str, Any]], Any],
    *,
    reads: tuple[str, ...] = (),
    has_gpu: bool | None = None,
) -> tuple[str, Measurement]:
    guarded = optional(name, otherwise=lambda *_: None)(measure)
    return name, Measurement(meaning, guarded, reads, has_gpu)


MEASUREMENTS = dict(
    (
        # What needs the most memory comes first: later ones keep shared results.
        _measurement(
            "kernels",
            "the times of kernels by name",
            lambda rank, judged, shown, _: kernel_table.run(rank, shown, judged),
            has_gpu=True,
        ),
        _measurement(
            "launched",
            "the operators, modules and Python lines that launched kernels",
            lambda rank, judged, shown, _: launched_kernels.run(rank, shown, judged),
            has_gpu=True,
        ),
        _measurement(
            "compute",
            "the kinds of compute, and their share of the GPU's peak",
            lambda rank, judged, shown, taken: (
                None
                if taken["launched"] is None
                else compute_parts.run(rank, shown, taken["launched"], judged)
            ),
            reads=("launched",),
            has_gpu=True,
        ),
        _measurement(
            "arrivals",
            "when each rank came to each communication operation",
            lambda rank, judged, *_: arrivals.PackedArrivals.of(arrivals.run(rank, judged)),
        ),
        _measurement(
            "buckets",
            "the gradient buckets of DistributedDataParallel",
            lambda rank, _, shown, __: buckets.run(rank, shown),
        ),
        _measurement(
            "process_groups",
            "the communication of ranks without a GPU",
            lambda rank, judged, *_: process_groups.run(rank, judged),
            has_gpu=False,
        ),
        _measurement(
            "shown_process_groups",
            "the communication of ranks without a GPU, in all that is shown",
            lambda rank, _, shown, __: process_groups.run(rank, shown),
            has_gpu=False,
        ),
        _measurement(
            "step_totals",
            "the time of the steady steps by part and cause",
            lambda rank, judged, *_: step_means.run(rank, judged),
        ),
        _measurement(
            "slow_steps",
            "the steps that took far longer than usual, and what ran in them",
            lambda rank, judged, *_: slow_steps.run(rank, judged),
            has_gpu=True,
        ),
        _measurement(
            "stalls",
            "host calls and operators that took far longer than usual",
            lambda rank, judged, *_: rank_stalls(rank, judged),
            has_gpu=True,
        ),
        _measurement(
            "placed",
            "the time of each kernel by its place in a step",
            lambda rank, judged, *_: placed_kernels.run(rank, judged),
            has_gpu=True,
        ),
        _measurement(
            "passes",
            "the compute of each rank between its messages",
            lambda rank, judged, *_: rank_passes(rank, judged),
        ),
    )
)
"""The measurements by name, in the order in which they are taken."""
