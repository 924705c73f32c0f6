"""Parts of a rank's compute: categories, number formats, and the longest kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import sums_by
from traceprof.analyses.kernels.launched_kernels import CountedFlops, LaunchedKernels
from traceprof.analyses.results import RankResult
from traceprof.findings import Count, Fraction, Number, one_of, share
from traceprof.hardware import peak_flops_per_s
from traceprof.intervals import Int64, Mask
from traceprof.kernel_names.arithmetic import PRECISIONS
from traceprof.kernel_names.categories import MAIN_COMPUTE, Category, KernelKind, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import steady_steps
from traceprof.run.step_ranges import StepsSource
from traceprof.structs import Record, by_key


def own_time(
    start_ns: Int64, end_ns: Int64, which: Int64, window: tuple[int, int]
) -> tuple[Int64, Int64]:
    """Divide the union of spans among them: where several overlap, the one that began first has it.

    Of those that began together it is the one that ends first, then that of the lowest kind
    (`which`).

    Returns:
        int64[n] ns that add up to the measure of the union in the window, and int64[n] kinds, both
        in the order of the spans' starts.
    """
    order = np.lexsort((which, end_ns, start_ns))
    start_ns, end_ns, which = start_ns[order], end_ns[order], which[order]
    end = np.clip(end_ns, *window)
    begin = np.clip(start_ns, *window)
    reached = np.maximum.accumulate(end)
    np.maximum(begin[1:], reached[:-1], out=begin[1:])
    end -= begin
    return np.maximum(end, 0, out=end), which


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

    `counted`: the kernels of all steady steps, by the shapes of operators. `peak`: the number
    format in which matrices are multiplied longest, and the GPU's rate in it.
    """
    steps = steady_steps(rank, window)
    total_ns, num = int((steps.end_ns - steps.start_ns).sum()), len(steps.start_ns)
    given = rank.given_flops_per_step
    # A period may be a part of what a user calls a step.
    are_marked = rank.steps is not None and rank.steps.found_by is StepsSource.RANGES
    if given is not None and are_marked and len(steps.step):
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


GRAPH = "graph"
"""The category of kernels inside CUDA graphs that were traced as a whole."""
_NUM_LARGEST = 3


class ComputePart(Record, frozen=True):
    """Kernels of one category, number format and unit."""

    category: Annotated[
        str,
        one_of(*(str(kind) for kind in Category if kind is not Category.COMMUNICATION), GRAPH),
        "Category as in `kernels`; `graph`: kernels inside CUDA graphs that were traced as a"
        " whole.",
    ]
    precision: Annotated[
        str | None, one_of(*PRECISIONS, None), "Number format as in `kernels`; null for graphs."
    ]
    tensor_cores: Annotated[bool | None, "Whether it runs on tensor cores; null if unknown."]
    total_ns: Count  # of kernels at once the time of the one that began first
    num_kernels: Annotated[
        Count | None, "Number of kernels that run in the window; null for graphs."
    ]
    peak_flops_per_s: Annotated[
        Number | None, "Peak rate of the GPU in this format, on these units; null if unknown."
    ]
    flops: Annotated[
        Count | None,
        "Multiplications and additions, from the shapes of operators as in"
        " `torch.utils.flop_counter`; null unless known for all kernels.",
    ] = None

    @property
    def flops_per_s(self) -> float | None:
        """What was multiplied and added per second; None if that is unknown."""
        return None if not self.flops or not self.total_ns else self.flops * 1e9 / self.total_ns


class SignatureUse(Record, frozen=True):
    """The kernels of one name, grid and block."""

    name: str  # the demangled name
    grid: tuple[int, int, int] | None  # x, y, z; None if the export lacks them
    total_ns: int  # their time, as in `ComputePart`
    num_kernels: int  # how many run in the window


class ComputeParts(RankResult, frozen=True):
    """The compute of one rank."""

    # they add up to the time in which anything computed; the longest first
    parts: tuple[ComputePart, ...]
    largest: tuple[SignatureUse, ...]  # the three signatures that take most
    in_step: StepFlops | None = None  # the FLOPs of a mean step; None if they are not known

    @property
    def total_ns(self) -> int:
        """The time in which anything computed."""
        return sum(part.total_ns for part in self.parts)


def run(
    rank: Rank, window: Window, launched: LaunchedKernels, judged: Window | None = None
) -> ComputeParts:
    """Divide the compute of a rank in a window; the mean step is one of `judged`, if given."""
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    chosen = _inside(rank, window)
    start, end = kernels.start_ns.take(chosen), kernels.ends(chosen)
    place, signatures = _ordered_signatures(rank)
    which = place.take(kernels.packed_signature.at(chosen))
    count = np.bincount(which, minlength=len(signatures))
    if len(graphs):
        start = np.concatenate((start, graphs.start_ns))
        end = np.concatenate((end, graphs.end_ns))
        which = np.append(which, np.full(len(graphs), len(signatures)))
    own, which = own_time(start, end, which, (window.start_ns, window.end_ns))
    spent = sums_by(which, own, len(signatures) + 1)
    kinds = [(one.kind.category, one.kind.precision, one.kind.tensor_cores) for one in signatures]
    by_kind = by_key(np.flatnonzero(count).tolist(), kinds.__getitem__)
    rows = []
    for (category, precision, on_tensor_cores), members in by_kind.items():
        flops = [launched.of(name).flops for name in {signatures[at].name for at in members}]
        rows.append(
            ComputePart(
                str(category),
                precision,
                on_tensor_cores,
                sum(spent[index] for index in members),
                int(count[members].sum()),
                peak_of_kind(rank.gpu, signatures[members[0]].kind),
                None if None in flops else sum(known or 0 for known in flops),
            )
        )
    if spent[-1]:
        rows.append(ComputePart(GRAPH, None, None, spent[-1], None, None))
    rows.sort(key=lambda part: (-part.total_ns, part.category, str(part.precision)))
    largest = intervals.largest(np.array(spent[:-1], np.int64), _NUM_LARGEST).tolist()
    return ComputeParts(
        rank.rank,
        tuple(rows),
        tuple(
            SignatureUse(signatures[index].name, signatures[index].grid, spent[index], num)
            for index in largest
            if (num := int(count[index]))
        ),
        step_flops(rank, judged or window, launched.in_steps, _peak_of(rows)),
    )


def _peak_of(rows: Iterable[ComputePart]) -> tuple[str | None, float | None]:
    """Return the number format in which matrices are multiplied longest, and its peak.

    Nothing is known of it where graphs hide more.
    """
    categories = {str(category) for category in MAIN_COMPUTE} | {GRAPH}
    spent: dict[tuple[str | None, float | None], int] = {}
    for part in rows:
        if part.category in categories:
            key = part.precision, part.peak_flops_per_s
            spent[key] = spent.get(key, 0) + part.total_ns
    return max(spent, key=lambda key: spent[key], default=(None, None))


class _Signature(Record, frozen=True):
    name: str
    grid: tuple[int, int, int] | None
    kind: KernelKind


def _ordered_signatures(rank: Rank) -> tuple[Int64, list[_Signature]]:
    """Return the place of each signature in an order by name, grid and block, and all in it."""
    known = rank.trace.signatures
    names, shapes = known.name.tolist(), known.shape.tolist()
    # Equal ones are of several processes.
    keys = [(rank.kernel_names[name], *shape) for name, shape in zip(names, shapes, strict=True)]
    distinct = sorted(set(keys))
    number = {key: index for index, key in enumerate(distinct)}
    communicates = {rank.kernel_names[id_] for id_ in rank.communication_operations}
    signatures = [
        _Signature(
            name,
            None if min(shape[:3]) < 0 else (shape[0], shape[1], shape[2]),
            kernel_kind(name, communicates=name in communicates),
        )
        for name, *shape in distinct
    ]
    return np.array([number[key] for key in keys], np.int64), signatures


def _inside(rank: Rank, window: Window) -> Int64:
    kernels = rank.operations.kernels
    is_inside: Mask = window.holds_start(kernels.start_ns)
    first = int(is_inside.argmax()) if is_inside.any() else len(kernels)
    before = np.flatnonzero(kernels.ends(slice(0, first)) > window.start_ns)
    before = before[kernels.start_ns[before] < window.end_ns]
    is_inside[before] = True
    is_inside &= ~rank.is_communication_kernel
    return np.flatnonzero(is_inside)


def peak_of_kind(gpu: str | None, kind: KernelKind) -> float | None:
    """Return the peak rate of a GPU for kernels that multiply matrices; None if unknown."""
    if kind.category not in MAIN_COMPUTE:
        return None
    return peak_flops_per_s(gpu, kind.precision, tensor_cores=kind.tensor_cores)
