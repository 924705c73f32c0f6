"""Kernels and communication of two sides: kernels by name, canonical name, or place in a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import NamedTuple, get_args

import numpy as np

from traceprof.analyses.kernels.launched_kernels import modules_around
from traceprof.analyses.steps import num_blocks
from traceprof.comparison.series import Captures
from traceprof.documents.analysis.model import CommunicationTotals, Document
from traceprof.documents.comparison import (
    CommunicationChange,
    KernelChange,
    Matching,
    ModuleChange,
    Rung,
)
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import Category
from traceprof.run.mean_change import MAX_FALSE, adjusted, p_value
from traceprof.structs import Record, by_key


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
    # standard error and degrees of freedom, if known
    errors: list[tuple[float, int]] = field(default_factory=list)
    place: float = 0.0  # where in a step it first runs, 0 to 1


def uses_of(captures: Captures, rows: Callable[[Document], Iterable[Row]]) -> dict[str, Use]:
    """Return the times of names on a side; `rows` returns those of a recording."""
    by_name: defaultdict[str, list[Use]] = defaultdict(list)
    for capture in captures:
        for name, use in _of_capture(capture, rows(capture)).items():
            by_name[name].append(use)
    return {name: _over_captures(several, len(captures)) for name, several in by_name.items()}


def _of_capture(capture: Document, rows: Iterable[Row]) -> dict[str, Use]:
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
    return replace(uses[0], ns=float(values.mean()), errors=[(error, num_captures - 1)])


def probabilities(pairs: Sequence[tuple[Use | None, Use | None]]) -> list[float | None]:
    """Return the p-values of changes, adjusted for their number; None if noise is not known.

    `pairs`: before and after; None if a side lacks the name.
    """
    alone: dict[int, float] = {}
    for index, (old, new) in enumerate(pairs):
        uses = [use for use in (old, new) if use is not None]
        if all(use.errors for use in uses):
            change = (0.0 if new is None else new.ns) - (0.0 if old is None else old.ns)
            alone[index] = p_value(change, [error for use in uses for error in use.errors])
    corrected = dict(zip(alone, adjusted([*alone.values()]), strict=True))
    return [corrected.get(index) for index in range(len(pairs))]


_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+|(?<=_)[0-9a-f]{8,}(?=_|\Z)")
_NUMBER = re.compile(r"\d+")
_OTHER = str(Category.OTHER)  # which says nothing of what a kernel does
_COMMUNICATION = str(Category.COMMUNICATION)


_Pair = tuple[Rung, "Use | None", "Use | None"]


class KernelComparison(NamedTuple):
    """The compute kernels of two sides."""

    changes: list[KernelChange]  # the largest first
    matching: list[Matching]  # what was matched at each rung
    beside_ns: int  # the part of the change of compute that they do not explain


def kernels(before: Captures, after: Captures, change_of_compute_ns: int) -> KernelComparison:
    """Match the compute kernels of two sides; given is the change of compute in the mean step."""
    uses = [uses_of(side, _rows) for side in (before, after)]
    pairs: list[_Pair] = [("name", *both) for both in _shared(*uses)]
    grouped = [_by_canonical_name(side.values()) for side in uses]
    pairs += [("canonical name", *both) for both in _shared(*grouped)]
    rest = [list(group.values()) for group in grouped]
    by_place = _by_place(rest[0], rest[1], [(old, new) for _, old, new in pairs])
    pairs += by_place
    placed = [{id(pair[side]) for pair in by_place} for side in (1, 2)]
    pairs += [("only before", use, None) for use in rest[0] if id(use) not in placed[0]]
    pairs += [("only after", None, use) for use in rest[1] if id(use) not in placed[1]]
    changes = _changes(pairs)
    sum_ns = sum(change.change_ns for change in changes)
    return KernelComparison(changes, _matching(changes), change_of_compute_ns - sum_ns)


def canonical_name(use: Use) -> str:
    """Return a name without what changes from version to version: arguments, numbers, addresses.

    >>> canonical_name(Use("void ampere_sgemm_128x64_tn<float>(int)", "matmul", 0.0))
    'matmul ampere_sgemm_#x#_tn'
    """
    function = _HEXADECIMAL.sub("#", function_name(use.name))
    return f"{use.category} {_NUMBER.sub('#', function)}"


def _shared(before: dict[str, Use], after: dict[str, Use]) -> list[tuple[Use, Use]]:
    return [(before.pop(name), after.pop(name)) for name in [*before] if name in after]


def _rows(capture: Document) -> Iterator[Row]:
    return (
        Row(
            kernel.rank,
            kernel.name,
            kernel.category,
            kernel.per_steady_step_ns,
            kernel.steady_error_ns,
            kernel.place or 0.0,
        )
        for kernel in capture.kernels
        if kernel.category != _COMMUNICATION and kernel.per_steady_step_ns is not None
    )


def _by_canonical_name(uses: Iterable[Use]) -> dict[str, Use]:
    return {
        name: replace(
            max(several, key=lambda use: use.ns),
            ns=sum(use.ns for use in several),
            errors=[error for use in several for error in use.errors]
            if all(use.errors for use in several)
            else [],
            place=min(use.place for use in several),
        )
        for name, several in by_key(uses, canonical_name).items()
    }


def _by_place(
    before: Sequence[Use], after: Sequence[Use], matched: Sequence[tuple[Use | None, Use | None]]
) -> list[_Pair]:
    """Match remaining kernels between the same neighbours in the step, if of one category.

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
        for old, new in zip(
            sides[0][first : first + length], sides[1][second : second + length], strict=True
        ):
            if id(old) not in number and old.category != _OTHER:
                pairs.append(("place in the step", old, new))
    return pairs


def _changes(pairs: Sequence[_Pair]) -> list[KernelChange]:
    corrected = probabilities([(old, new) for _, old, new in pairs])
    changes = []
    for (rung, old, new), p_adjusted in zip(pairs, corrected, strict=True):
        before_ns, after_ns = (0 if use is None else round(use.ns) for use in (old, new))
        changes.append(
            KernelChange(
                before=None if old is None else old.name,
                after=None if new is None else new.name,
                rung=rung,
                category=next(use.category for use in (old, new) if use is not None),
                before_ns=before_ns,
                after_ns=after_ns,
                change_ns=after_ns - before_ns,
                p_adjusted=p_adjusted,
                is_significant=p_adjusted is not None and p_adjusted <= MAX_FALSE,
            )
        )
    changes.sort(key=lambda change: (-abs(change.change_ns), change.before or change.after or ""))
    return changes


def _matching(changes: Sequence[KernelChange]) -> list[Matching]:
    def spent(rows: Sequence[KernelChange]) -> tuple[int, int]:
        return sum(row.before_ns for row in rows), sum(row.after_ns for row in rows)

    totals = [total or 1 for total in spent(changes)]
    matching = []
    for rung in get_args(Rung):
        of_rung = spent([change for change in changes if change.rung == rung])
        shares = (part / whole for part, whole in zip(of_rung, totals, strict=True))
        matching.append(Matching(rung, *shares))
    return matching


def modules(before: Captures, after: Captures) -> list[ModuleChange]:
    """Compare the times of modules in the mean step; empty if a side does not know them.

    Outer modules are first; inside the same module, the largest change is first.
    """
    sides = [uses_of(side, _module_rows) for side in (before, after)]
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


def _module_rows(capture: Document) -> Iterator[Row]:
    return (
        Row(use.rank, use.module, "", use.per_steady_step_ns, use.steady_error_ns)
        for use in capture.modules
        if use.per_steady_step_ns is not None
    )


_Key = tuple[str, str | None]
_Uses = tuple["_Use | None", "_Use | None"]


class _Use(Record, frozen=True):
    """Operations of one kind on one communicator, on average per step and rank."""

    operation: str  # the kind
    communicator: str | None  # its name, if known
    ranks: frozenset[int]  # those that take part
    count: float  # how many
    ns: int  # how long they take, waiting included
    wait_ns: int | None  # the part of it in which they wait for the last rank; None if unknown
    transfer_ns: int | None  # the part of it in which all ranks were inside


_NOTHING = _Use("", None, frozenset(), 0.0, 0, 0, 0)


def communication(before: Captures, after: Captures) -> list[CommunicationChange]:
    """Match the communication of two sides by name, or else by participating ranks.

    Names of communicators that come from NCCL alone are random in every run.
    """
    sides = [_uses(side) for side in (before, after)]
    shared = [key for key in sides[0] if key in sides[1]]
    pairs: list[_Uses] = [(sides[0].pop(key), sides[1].pop(key)) for key in shared]
    left = [list(side.values()) for side in sides]
    for use in left[0]:
        fitting = [
            other
            for other in left[1]
            if (other.operation, other.ranks) == (use.operation, use.ranks)
        ]
        other = min(fitting, key=lambda fit: abs(fit.count - use.count), default=None)
        if other is not None:
            left[1].remove(other)
        pairs.append((use, other))
    pairs += [(None, other) for other in left[1]]
    changes = [_change(*pair) for pair in pairs]
    return sorted(changes, key=lambda change: (-abs(change.change_ns), change.operation))


def _uses(captures: Captures) -> dict[_Key, _Use]:
    """Return the mean over recordings of means over their ranks, by kind and communicator."""
    rows: defaultdict[_Key, list[tuple[CommunicationTotals, int]]] = defaultdict(list)
    for capture in captures:
        num = len(captures) * len({row.rank for row in capture.communication_totals})
        for row in capture.communication_totals:
            rows[row.operation, row.communicator].append((row, num * max(row.num_steps, 1)))
    return {
        key: _Use(
            *key,
            frozenset(row.rank for row, _ in several),
            sum(row.count / num for row, num in several),
            round(sum(row.total_ns / num for row, num in several)),
            _total((row, row.wait_ns, num) for row, num in several),
            _total((row, row.transfer_ns, num) for row, num in several),
        )
        for key, several in rows.items()
    }


def _total(times: Iterable[tuple[CommunicationTotals, int | None, int]]) -> int | None:
    total = 0.0
    for row, ns, num in times:
        if ns is None or row.num_matched < row.count:
            return None
        total += ns / num
    return round(total)


def _change(old: _Use | None, new: _Use | None) -> CommunicationChange:
    first, second = old or _NOTHING, new or _NOTHING
    return CommunicationChange(
        operation=first.operation or second.operation,
        before=first.communicator,
        after=second.communicator,
        count_before=first.count,
        count_after=second.count,
        before_ns=first.ns,
        after_ns=second.ns,
        change_ns=second.ns - first.ns,
        wait_before_ns=first.wait_ns,
        wait_after_ns=second.wait_ns,
        transfer_before_ns=first.transfer_ns,
        transfer_after_ns=second.transfer_ns,
    )
