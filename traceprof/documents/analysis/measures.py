"""Time of ranks, steps and kernels in the document of an analysis."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from traceprof.analyses.breakdown import Measures
from traceprof.analyses.compute.compute_parts import GRAPH
from traceprof.analyses.kernels.kernel_table import KernelUse
from traceprof.analyses.steps.step_means import WhyLeftOut
from traceprof.documents.analysis.rows import record
from traceprof.findings import Count, Fraction, Number, one_of
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.kernel_names.categories import Category
from traceprof.run import windows
from traceprof.run.completeness import Losses
from traceprof.run.concurrency import KindBeside

_COMPUTE = [*(str(kind) for kind in Category if kind is not Category.COMMUNICATION), GRAPH]


@record("rank", ...)
class Breakdown(Measures, frozen=True, kw_only=True):
    """compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns + lost_ns = window_ns."""

    rank: Count


@record("rank", "start_ns", "end_ns", "before_ns", "after_ns")
class Training(windows.Training, frozen=True, kw_only=True):
    """Training part of a rank's window: findings are about it if nothing else is asked for."""

    rank: Count


@record(
    "rank", "step", "start_ns", "end_ns", ..., "left_out", "phase", without=("window_start_ns",)
)
class Step(Measures, frozen=True, kw_only=True):
    """The same for a training step: the four parts and lost_ns sum to window_ns."""

    rank: Count
    step: Count
    start_ns: int
    end_ns: int
    left_out: Annotated[
        WhyLeftOut | Literal["not judged"] | None,
        "Why the step does not count toward the mean step; null if it does. `cut`, `opening`"
        " and `rare` as in `headline.left_out`; `not judged`: outside the time that findings"
        " judge, such as warm-up.",
    ]
    phase: Annotated[
        Count,
        "If steps are periods: index of the program's phase, from 0 in order of time. Otherwise 0.",
    ] = 0


@record("rank", ...)
class Completeness(Losses, frozen=True, kw_only=True):
    """Launches of a rank's GPU operations, and how many of these the recording lacks."""

    rank: Annotated[
        Count | None, "Rank; null for processes of which no operation at all was recorded."
    ]


@record("rank", ...)
class Beside(KindBeside, frozen=True, kw_only=True):
    """Time of one kind of GPU operations on a rank, and how much of it overlapped with each kind.

    Only the part of the window that findings judge counts. Overlap within one kind is not shown:
    its time beside itself is `total_ns`.
    """

    rank: Count


class Compute(Struct, forbid_unknown_fields=True):
    """Compute of a rank, by what its kernels do: `total_ns` adds up to `compute_ns` of `breakdown`.

    Where kernels overlap, the one that began first counts. Ranks without a GPU have none.
    """

    rank: Count
    category: Annotated[
        str,
        one_of(*_COMPUTE),
        "Category as in `kernels`; `graph`: kernels inside CUDA graphs that were traced as a"
        " whole.",
    ]
    precision: Annotated[
        str | None, one_of(*PRECISIONS, None), "Number format as in `kernels`; null for graphs."
    ]
    tensor_cores: Annotated[bool | None, "Whether it runs on tensor cores; null if unknown."]
    total_ns: Count
    num_kernels: Annotated[
        Count | None, "Number of kernels that run in the window; null for graphs."
    ]
    flops: Annotated[
        Count | None,
        "Multiplications and additions, from the shapes of operators as in"
        " `torch.utils.flop_counter`; null unless known for all kernels.",
    ]
    flops_per_s: Annotated[Number | None, "`flops` divided by the time."]
    peak_flops_per_s: Annotated[
        Number | None, "Peak rate of the GPU in this format, on these units; null if unknown."
    ]


@record(
    "rank",
    "name",
    "category",
    "precision",
    "tensor_cores",
    ...,
    "per_steady_step_ns",
    "steady_error_ns",
    "place",
    "operator",
    "module",
    "flops",
    "source",
    "flops_per_s",
    "peak_flops_per_s",
    "moved_bytes",
    "gb_per_s",
    "peak_gb_per_s",
    without=("kind", "in_steady_step"),
)
class Kernel(KernelUse, frozen=True, kw_only=True):
    """The kernels of one name on a rank, including communication kernels."""

    rank: Count
    category: Annotated[
        str,
        one_of(*(str(category) for category in Category)),
        "What the kernel does, by its name; `other` also if the name is not recognised.",
    ]
    precision: Annotated[
        str | None,
        one_of(*PRECISIONS, None),
        "The number format in which it computes; null if its name shows none, or several.",
    ]
    tensor_cores: Annotated[bool | None, "Whether it computes on tensor cores; null if unknown."]
    per_steady_step_ns: Annotated[
        Count | None,
        "Time in a steady step, mean over steps; without steps, in the whole time that findings"
        " judge. Null if none runs there.",
    ]
    steady_error_ns: Annotated[
        Count | None, "Standard error of that mean, from blocks of neighbouring steps."
    ]
    place: Annotated[
        Fraction | None,
        "Where the first one starts in the first steady step that has one, as a fraction of the"
        " step.",
    ]
    operator: Annotated[
        str | None, "The innermost operator that launched most of this time; null if unknown."
    ]
    module: Annotated[
        str | None, "The module that launched most of this time, as in `modules`; null if unknown."
    ]
    flops: Annotated[
        Count | None,
        "Multiplications and additions of all these kernels, from the shapes of operators; null"
        " unless known for each.",
    ]
    source: Annotated[
        str | None,
        "The line of Python that launched most of this time, the innermost one outside of the"
        " framework; null if unknown.",
    ]
    flops_per_s: Annotated[Number | None, "`flops` divided by the time of the kernels."]
    peak_flops_per_s: Annotated[
        Number | None, "Peak rate of the GPU in this format, on these units; null if unknown."
    ]
    moved_bytes: Annotated[
        Count | None,
        "The least number of bytes that all these kernels move, from the shapes of operators:"
        " each input is read once, each output written once; null unless known for each.",
    ]
    gb_per_s: Annotated[
        Number | None,
        "`moved_bytes` divided by the time of the kernels; may exceed the peak, because of caches.",
    ]
    peak_gb_per_s: Annotated[
        Number | None, "Peak rate of the GPU's memory; null if it or `gb_per_s` is unknown."
    ]


class Module(Struct, forbid_unknown_fields=True):
    """Kernels that a module of the model launched, in its forward and backward passes.

    Modules come from ranges in the report: Python functions (torch.profiler with stacks or
    modules), or NVTX ranges that begin with the word module and have its path.
    """

    rank: Count
    module: Annotated[str, "Path from the outermost module, with dots."]
    total_ns: Annotated[Count, "Sum of kernel durations, including the modules inside it."]
    own_ns: Annotated[Count, "The same without the modules inside it."]
    backward_ns: Annotated[Count, "The part of `total_ns` in the backward pass."]
    num_kernels: Annotated[Count, "Number of kernels, including the modules inside it."]
    per_steady_step_ns: Annotated[Count | None, "As in `kernels`, including the modules inside it."]
    steady_error_ns: Count | None
