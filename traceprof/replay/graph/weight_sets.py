"""Sets of weights of the same edges: one in full, the others as differences from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.intervals import Float64, Int32, Int64


_MAX_BACK = 8  # the sets of one assumption: of these some are the same
SAME = np.empty(0, np.int32), np.empty(0)
"""The difference of a set from one that is the same."""


class WeightSets(Record, frozen=True):
    """Sets of weights of e edges. An assumption changes few of them: the others are kept once.

    Attributes:
        full: float64[e].
        other: of each set, which edges have other weights, and these; int32[d] and float64[d].
    """

    full: Float64
    other: tuple[tuple[Int32, Float64], ...]

    @property
    def num(self) -> int:
        """The number of sets."""
        return len(self.other)

    @staticmethod
    def of_columns(columns: Iterable[Float64]) -> WeightSets:
        """Keep sets of weights, float64[e] each; at least one."""
        columns = iter(columns)
        full = np.ascontiguousarray(next(columns))
        others = [SAME]
        for column in columns:
            others.append(or_known(difference(full, column), others))
        return WeightSets(full, tuple(others))

    @staticmethod
    def joined(parts: Sequence[WeightSets]) -> WeightSets:
        """Put the sets of one list of edges behind those of another."""
        begins = np.cumsum([0, *(len(part.full) for part in parts)])[:-1].tolist()
        others: list[tuple[Int32, Float64]] = []
        for number in range(parts[0].num):
            of_parts = [part.other[number] for part in parts]
            same = (
                before
                for before in range(max(number - _MAX_BACK, 0), number)
                if all(part.other[before] is part.other[number] for part in parts)
            )
            before = next(same, None)
            if before is not None:
                others.append(others[before])
                continue
            edges = [
                edge + np.int32(begin) for (edge, _), begin in zip(of_parts, begins, strict=True)
            ]
            weights = [weight for _, weight in of_parts]
            joined = np.concatenate(edges), np.concatenate(weights)
            others.append(joined if len(joined[0]) else SAME)
        return WeightSets(np.concatenate([part.full for part in parts]), tuple(others))

    def distinct(self) -> tuple[list[int], Int64]:
        """Return the sets without those that are kept as one of them, and which of these each is.

        Returns:
            Numbers of sets, and int64[k], indices into them.
        """
        known: dict[int, int] = {}
        place = [known.setdefault(id(pair), len(known)) for pair in self.other]
        first = [place.index(number) for number in range(len(known))]
        return first, np.array(place, np.int64)

    def of(self, number: int) -> Float64:
        """Return one set, float64[e], which is not to be written to."""
        edge, weight = self.other[number]
        if len(edge) == 0:
            return self.full
        column = self.full.copy()
        column[edge] = weight
        return column

    def chosen(self, numbers: Sequence[int]) -> WeightSets:
        """Return some of the sets."""
        return WeightSets(self.full, tuple(self.other[number] for number in numbers))

    def columns(self, order: Int64 | None = None) -> Float64:
        """Return all sets, float64[e, k], in another order of the edges if one is given."""
        num = len(self.full)
        columns = np.empty((num, self.num))
        for number in range(self.num):
            column = self.of(number)
            columns[:, number] = column if order is None else column[order]
        return columns


def difference(full: Float64, column: Float64) -> tuple[Int32, Float64]:
    """Return where float64[e] differs from another one, int32[d], and what is there."""
    if column is full:
        return SAME
    edge = (column != full).nonzero()[0].astype(np.int32)
    return (edge, column[edge]) if len(edge) else SAME


def or_known(
    change: tuple[Int32, Float64], before: Sequence[tuple[Int32, Float64]]
) -> tuple[Int32, Float64]:
    """Return the first of the last ones before that is the same, if one is: it is kept once."""
    for known in before[-_MAX_BACK:]:
        if len(change[0]) != len(known[0]):
            continue
        if np.array_equal(change[0], known[0]) and np.array_equal(change[1], known[1]):
            return known
    return change
