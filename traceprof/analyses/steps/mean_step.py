"""The mean step of the mean rank, by part and cause of idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.steps.step_means import StepTotals

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
COLUMNS = ("window_ns", *PARTS)
"""The length of a step, and the parts that sum to it."""
CAUSES = (
    "launch_bound_ns", "turnaround_ns", "sync_ns", "data_loading_ns", "mpi_ns", "setup_ns",
    "allocation_ns", "stalled_ns", "waiting_ns", "host_code_ns", "unknown_ns",
)  # fmt: skip
"""Of idle time."""


def mean_step(totals: Sequence[StepTotals], *, has_steps: bool) -> dict[str, float]:
    """Return what the mean step takes on the mean rank, in ns, by column and cause.

    Args:
        totals: the steady steps of each rank together.
        has_steps: whether ranks without steps are left out; else all that is judged is one step.
    """
    counted = [rank for rank in totals if rank.num_steps or not has_steps]
    return {
        name: sum(getattr(rank, name) / max(rank.num_steps, 1) for rank in counted)
        / max(len(counted), 1)
        for name in (*COLUMNS, *CAUSES)
    }


def in_whole_ns(mean: Mapping[str, float]) -> dict[str, int]:
    """Return a mean step in whole ns: its parts sum to it, and the causes to idle time."""
    total = round(mean["window_ns"])
    parts = _rounded({name: mean[name] for name in PARTS}, total)
    causes = _rounded({name: mean[name] for name in CAUSES}, parts["idle_ns"])
    return {"window_ns": total, **parts, **causes}


def _rounded(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Round parts so that they sum to a total: what rounding leaves goes to the largest."""
    whole = {name: round(value) for name, value in parts.items()}
    largest = max(parts, key=lambda name: parts[name])
    whole[largest] += total - sum(whole.values())
    return whole
