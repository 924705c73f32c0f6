"""Kernels of two sides, matched by name, by canonical name, by their place in the step."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.analyses.steps.step_means import num_blocks
from traceprof.comparison.statistics import MAX_FALSE, adjusted, p_value
from traceprof.documents.comparison import KernelChange, Matching
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from traceprof.documents.analysis.model import Document
    from traceprof.documents.comparison import Rung

_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+|(?<=_)[0-9a-f]{8,}(?=_|\Z)")
_NUMBER = re.compile(r"\d+")
_OTHER = str(Category.OTHER)  # which says nothing of what a kernel does
_COMMUNICATION = str(Category.COMMUNICATION)


_Pair = tuple["Rung", "_Use | None", "_Use | None"]


class KernelComparison(NamedTuple):
    """The compute kernels of two sides.

    Attributes:
        changes: the largest first.
        matching: what was matched at each rung.
        beside_ns: what of the change of compute they do not explain.
    """

    changes: list[KernelChange]
    matching: list[Matching]
    beside_ns: int


@dataclass
class _Use:
    """The kernels of one name or of several on one side, in the mean step.

    Attributes:
        name: the one that takes most.
        category: what it does.
        ns: the mean over steps, ranks and recordings.
        errors: standard error and degrees of freedom; empty where they are not known.
        place: where in a step it first runs, 0 to 1.
        num: how many names.
    """

    name: str
    category: str
    ns: float
    errors: list[tuple[float, int]] = field(default_factory=list)
    place: float = 0.0
    num: int = 1


def kernels(
    before: Sequence[Document], after: Sequence[Document], change_of_compute_ns: int
) -> KernelComparison:
    """Match the compute kernels of two sides.

    Args:
        before: the recordings of one side.
        after: those of the other.
        change_of_compute_ns: of the mean step.
    """
    uses = [_uses(side) for side in (before, after)]
    pairs: list[_Pair] = [("name", *both) for both in _shared(*uses)]
    grouped = [_grouped(side.values(), canonical_name) for side in uses]
    pairs += [("canonical name", *both) for both in _shared(*grouped)]
    rest = [list(group.values()) for group in grouped]
    by_place = _by_place(rest[0], rest[1], [(one, other) for _, one, other in pairs])
    pairs += by_place
    placed = [{id(pair[side]) for pair in by_place} for side in (1, 2)]
    pairs += [("only before", use, None) for use in rest[0] if id(use) not in placed[0]]
    pairs += [("only after", None, use) for use in rest[1] if id(use) not in placed[1]]
    changes = _changes(pairs)
    sum_ns = sum(change.change_ns for change in changes)
    return KernelComparison(changes, _matching(changes), change_of_compute_ns - sum_ns)


def canonical_name(use: _Use) -> str:
    """Return a name without what changes from version to version: arguments, numbers, addresses.

    >>> canonical_name(_Use("void ampere_sgemm_128x64_tn<float>(int)", "matmul", 0.0))
    'matmul ampere_sgemm_#x#_tn'
    """
    function = _HEXADECIMAL.sub("#", function_name(use.name))
    return f"{use.category} {_NUMBER.sub('#', function)}"


def _shared(before: dict[str, _Use], after: dict[str, _Use]) -> list[tuple[_Use, _Use]]:
    """Take out of both sides what they call alike."""
    return [(before.pop(name), after.pop(name)) for name in [*before] if name in after]


def _uses(captures: Sequence[Document]) -> dict[str, _Use]:
    """Return what the compute kernels of a side take, by name."""
    by_name: defaultdict[str, list[_Use]] = defaultdict(list)
    for capture in captures:
        for name, use in _of_capture(capture).items():
            by_name[name].append(use)
    return {name: _over_captures(several, len(captures)) for name, several in by_name.items()}


def _of_capture(capture: Document) -> dict[str, _Use]:
    """Return the same of a recording: the mean over its ranks with a GPU."""
    num_steps = {totals.rank: totals.num_steps for totals in capture.step_totals}
    ranks = {rank.rank for rank in capture.ranks if rank.device is not None}
    has_steps = any(num_steps.get(rank) for rank in ranks)
    ranks = {rank for rank in ranks if num_steps.get(rank) or not has_steps}
    uses: dict[str, _Use] = {}
    for kernel in capture.kernels:
        if kernel.category == _COMMUNICATION or kernel.rank not in ranks:
            continue
        if kernel.per_steady_step_ns is None:
            continue
        mean = kernel.per_steady_step_ns / len(ranks)
        use = uses.setdefault(
            kernel.name, _Use(kernel.name, kernel.category, 0.0, place=kernel.place or 0.0)
        )
        use.ns += mean
        freedom = num_blocks(num_steps.get(kernel.rank, 0)) - 1
        if kernel.steady_error_ns is not None and freedom > 0:
            # Ranks wait for each other: their noise is taken to be the same, which is cautious.
            error = kernel.steady_error_ns / len(ranks)
            total = sum(one for one, _ in use.errors) + error
            use.errors = [(total, freedom)]
    return uses


def _over_captures(uses: Sequence[_Use], num_captures: int) -> _Use:
    if num_captures == 1:
        return uses[0]
    values = np.array([use.ns for use in uses] + [0.0] * (num_captures - len(uses)))
    error = float(values.std(ddof=1)) / num_captures**0.5
    first = uses[0]
    errors = [(error, num_captures - 1)]
    return _Use(first.name, first.category, float(values.mean()), errors, first.place)


def _grouped(uses: Iterable[_Use], key: Callable[[_Use], str]) -> dict[str, _Use]:
    """Return uses that share a key as one, by key."""
    groups: defaultdict[str, list[_Use]] = defaultdict(list)
    for use in uses:
        groups[key(use)].append(use)
    return {name: _together(several) for name, several in groups.items()}


def _together(uses: Sequence[_Use]) -> _Use:
    largest = max(uses, key=lambda use: use.ns)
    errors = [error for use in uses for error in use.errors]
    is_known = all(use.errors for use in uses)
    return _Use(
        largest.name,
        largest.category,
        sum(use.ns for use in uses),
        errors if is_known else [],
        min(use.place for use in uses),
        len(uses),
    )


def _by_place(
    before: Sequence[_Use],
    after: Sequence[_Use],
    matched: Sequence[tuple[_Use | None, _Use | None]],
) -> list[_Pair]:
    """Match what is left between the same neighbours in the step, if it does the same.

    Where several stand between the same neighbours, those of one category are matched in order.
    """
    number = {id(use): index for index, pair in enumerate(matched) for use in pair}
    sides = []
    for place, rest in enumerate((before, after)):
        known = [use for pair in matched if (use := pair[place]) is not None]
        sides.append(sorted([*known, *rest], key=lambda use: use.place))
    labels = [
        [f"{number[id(use)]}" if id(use) in number else f"? {use.category}" for use in side]
        for side in sides
    ]
    pairs: list[_Pair] = []
    aligned = SequenceMatcher(None, labels[0], labels[1], autojunk=False)
    for first, second, length in aligned.get_matching_blocks():
        for one, other in zip(
            sides[0][first : first + length], sides[1][second : second + length], strict=True
        ):
            if id(one) not in number and one.category != _OTHER:
                pairs.append(("place in the step", one, other))
    return pairs


def _changes(
    pairs: Sequence[_Pair],
) -> list[KernelChange]:
    probabilities = [_probability(one, other) for _, one, other in pairs]
    known = [index for index, value in enumerate(probabilities) if value is not None]
    corrected = dict(
        zip(known, adjusted([probabilities[index] or 0.0 for index in known]), strict=True)
    )
    changes = []
    for index, (rung, one, other) in enumerate(pairs):
        named = one or other
        if named is None:
            continue
        before_ns, after_ns = (0 if use is None else round(use.ns) for use in (one, other))
        p_adjusted = corrected.get(index)
        changes.append(
            KernelChange(
                before=None if one is None else one.name,
                after=None if other is None else other.name,
                rung=rung,
                category=named.category,
                before_ns=before_ns,
                after_ns=after_ns,
                change_ns=after_ns - before_ns,
                p_adjusted=p_adjusted,
                is_significant=p_adjusted is not None and p_adjusted <= MAX_FALSE,
            )
        )
    changes.sort(key=lambda change: (-abs(change.change_ns), change.before or change.after or ""))
    return changes


def _probability(one: _Use | None, other: _Use | None) -> float | None:
    """Return how probable such a change is without cause; None where noise is not known."""
    uses = [use for use in (one, other) if use is not None]
    if not all(use.errors for use in uses):
        return None
    change = (0.0 if other is None else other.ns) - (0.0 if one is None else one.ns)
    return p_value(change, [error for use in uses for error in use.errors])


def _matching(changes: Sequence[KernelChange]) -> list[Matching]:
    totals = [
        sum(change.before_ns for change in changes), sum(change.after_ns for change in changes),
    ]  # fmt: skip
    rungs: tuple[Rung, ...] = (
        "name", "canonical name", "place in the step", "only before", "only after",
    )  # fmt: skip
    matching = []
    for rung in rungs:
        of_rung = [change for change in changes if change.rung == rung]
        spent = [
            sum(change.before_ns for change in of_rung), sum(change.after_ns for change in of_rung),
        ]  # fmt: skip
        shares = [part / whole if whole else 0.0 for part, whole in zip(spent, totals, strict=True)]
        matching.append(Matching(rung, *shares))
    return matching
