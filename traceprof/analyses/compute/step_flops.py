"""FLOPs of a mean step against the peak of the GPU: model FLOPs utilization (MFU)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from traceprof.findings import Count, Fraction, Number, one_of, share
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.run.steady_steps import steady_steps
from traceprof.run.steps.step_ranges import StepsSource

if TYPE_CHECKING:
    from traceprof.analyses.kernels.launched_kernels import CountedFlops
    from traceprof.run.rank import Rank, Window


_MIN_COVERAGE = 0.5  # where less is known a lower bound is worth nothing


class StepFlops(Struct, frozen=True, forbid_unknown_fields=True):
    """Multiplications and additions of a mean steady step of a rank against the GPU's peak.

    A rank has none if its FLOPs are known neither from shapes nor from the user.
    """

    rank: Count
    source: Annotated[
        Literal["given", "shapes"],
        "`given`: from --flops-per-step; `shapes`: from the shapes of operators in the trace.",
    ]
    flops: Annotated[
        Number, "Operations in one step; without steps, in the whole time that findings judge."
    ]
    coverage: Annotated[
        Fraction,
        "Share of the matrix multiplication time for which FLOPs are known. Below 1, all rates"
        " here are lower bounds; 1 if the FLOPs are given.",
    ]
    step_ns: Annotated[Count, "Mean duration of the rank's steady steps, to which `flops` refers."]
    flops_per_s: Annotated[Number, "`flops` divided by the duration of the step."]
    precision: Annotated[
        str | None,
        one_of(*PRECISIONS, None),
        "The number format in which most of the matrix multiplication time is spent; null if"
        " unknown.",
    ]
    peak_flops_per_s: Annotated[
        Number | None, "Peak rate of the GPU in this format; null if unknown."
    ]
    mfu: Annotated[
        Number | None, "`flops_per_s` as a share of the peak; null if the peak is unknown."
    ]


def step_flops(
    rank: Rank, window: Window, counted: CountedFlops, peak: tuple[str | None, float | None]
) -> StepFlops | None:
    """Return the FLOPs of the mean steady step; None if they are not known.

    Args:
        rank: the rank.
        window: what findings are about.
        counted: the kernels of all steady steps, by the shapes of operators.
        peak: the number format in which matrices are multiplied longest, and the GPU's rate in it.
    """
    steps = steady_steps(rank, window)
    total_ns, num = int((steps.end_ns - steps.start_ns).sum()), len(steps.start_ns)
    given = rank.given_flops_per_step
    if given is not None and _are_marked(rank) and len(steps.step):
        source: Literal["given", "shapes"] = "given"
        flops, coverage = given, 1.0
    else:
        source, flops = "shapes", counted.flops / num
        coverage = share(counted.known_ns, counted.total_ns) if counted.total_ns else 1.0
    if not total_ns or not flops or coverage < _MIN_COVERAGE:
        return None
    per_s = flops * num * 1e9 / total_ns
    precision, peak_per_s = peak
    return StepFlops(
        rank=rank.rank,
        source=source,
        flops=flops,
        coverage=coverage,
        step_ns=round(total_ns / num),
        flops_per_s=per_s,
        precision=precision,
        peak_flops_per_s=peak_per_s,
        mfu=None if peak_per_s is None else per_s / peak_per_s,
    )


def _are_marked(rank: Rank) -> bool:
    """Return whether ranges mark steps: a period may be a part of what a user calls a step."""
    return rank.steps is not None and rank.steps.found_by is StepsSource.RANGES
