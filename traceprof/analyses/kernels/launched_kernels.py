"""The code that launched the kernels of a rank: operators, modules, lines of Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceprof.analyses.shape.results import RankResult
from traceprof.host.launching_code import launching_code
from traceprof.kernel_names.categories import MAIN_COMPUTE, kernel_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceprof.host.launching_code import Int32, LaunchingCode
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank, Window

SEPARATOR = "."
"""Between a module and the one around it, in a path."""


class Launcher(NamedTuple):
    """The code that launched most of the time of the kernels of one name; None where unknown.

    Attributes:
        operator: the innermost operator of the framework.
        module: the path of the innermost module; of the backward, that of the forward's operator.
        source: the file, line and name of the innermost function that is no framework's.
        flops: multiplications and additions of all these kernels, by the shapes of the operators;
            of an operator's kernels those that multiply matrices share them by their time.
    """

    operator: str | None = None
    module: str | None = None
    source: str | None = None
    flops: int | None = None


class ModuleUse(NamedTuple):
    """The kernels that a module launched.

    Attributes:
        module: its path, from the outermost module.
        total_ns: the sum of their durations, with those of the modules inside it.
        own_ns: without those.
        backward_ns: the part of `total_ns` that is the backward of its operators.
        num_kernels: how many, with those of the modules inside it.
    """

    module: str
    total_ns: int
    own_ns: int
    backward_ns: int
    num_kernels: int


@dataclass(frozen=True, slots=True)
class LaunchedKernels(RankResult):
    """The code that launched the kernels of one rank.

    Attributes:
        by_name: by the kernel's name; empty where nothing is known of the host's code.
        modules: outer ones first, and of those inside the same one the longest first.
    """

    by_name: Mapping[str, Launcher]
    modules: tuple[ModuleUse, ...]

    def of(self, name: str) -> Launcher:
        """Return what launched the kernels of a name."""
        return self.by_name.get(name, Launcher())


def run(rank: Rank, window: Window) -> LaunchedKernels:
    """Return what launched the kernels that start in a window of a rank."""
    kernels = rank.operations.kernels
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns))
    code = launching_code(rank, chosen) if len(chosen) else None
    if code is None:
        return LaunchedKernels(rank.rank, {}, ())
    length = kernels.packed_length.at(chosen)
    of_signature = kernels.name_of_signature
    ids = np.unique(of_signature[kernels.packed_signature.distinct])
    which = np.searchsorted(ids, of_signature)[kernels.packed_signature.kept[chosen]]
    most: list[list[Any]] = [
        _most(which, values, length, len(ids), texts)
        for values, texts in (
            (code.operator, code.operators),
            (code.module, code.modules),
            (code.line, code.lines),
        )
    ]
    most.append(_flops(rank, code, which, length, ids))
    is_used = np.bincount(which, minlength=len(ids)) > 0
    by_name = {
        rank.kernel_names[id_]: Launcher(*launcher)
        for id_, launcher, used in zip(ids.tolist(), zip(*most, strict=True), is_used, strict=True)
        if used
    }
    return LaunchedKernels(rank.rank, by_name, _modules(code, length))


def _most(
    which: Int64, values: Int32, length_ns: Int64, num_names: int, texts: Sequence[str]
) -> list[str | None]:
    """Return the value of most of the time of each name; None where that is not known."""
    width = len(texts) + 1
    pairs, place = np.unique(which * width + values + 1, return_inverse=True)
    spent = np.bincount(place, length_ns + 1)  # those without length count a little
    name, value = np.divmod(pairs, width)
    order = np.lexsort((spent, name))
    last = np.searchsorted(name[order], np.arange(num_names), side="right") - 1
    of_most = (value[order[last]] - 1).tolist()
    return [texts[number] if number >= 0 else None for number in of_most]


def _flops(
    rank: Rank, code: LaunchingCode, which: Int64, length_ns: Int64, ids: Int64
) -> list[int | None]:
    """Return the FLOPs of the kernels of each name; None where those of one are not known.

    Args:
        rank: the rank.
        code: around the launches of n kernels.
        which: int64[n], the name of each.
        length_ns: int64[n].
        ids: int64[m], of the names.
    """
    kinds = [
        kernel_kind(rank.kernel_names[id_], communicates=id_ in rank.communication_operations)
        for id_ in ids.tolist()
    ]
    multiplies = np.array([kind.category in MAIN_COMPUTE for kind in kinds], np.bool_)
    known = np.flatnonzero(code.counted >= 0)
    operators, operator = np.unique(code.counted[known], return_inverse=True)
    is_matrix = multiplies[which[known]]
    has_matrix = np.bincount(operator, is_matrix, len(operators)) > 0
    counts = is_matrix | ~has_matrix[operator]
    weight = np.where(counts, length_ns[known], 0)
    total = np.maximum(np.bincount(operator, weight, len(operators)), 1)
    flops = code.flops[operators][operator] * (weight / total[operator])
    of_name = np.bincount(which[known], flops, len(ids))
    num_known = np.bincount(which[known], counts, len(ids))
    is_known = (num_known == np.bincount(which, minlength=len(ids))) & (of_name > 0)
    return [
        round(number) if use else None
        for number, use in zip(of_name.tolist(), is_known, strict=True)
    ]


def _modules(code: LaunchingCode, length_ns: Int64) -> tuple[ModuleUse, ...]:
    known = np.flatnonzero(code.module >= 0)
    module, num = code.module[known], len(code.modules)
    sums = [np.zeros(num, np.int64) for _ in range(2)]
    np.add.at(sums[0], module, length_ns[known])
    np.add.at(sums[1], module, np.where(code.is_backward[known], length_ns[known], 0))
    counts = np.bincount(module, minlength=num).tolist()
    total: dict[str, list[int]] = {}
    columns = (sum_.tolist() for sum_ in sums)
    for path, spent, backward, count in zip(code.modules, *columns, counts, strict=True):
        for around in _around(path):
            row = total.setdefault(around, [0, 0, 0, 0])
            own = spent if around == path else 0
            for place, value in enumerate((spent, own, backward, count)):
                row[place] += value
    used = {path: row for path, row in total.items() if row[3]}
    order = sorted(used, key=lambda path: [(-used[one][0], one) for one in _around(path)])
    return tuple(ModuleUse(path, *used[path]) for path in order)


def _around(path: str) -> Iterator[str]:
    """Yield the paths of the modules around one, the outermost first, and its own."""
    parts = path.split(SEPARATOR)
    return (SEPARATOR.join(parts[:stop]) for stop in range(1, len(parts) + 1))
