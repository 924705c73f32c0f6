"""Times of kernels or modules in the mean step of a side, with their errors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.analyses.steps.step_means import num_blocks
from traceprof.comparison.statistics import adjusted, p_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from traceprof.documents.analysis.model import Document


class Row(NamedTuple):
    """The time of a kernel name or a module in the mean step of a rank."""

    rank: int  # of the recording
    name: str  # of what is compared
    category: str  # what it does
    ns: int  # the mean over steps
    error_ns: int | None  # its standard error; None if that is unknown
    place: float = 0.0  # where in a step it first runs, 0 to 1


@dataclass
class Use:
    """The time of one or several names in the mean step of one side."""

    name: str  # the one that takes most
    category: str  # what it does
    ns: float  # the mean over steps, ranks and recordings
    # standard error and degrees of freedom; empty if they are not known
    errors: list[tuple[float, int]] = field(default_factory=list)
    place: float = 0.0  # where in a step it first runs, 0 to 1
    num: int = 1  # how many names


def uses_of(
    captures: Sequence[Document], rows: Callable[[Document], Iterable[Row]]
) -> dict[str, Use]:
    """Return the times of names on a side.

    Args:
        captures: the recordings of the side.
        rows: returns those of a recording.
    """
    by_name: defaultdict[str, list[Use]] = defaultdict(list)
    for capture in captures:
        for name, use in _of_capture(capture, rows(capture)).items():
            by_name[name].append(use)
    return {name: _over_captures(several, len(captures)) for name, several in by_name.items()}


def _of_capture(capture: Document, rows: Iterable[Row]) -> dict[str, Use]:
    """Return the same for one recording: the mean over its ranks with a GPU."""
    num_steps = {totals.rank: totals.num_steps for totals in capture.step_totals}
    ranks = {rank.rank for rank in capture.ranks if rank.device is not None}
    has_steps = any(num_steps.get(rank) for rank in ranks)
    ranks = {rank for rank in ranks if num_steps.get(rank) or not has_steps}
    uses: dict[str, Use] = {}
    for row in rows:
        if row.rank not in ranks:
            continue
        use = uses.setdefault(row.name, Use(row.name, row.category, 0.0, place=row.place))
        use.ns += row.ns / len(ranks)
        freedom = num_blocks(num_steps.get(row.rank, 0)) - 1
        if row.error_ns is not None and freedom > 0:
            # Ranks wait for each other: their noise is taken to be the same, which is cautious.
            error = row.error_ns / len(ranks)
            total = sum(value for value, _ in use.errors) + error
            use.errors = [(total, freedom)]
    return uses


def _over_captures(uses: Sequence[Use], num_captures: int) -> Use:
    if num_captures == 1:
        return uses[0]
    values = np.array([use.ns for use in uses] + [0.0] * (num_captures - len(uses)))
    error = float(values.std(ddof=1)) / num_captures**0.5
    first = uses[0]
    errors = [(error, num_captures - 1)]
    return Use(first.name, first.category, float(values.mean()), errors, first.place)


def probabilities(pairs: Sequence[tuple[Use | None, Use | None]]) -> list[float | None]:
    """Return the p-values of changes, adjusted for their number.

    Args:
        pairs: before and after; None if a side has no such thing.

    Returns:
        Of each pair; None if noise is not known.
    """
    alone = [_probability(old, new) for old, new in pairs]
    known = [index for index, value in enumerate(alone) if value is not None]
    corrected: list[float | None] = [None] * len(alone)
    for index, value in zip(known, adjusted([alone[place] or 0.0 for place in known]), strict=True):
        corrected[index] = value
    return corrected


def _probability(old: Use | None, new: Use | None) -> float | None:
    uses = [use for use in (old, new) if use is not None]
    if not all(use.errors for use in uses):
        return None
    change = (0.0 if new is None else new.ns) - (0.0 if old is None else old.ns)
    return p_value(change, [error for use in uses for error in use.errors])
