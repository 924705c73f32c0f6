"""Parts of a rank's compute: categories, number formats, and the longest kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses.compute.own_time import own_time
from traceprof.analyses.compute.step_flops import StepFlops, step_flops
from traceprof.analyses.shape.results import RankResult
from traceprof.hardware import peak_flops_per_s
from traceprof.kernel_names.categories import MAIN_COMPUTE, KernelKind, kernel_kind
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from traceprof.analyses.kernels.launched_kernels import LaunchedKernels
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window

GRAPH = "graph"
"""The category of kernels inside CUDA graphs that were traced as a whole."""
_NUM_LARGEST = 3


class ComputePart(Record, frozen=True):
    """Kernels of one category, number format and unit.

    Attributes:
        category: a `Category`, or `graph`.
        precision: one of `PRECISIONS`; None if names have none, or several.
        tensor_cores: whether they compute on tensor cores; None if names do not show it.
        total_ns: their time, of kernels at once that of the one that began first.
        num_kernels: how many run in the window; None for those inside graphs.
        peak_flops_per_s: the peak of the GPU for these multiplications; None if that is unknown.
        flops: multiplications and additions; None if they are not known of all the kernels.
    """

    category: str
    precision: str | None
    tensor_cores: bool | None
    total_ns: int
    num_kernels: int | None
    peak_flops_per_s: float | None
    flops: int | None = None

    @property
    def flops_per_s(self) -> float | None:
        """What was multiplied and added per second; None if that is unknown."""
        return None if not self.flops or not self.total_ns else self.flops * 1e9 / self.total_ns


class SignatureUse(Record, frozen=True):
    """The kernels of one name, grid and block.

    Attributes:
        name: the demangled name.
        grid: x, y, z; None if the export lacks them.
        total_ns: their time, as in `ComputePart`.
        num_kernels: how many run in the window.
    """

    name: str
    grid: tuple[int, int, int] | None
    total_ns: int
    num_kernels: int


class ComputeParts(RankResult, frozen=True):
    """The compute of one rank.

    Attributes:
        parts: they add up to the time in which anything computed; the longest first.
        largest: the three signatures that take most.
        in_step: the FLOPs of a mean step; None if they are not known.
    """

    parts: tuple[ComputePart, ...]
    largest: tuple[SignatureUse, ...]
    in_step: StepFlops | None = None

    def with_rank(self, rank: int) -> ComputeParts:
        """Return the same with the rank's number in the run."""
        in_step = self.in_step and structs.replace(self.in_step, rank=rank)
        return replace(self, rank=rank, in_step=in_step)

    @property
    def total_ns(self) -> int:
        """The time in which anything computed."""
        return sum(part.total_ns for part in self.parts)


def run(
    rank: Rank, window: Window, launched: LaunchedKernels, judged: Window | None = None
) -> ComputeParts:
    """Divide the compute of a rank in a window.

    Args:
        rank: the rank.
        window: the part of it.
        launched: what launched the kernels in the same window.
        judged: what findings are about, whose mean step counts; the same where not given.
    """
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    chosen = _inside(rank, window)
    start, end = kernels.start_ns.take(chosen), kernels.ends(chosen)
    place, signatures = _ordered_signatures(rank)
    which = place.take(kernels.packed_signature.at(chosen))
    count = np.bincount(which, minlength=len(signatures))
    num_signatures = len(signatures)
    if len(graphs):
        start = np.concatenate((start, graphs.start_ns))
        end = np.concatenate((end, graphs.end_ns))
        which = np.append(which, np.full(len(graphs), num_signatures))
    own, which = own_time(start, end, which, (window.start_ns, window.end_ns))
    spent = _sums(own, which, num_signatures + 1)
    parts: dict[tuple[str, str | None, bool | None], list[int]] = {}
    flops: dict[tuple[str, str | None, bool | None], dict[str, int | None]] = {}
    peaks: dict[tuple[str, str | None, bool | None], float | None] = {}
    for signature, total, num in zip(signatures, spent, count.tolist(), strict=False):
        if num:
            kind = signature.kind
            key = str(kind.category), kind.precision, kind.tensor_cores
            peaks[key] = peak_of_kind(rank.gpu, kind)
            flops.setdefault(key, {})[signature.name] = launched.of(signature.name).flops
            row = parts.setdefault(key, [0, 0])
            row[0] += total
            row[1] += num
    rows = [
        ComputePart(*key, total, num, peaks[key], _total(flops[key].values()))
        for key, (total, num) in parts.items()
    ]
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
    """Return the kernels that compute in the window at all, int64[n] indices."""
    kernels = rank.operations.kernels
    is_inside: Mask = window.holds_start(kernels.start_ns)
    first = int(is_inside.argmax()) if is_inside.any() else len(kernels)
    before = np.flatnonzero(kernels.ends(slice(0, first)) > window.start_ns)
    before = before[kernels.start_ns[before] < window.end_ns]
    is_inside[before] = True
    is_inside &= ~rank.is_communication_kernel
    return np.flatnonzero(is_inside)


def _sums(values: Int64, which: Int64, num: int) -> list[int]:
    """Return exact sums by kind, also where they do not fit 64 bits."""
    upper = np.bincount(which, values >> 24, num)
    lower = np.bincount(which, values & 0xFF_FFFF, num)
    return [(int(above) << 24) + int(below) for above, below in zip(upper, lower, strict=True)]


def _total(numbers: Collection[int | None]) -> int | None:
    """Return the sum; None if one of them is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def peak_of_kind(gpu: str | None, kind: KernelKind) -> float | None:
    """Return the peak rate of a GPU for kernels that multiply matrices; None if unknown."""
    if kind.category not in MAIN_COMPUTE:
        return None
    return peak_flops_per_s(gpu, kind.precision, tensor_cores=kind.tensor_cores)
