"""Time of ranks, steps and kernels in the document of an analysis."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.analyses.breakdown import Measures
from traceprof.analyses.compute.compute_parts import GRAPH
from traceprof.analyses.kernels.kernel_table import KernelUse
from traceprof.analyses.steps.step_lengths import WhyLeftOut
from traceprof.documents.analysis.rows import record
from traceprof.findings import Count, Fraction, Number
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.kernel_names.categories import Category
from traceprof.run import training
from traceprof.run.concurrency import KindBeside

_COMPUTE = [*(str(one) for one in Category if one is not Category.COMMUNICATION), GRAPH]


@record("rank", ...)
class Breakdown(Measures, frozen=True, kw_only=True):
    """compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns = window_ns."""

    rank: Count


@record("rank", "start_ns", "end_ns", "before_ns", "after_ns")
class Training(training.Training, frozen=True, kw_only=True):
    """Training part of a rank's window: findings are about it if nothing else is asked for."""

    rank: Count


@record(
    "rank", "step", "start_ns", "end_ns", ..., "left_out", "phase", without=("window_start_ns",)
)
class Step(Measures, frozen=True, kw_only=True):
    """The same of a training step: the four parts sum to window_ns."""

    rank: Count
    step: Count
    start_ns: int
    end_ns: int
    left_out: Annotated[
        WhyLeftOut | Literal["not judged"] | None,
        Meta(
            description="Why it does not count for what a step takes, null where it does. `cut`,"
            " `opening` and `rare` as in `headline.left_out`; `not judged`: no part of what"
            " findings are about, such as warm-up."
        ),
    ]
    phase: Annotated[
        int,
        Meta(
            ge=0,
            description="Where steps are periods: of which phase of the program, from 0 in order"
            " of time. Else 0.",
        ),
    ] = 0


@record("rank", ...)
class Beside(KindBeside, frozen=True, kw_only=True):
    """Time of a kind of GPU operations on a rank, and its part beside each kind.

    Of the part of the window that findings judge. Operations of one kind beside each other are not
    shown: its time beside itself is `total_ns`.
    """

    rank: Count


class Compute(Struct, forbid_unknown_fields=True):
    """Compute of a rank, by what its kernels do: `total_ns` adds up to `compute_ns` of `breakdown`.

    Of kernels at once, the one that began first counts. None of a rank without a GPU.
    """

    rank: Count
    category: Annotated[
        str,
        Meta(
            description="As in `kernels`; `graph`: kernels inside CUDA graphs that were traced as a"
            " whole.",
            extra_json_schema={"enum": _COMPUTE},
        ),
    ]
    precision: Annotated[
        str | None,
        Meta(
            description="As in `kernels`; null for graphs.",
            extra_json_schema={"enum": [*PRECISIONS, None]},
        ),
    ]
    tensor_cores: Annotated[
        bool | None,
        Meta(description="Whether it is on tensor cores; null if unknown."),
    ]
    total_ns: Count
    num_kernels: Annotated[
        Count | None, Meta(description="Kernels that run in the window; null for graphs.")
    ]
    flops: Annotated[
        Count | None,
        Meta(
            description="Multiplications and additions, by the shapes of operators as"
            " `torch.utils.flop_counter` counts; null where they are not known of all its kernels."
        ),
    ]
    flops_per_s: Annotated[Number | None, Meta(description="`flops` per time.")]
    peak_flops_per_s: Annotated[
        Number | None,
        Meta(description="What the GPU can do in this format and unit; null if unknown."),
    ]


@record(
    "rank", "name", "category", "precision", "tensor_cores", ..., "per_steady_step_ns",
    "steady_error_ns", "place", "operator", "module", "flops", "source",
    "flops_per_s", "peak_flops_per_s", "moved_bytes", "gb_per_s", "peak_gb_per_s",
    without=("kind", "in_steady_step"),
)  # fmt: skip
class Kernel(KernelUse, frozen=True, kw_only=True):
    """The kernels of one name on a rank, communication among them."""

    rank: Count
    category: Annotated[
        str,
        Meta(
            description="What it does, by its name; `other` also where the name is not known.",
            extra_json_schema={"enum": [str(category) for category in Category]},
        ),
    ]
    precision: Annotated[
        str | None,
        Meta(
            description="The number format that it computes in; null where its name has none, or"
            " several.",
            extra_json_schema={"enum": [*PRECISIONS, None]},
        ),
    ]
    tensor_cores: Annotated[
        bool | None,
        Meta(description="Whether it computes on tensor cores; null if unknown."),
    ]
    per_steady_step_ns: Annotated[
        Count | None,
        Meta(
            description="The mean over steady steps; without steps, of all that findings are about."
            " Null where none runs in them."
        ),
    ]
    steady_error_ns: Annotated[
        Count | None,
        Meta(description="The standard error of that mean, by blocks of neighbouring steps."),
    ]
    place: Annotated[
        Fraction | None,
        Meta(description="Where in the first steady step that has it the first one starts."),
    ]
    operator: Annotated[
        str | None,
        Meta(description="The innermost operator that launched most of its time; null if unknown."),
    ]
    module: Annotated[
        str | None,
        Meta(description="The module of most of its time, as in `modules`; null if unknown."),
    ]
    flops: Annotated[
        Count | None,
        Meta(
            description="Multiplications and additions of all of them, by the shapes of operators;"
            " null if they are not known of one."
        ),
    ]
    source: Annotated[
        str | None,
        Meta(
            description="The line of Python of most of its time, the innermost that is not the"
            " framework's; null if unknown."
        ),
    ]
    flops_per_s: Annotated[Number | None, Meta(description="`flops` per time of the kernels.")]
    peak_flops_per_s: Annotated[
        Number | None,
        Meta(description="What the GPU can do in this format and unit; null if unknown."),
    ]
    moved_bytes: Annotated[
        Count | None,
        Meta(
            description="What all of them move at least, by the shapes of operators: each input is"
            " read once, each output written once; null if it is not known of one."
        ),
    ]
    gb_per_s: Annotated[
        Number | None,
        Meta(description="`moved_bytes` per time of the kernels; caches may exceed the peak."),
    ]
    peak_gb_per_s: Annotated[
        Number | None,
        Meta(description="Of the GPU's memory; null where `gb_per_s` or the peak is unknown."),
    ]


class Module(Struct, forbid_unknown_fields=True):
    """Kernels that a module of the model launched, in the forward and in its backward.

    From the ranges of modules in the report: functions of Python (torch.profiler with stacks or
    modules), or NVTX ranges that begin with the word module and have its path.
    """

    rank: Count
    module: Annotated[str, Meta(description="Path from the outermost module, with dots.")]
    total_ns: Annotated[
        int, Meta(ge=0, description="Sum of durations, with those of the modules inside it.")
    ]
    own_ns: Annotated[int, Meta(ge=0, description="The same without those.")]
    backward_ns: Annotated[int, Meta(ge=0, description="The part of `total_ns` in the backward.")]
    num_kernels: Annotated[int, Meta(ge=0, description="With those of the modules inside it.")]
    per_steady_step_ns: Annotated[
        Count | None,
        Meta(description="As in `kernels`, with those of the modules inside it."),
    ]
    steady_error_ns: Count | None
