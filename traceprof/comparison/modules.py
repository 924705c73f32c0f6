"""Modules of two sides, matched by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.kernels.launched_modules import modules_around
from traceprof.comparison.statistics import MAX_FALSE
from traceprof.comparison.uses import Row, probabilities, uses_of
from traceprof.documents.comparison import ModuleChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.documents.analysis.model import Document


def modules(before: Sequence[Document], after: Sequence[Document]) -> list[ModuleChange]:
    """Compare the times of modules in the mean step; empty if a side does not know them.

    Args:
        before: the recordings of one side.
        after: those of the other.

    Returns:
        Outer ones first, and of those inside the same one the largest change first.
    """
    sides = [uses_of(side, _rows) for side in (before, after)]
    if not all(sides):
        return []
    paths = list(dict.fromkeys([*sides[0], *sides[1]]))
    pairs = [(sides[0].get(path), sides[1].get(path)) for path in paths]
    changes = {}
    for path, (old, new), p_adjusted in zip(paths, pairs, probabilities(pairs), strict=True):
        spent = [None if use is None else round(use.ns) for use in (old, new)]
        changes[path] = ModuleChange(
            module=path,
            before_ns=spent[0],
            after_ns=spent[1],
            change_ns=(spent[1] or 0) - (spent[0] or 0),
            p_adjusted=p_adjusted,
            is_significant=p_adjusted is not None and p_adjusted <= MAX_FALSE,
        )

    def in_order(path: str) -> list[tuple[int, str]]:
        return [
            (-abs(changes[module].change_ns) if module in changes else 0, module)
            for module in modules_around(path)
        ]

    return [changes[path] for path in sorted(paths, key=in_order)]


def _rows(capture: Document) -> Iterator[Row]:
    return (
        Row(use.rank, use.module, "", use.per_steady_step_ns, use.steady_error_ns)
        for use in capture.modules
        if use.per_steady_step_ns is not None
    )
