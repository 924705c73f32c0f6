"""The code that launched the kernels of a rank: operators, modules, lines of Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from traceprof.analyses.kernels.kernel_table import InSteadyStep, in_steady_steps
from traceprof.analyses.results import RankResult
from traceprof.findings import Count
from traceprof.host.launching_code import LaunchingCode, launching_code
from traceprof.host.places import kinds_of_places
from traceprof.intervals import Int32, Int64, Mask, holder
from traceprof.kernel_names.categories import MAIN_COMPUTE, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import SteadySteps, steady_steps
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, numbered

SEPARATOR = "."
"""Between a module and the one around it, in a path."""


class ModuleUse(Record, frozen=True):
    """The kernels that a module launched."""

    module: Annotated[str, "Path from the outermost module, with dots."]
    total_ns: Annotated[Count, "Sum of kernel durations, including the modules inside it."]
    own_ns: Annotated[Count, "The same without the modules inside it."]
    backward_ns: Annotated[Count, "The part of `total_ns` in the backward pass."]
    num_kernels: Annotated[Count, "Number of kernels, including the modules inside it."]
    in_steady_step: InSteadyStep | None  # None of a module that occurs in none


def modules(
    code: LaunchingCode, start_ns: Int64, length_ns: Int64, steps: SteadySteps
) -> tuple[ModuleUse, ...]:
    """Return the modules: outer ones first, and of those inside the same one the longest first."""
    known = np.flatnonzero(code.module >= 0)
    module, num = code.module[known], len(code.modules)
    sums = [np.zeros(num, np.int64) for _ in range(2)]
    np.add.at(sums[0], module, length_ns[known])
    np.add.at(sums[1], module, np.where(code.is_backward[known], length_ns[known], 0))
    counts = np.bincount(module, minlength=num).tolist()
    total: dict[str, list[int]] = {}
    columns = (sum_.tolist() for sum_ in sums)
    for path, spent, backward, count in zip(code.modules, *columns, counts, strict=True):
        for around in modules_around(path):
            row = total.setdefault(around, [0, 0, 0, 0])
            own = spent if around == path else 0
            for place, value in enumerate((spent, own, backward, count)):
                row[place] += value
    used = {path: row for path, row in total.items() if row[3]}
    order = sorted(used, key=lambda path: [(-used[name][0], name) for name in modules_around(path)])
    steady = _in_steady_steps(code, start_ns, length_ns, steps)
    columns_of = (used[path] for path in order)
    return tuple(
        ModuleUse(path, spent, own, backward, count, steady.get(path))
        for path, (spent, own, backward, count) in zip(order, columns_of, strict=True)
    )


def _in_steady_steps(
    code: LaunchingCode, start_ns: Int64, length_ns: Int64, steps: SteadySteps
) -> Mapping[str, InSteadyStep]:
    paths = [[*modules_around(path)] for path in code.modules]
    steady: dict[str, InSteadyStep] = {}
    for depth in range(max(map(len, paths), default=0)):  # few
        names = list(dict.fromkeys(path[depth] for path in paths if len(path) > depth))
        place = {name: index for index, name in enumerate(names)}
        # The last stands for those of no module so deep.
        of_path = [place[path[depth]] if len(path) > depth else len(names) for path in paths]
        which = np.array([*of_path, len(names)], np.int64)[code.module]
        uses = in_steady_steps(start_ns, length_ns, which, len(names) + 1, steps)
        steady |= {name: use for name, use in zip(names, uses, strict=False) if use is not None}
    return steady


def modules_around(path: str) -> Iterator[str]:
    """Yield the paths of the modules around one, the outermost first, and its own."""
    parts = path.split(SEPARATOR)
    return (SEPARATOR.join(parts[:stop]) for stop in range(1, len(parts) + 1))


class Launcher(Record, frozen=True):
    """The code that launched most of the time of the kernels of one name."""

    operator: Annotated[
        str | None, "The innermost operator that launched most of this time; null if unknown."
    ] = None
    # Of the backward, that of the forward's operator.
    module: Annotated[
        str | None, "The module that launched most of this time, as in `modules`; null if unknown."
    ] = None
    source: Annotated[
        str | None,
        "The line of Python that launched most of this time, the innermost one outside of the"
        " framework; null if unknown.",
    ] = None
    # Of an operator's kernels those that multiply matrices share them by their time.
    flops: Annotated[
        Count | None,
        "Multiplications and additions of all these kernels, from the shapes of operators; null"
        " unless known for each.",
    ] = None
    moved_bytes: Annotated[
        Count | None,
        "The least number of bytes that all these kernels move, from the shapes of operators:"
        " each input is read once, each output written once; null unless known for each.",
    ] = None
    range: Annotated[
        str | None,
        "The range of the program or its framework around the launches of most of this time, the"
        " innermost one, with `#` for numbers; null if there is none.",
    ] = None

    def flops_per_s(self, total_ns: int) -> float | None:
        """Return the FLOPs per second of kernels that took so long together; None if unknown."""
        return None if not self.flops or not total_ns else self.flops * 1e9 / total_ns

    def gb_per_s(self, total_ns: int) -> float | None:
        """Return what kernels that took so long together move per second; None if unknown."""
        return None if not self.moved_bytes or not total_ns else self.moved_bytes / total_ns


class CountedFlops(Record, frozen=True):
    """The FLOPs of kernels, by the shapes of operators."""

    flops: float = 0.0  # multiplications and additions of those where they are known
    known_ns: int = 0  # durations of the kernels that multiply matrices and whose FLOPs are known
    total_ns: int = 0  # durations of all kernels that multiply matrices


_UNCOUNTED = CountedFlops()


class LaunchedKernels(RankResult, frozen=True):
    """The code that launched the kernels of one rank."""

    # by the kernel's name; empty if neither code nor ranges of the host are known
    by_name: Mapping[str, Launcher]
    # outer ones first, and of those inside the same one the longest first
    modules: tuple[ModuleUse, ...]
    in_steps: CountedFlops = _UNCOUNTED  # the FLOPs of the kernels that start in steady steps

    @property
    def has_rates(self) -> bool:
        """Whether what a kernel computes or moves is known of any."""
        return any(
            code.flops is not None or code.moved_bytes is not None for code in self.by_name.values()
        )

    @property
    def in_modules_ns(self) -> int:
        """The sum of the durations of all kernels that modules launched."""
        return sum(use.total_ns for use in self.modules if SEPARATOR not in use.module)

    def of(self, name: str) -> Launcher:
        """Return what launched the kernels of a name."""
        return self.by_name.get(name, Launcher())


def run(rank: Rank, window: Window, judged: Window | None = None) -> LaunchedKernels:
    """Return what launched the kernels that start in a window of a rank.

    Steady steps are counted within `judged`, if given.
    """
    kernels = rank.operations.kernels
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns))
    code = launching_code(rank, chosen) if len(chosen) else None
    at, ranges = kinds_of_places(rank, rank.launched_by[0].take(chosen))
    if code is None and not ranges:
        return LaunchedKernels(rank.rank, {}, ())
    length = kernels.packed_length.at(chosen)
    of_signature = kernels.name_of_signature
    ids = distinct_values(of_signature[kernels.packed_signature.distinct])
    which = np.searchsorted(ids, of_signature).take(kernels.packed_signature.kept.take(chosen))
    most: list[list[Any]] = [[None] * len(ids)] * 5
    if code is not None:
        most = [
            _most(which, values, length, len(ids), texts)
            for values, texts in (
                (code.operator, code.operators),
                (code.module, code.modules),
                (code.line, code.lines),
            )
        ]
        names, communicating = rank.kernel_names, rank.communication_operations
        kinds = [kernel_kind(names[id_], communicates=id_ in communicating) for id_ in ids.tolist()]
        is_matrix = [kind.category in MAIN_COMPUTE for kind in kinds]
        flops = _flops(code, np.array(is_matrix, np.bool_).take(which), length)
        most.append(_by_name(flops.values, flops.are_known, which, len(ids)))
        most.append(_by_name(*_moved(code, length), which, len(ids)))
    most.append(_most(which, at, length, len(ids), ranges))
    is_used = np.bincount(which, minlength=len(ids)) > 0
    by_name = {
        rank.kernel_names[id_]: Launcher(*launcher)
        for id_, launcher, used in zip(ids.tolist(), zip(*most, strict=True), is_used, strict=True)
        if used
    }
    if code is None:
        return LaunchedKernels(rank.rank, by_name, ())
    start, steps = kernels.start_ns.take(chosen), steady_steps(rank, judged or window)
    in_steps = _in_steps(rank, steps, start, length, flops)
    return LaunchedKernels(rank.rank, by_name, modules(code, start, length, steps), in_steps)


def _most(
    which: Int64, values: Int32, length_ns: Int64, num_names: int, texts: Sequence[str]
) -> list[str | None]:
    if not len(texts) or not len(which):
        return [None] * num_names
    width = len(texts) + 1
    pairs, place = numbered(which * width + values + 1)
    spent = np.bincount(place, length_ns + 1)  # those without length count a little
    name, value = np.divmod(pairs, width)
    order = np.lexsort((spent, name))
    last = np.searchsorted(name[order], np.arange(num_names), side="right") - 1
    of_most = (value[order[last]] - 1).tolist()
    return [texts[number] if number >= 0 else None for number in of_most]


class _Flops(Record, frozen=True):
    """FLOPs of n kernels."""

    is_matrix: Mask  # bool[n], whether one multiplies matrices, by its name
    values: npt.NDArray[np.float64]  # float64[n], 0 if they are not known
    are_known: Mask  # bool[n]; of an operator that multiplies matrices not those of other kernels


def _flops(code: LaunchingCode, is_matrix: Mask, length_ns: Int64) -> _Flops:
    known = np.flatnonzero(code.counted >= 0)
    operator = code.counted[known]
    has_matrix = np.bincount(operator, is_matrix[known], len(code.flops)) > 0
    are_known = np.zeros(len(length_ns), np.bool_)
    are_known[known] = is_matrix[known] | ~has_matrix[operator]
    values = _shared_out(code.flops, code.counted, np.where(are_known, length_ns, 0))
    return _Flops(is_matrix, values, are_known)


def _shared_out(amount: Int64, operator: Int32, weight: Int64) -> npt.NDArray[np.float64]:
    """Share what operators do out among their kernels, float64[n]; `operator`: -1 for none."""
    known = np.flatnonzero(operator >= 0)
    operators, which = np.unique(operator[known], return_inverse=True)
    share = weight[known] / np.maximum(np.bincount(which, weight[known], len(operators)), 1)[which]
    values = np.zeros(len(operator))
    values[known] = amount[operators][which] * share
    return values


def _moved(code: LaunchingCode, length_ns: Int64) -> tuple[npt.NDArray[np.float64], Mask]:
    """Share the bytes of innermost operators out among their kernels, by time.

    Returns:
        float64[n], and bool[n] where they are known.
    """
    are_known = code.innermost >= 0
    are_known[are_known] = code.moved.take(code.innermost[are_known]) > 0
    operator = np.where(are_known, code.innermost, np.int32(-1))
    return _shared_out(code.moved, operator, length_ns), are_known


def _by_name(
    values: npt.NDArray[np.float64], are_known_of: Mask, which: Int64, num_names: int
) -> list[int | None]:
    """Return the sum over the kernels of each name; None if one of them is not known."""
    if not are_known_of.any():
        return [None] * num_names
    of_name = np.bincount(which, values, num_names)
    num_known = np.bincount(which, are_known_of, num_names)
    are_known = (num_known == np.bincount(which, minlength=num_names)) & (of_name > 0)
    return [
        round(number) if use else None
        for number, use in zip(of_name.tolist(), are_known, strict=True)
    ]


def _in_steps(
    rank: Rank, steps: SteadySteps, start_ns: Int64, length_ns: Int64, flops: _Flops
) -> CountedFlops:
    """Count the kernels that start in steady steps; none where graphs hide some."""
    graphs = rank.operations.graphs.start_ns
    if (holder(steps.start_ns, steps.end_ns, graphs) >= 0).any():
        return _UNCOUNTED
    inside = holder(steps.start_ns, steps.end_ns, start_ns) >= 0
    is_matrix = inside & flops.is_matrix
    return CountedFlops(
        float(flops.values[inside].sum()),
        int(length_ns[is_matrix & flops.are_known].sum()),
        int(length_ns.compress(is_matrix).sum()),
    )
