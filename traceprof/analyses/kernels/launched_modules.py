"""The modules of a model that launched kernels: what they take in all, and in a steady step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.analyses.kernels.kernel_steps import in_steady_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.analyses.kernels.kernel_steps import InSteadyStep
    from traceprof.host.launching_code import LaunchingCode
    from traceprof.intervals import Int64
    from traceprof.run.steady_steps import SteadySteps

SEPARATOR = "."
"""Between a module and the one around it, in a path."""


class ModuleUse(NamedTuple):
    """The kernels that a module launched.

    Attributes:
        module: its path, from the outermost module.
        total_ns: the sum of their durations, with those of the modules inside it.
        own_ns: without those.
        backward_ns: the part of `total_ns` that is the backward of its operators.
        num_kernels: how many, with those of the modules inside it.
        in_steady_step: what they take in one, with those of the modules inside it; None of a module
            that occurs in none.
    """

    module: str
    total_ns: int
    own_ns: int
    backward_ns: int
    num_kernels: int
    in_steady_step: InSteadyStep | None


def modules(
    code: LaunchingCode, start_ns: Int64, length_ns: Int64, steps: SteadySteps
) -> tuple[ModuleUse, ...]:
    """Return the modules: outer ones first, and of those inside the same one the longest first.

    Args:
        code: around the launches of n kernels.
        start_ns: int64[n], ascending, of the kernels.
        length_ns: int64[n].
        steps: the steady steps.
    """
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
    """Return what modules take in a steady step, with those inside them, by path."""
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
