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
            sum(row.total_ns / num for row, num in several),
            _total((row, row.wait_ns, num) for row, num in several),
            _total((row, row.transfer_ns, num) for row, num in several),
        )
        for key, several in rows.items()
    }


def _total(times: Iterable[tuple[CommunicationTotals, int | None, int]]) -> float | None:
    """Return a sum; None if a time is unknown, or is not of all operations."""
    total = 0.0
    for row, ns, num in times:
        if ns is None or row.num_matched < row.count:
            return None
        total += ns / num
    return total


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
