"""Communication of two sides, by communicator and kind: waiting apart from transfer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceprof.documents.comparison import CommunicationChange
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.documents.analysis.model import CommunicationTotals, Document

_Key = tuple[str, str | None]
_Pair = tuple["_Use | None", "_Use | None"]


class _Use(Record, frozen=True):
    """Operations of one kind on one communicator, on average per step and rank."""

    operation: str  # the kind
    communicator: str | None  # its name, as far as it is known
    ranks: frozenset[int]  # those that take part
    count: float  # how many
    ns: float  # how long they take, waiting included
    wait_ns: float | None  # the part of it in which they wait for the last rank; None if unknown
    transfer_ns: float | None  # the part of it in which all ranks were inside


def communication(
    before: Sequence[Document], after: Sequence[Document]
) -> list[CommunicationChange]:
    """Match the communication of two sides by name, or else by participating ranks.

    Names of communicators that come from NCCL alone are random in every run.
    """
    sides = [_uses(side) for side in (before, after)]
    shared = [key for key in sides[0] if key in sides[1]]
    pairs: list[_Pair] = [(sides[0].pop(key), sides[1].pop(key)) for key in shared]
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


def _uses(captures: Sequence[Document]) -> dict[_Key, _Use]:
    by_key: defaultdict[_Key, list[_Use]] = defaultdict(list)
    for capture in captures:
        for key, use in _of_capture(capture).items():
            by_key[key].append(use)
    number = len(captures)
    return {
        key: _Use(
            key[0],
            key[1],
            uses[0].ranks,
            sum(use.count for use in uses) / number,
            sum(use.ns for use in uses) / number,
            _mean([use.wait_ns for use in uses], number),
            _mean([use.transfer_ns for use in uses], number),
        )
        for key, uses in by_key.items()
    }


def _of_capture(capture: Document) -> dict[_Key, _Use]:
    rows: defaultdict[_Key, list[CommunicationTotals]] = defaultdict(list)
    for row in capture.communication_totals:
        rows[row.operation, row.communicator].append(row)
    num_ranks = len({row.rank for row in capture.communication_totals})
    return {
        key: _Use(
            *key,
            frozenset(row.rank for row in several),
            sum(row.count / max(row.num_steps, 1) for row in several) / num_ranks,
            sum(row.total_ns / max(row.num_steps, 1) for row in several) / num_ranks,
            _mean([_per_step(row.wait_ns, row) for row in several], num_ranks),
            _mean([_per_step(row.transfer_ns, row) for row in several], num_ranks),
        )
        for key, several in rows.items()
    }


def _per_step(value: int | None, row: CommunicationTotals) -> float | None:
    """Return a time per step; None if unknown, or if not all operations were matched."""
    if value is None or row.num_matched < row.count:
        return None
    return value / max(row.num_steps, 1)


def _mean(values: Iterable[float | None], number: int) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) / number if len(known) == len(listed) else None


def _change(old: _Use | None, new: _Use | None) -> CommunicationChange:
    named = old or new
    nothing = _Use("" if named is None else named.operation, None, frozenset(), 0.0, 0.0, 0.0, 0.0)
    first, second = old or nothing, new or nothing
    return CommunicationChange(
        operation=nothing.operation,
        before=first.communicator,
        after=second.communicator,
        count_before=first.count,
        count_after=second.count,
        before_ns=round(first.ns),
        after_ns=round(second.ns),
        change_ns=round(second.ns) - round(first.ns),
        wait_before_ns=_rounded(first.wait_ns),
        wait_after_ns=_rounded(second.wait_ns),
        transfer_before_ns=_rounded(first.transfer_ns),
        transfer_after_ns=_rounded(second.transfer_ns),
    )


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
