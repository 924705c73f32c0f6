"""Sets of weights of the same edges: one in full, the others as differences from it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.intervals import Float64, Int32, Int64


_ROWS_AT_ONCE = 1 << 16
_EDGE_BYTES = 12  # of its number, and of its weight
_MAX_BACK = 8  # the sets of one assumption: of these some are the same


Difference = tuple[bytes, ...]
"""What differs between two sets: of each part of the edges the packed rest; empty for nothing."""
SAME: Difference = (b"",)
"""The difference of a set of one part from one that is the same."""


class WeightSets(Record, frozen=True):
    """Sets of weights of e edges. An assumption changes few of them: the others are kept once.

    Attributes:
        full: float64[e].
        other: of each set, what differs.
        begins: where the parts of the edges begin.
    """

    full: Float64
    other: tuple[Difference, ...]
    begins: tuple[int, ...] = (0,)

    @property
    def num(self) -> int:
        """The number of sets."""
        return len(self.other)

    @staticmethod
    def of_columns(columns: Iterable[Float64]) -> WeightSets:
        """Keep sets of weights, float64[e] each; at least one."""
        columns = iter(columns)
        full = np.ascontiguousarray(next(columns))
        begins = tuple(range(0, max(len(full), 1), _ROWS_AT_ONCE))
        others = [SAME * len(begins)]
        for column in columns:
            parts = (slice(begin, begin + _ROWS_AT_ONCE) for begin in begins)
            of_parts = (packed(*different(full[part], column[part])) for part in parts)
            others.append(or_known(tuple(of_parts), others))
            del column  # before the next one is made
        return WeightSets(full, tuple(others), begins)

    @staticmethod
    def joined(parts: Sequence[WeightSets]) -> WeightSets:
        """Put the sets of one list of edges behind those of another."""
        firsts = np.cumsum([0, *(len(part.full) for part in parts)])[:-1].tolist()
        begins = [
            first + begin
            for first, part in zip(firsts, parts, strict=True)
            for begin in part.begins
        ]
        others: list[Difference] = []
        for number in range(parts[0].num):
            of_parts = tuple(data for part in parts for data in part.other[number])
            others.append(or_known(of_parts, others))
        full = np.concatenate([part.full for part in parts])
        return WeightSets(full, tuple(others), tuple(begins))

    def distinct(self) -> tuple[list[int], Int64]:
        """Return the sets without those that are kept as one of them, and which of these each is.

        Returns:
            Numbers of sets, and int64[k], indices into them.
        """
        known: dict[int, int] = {}
        place = [known.setdefault(id(one), len(known)) for one in self.other]
        first = [place.index(number) for number in range(len(known))]
        return first, np.array(place, np.int64)

    def of(self, number: int) -> Float64:
        """Return one set, float64[e], which is not to be written to."""
        if not any(self.other[number]):
            return self.full
        column = self.full.copy()
        for begin, data in zip(self.begins, self.other[number], strict=True):
            if data:
                edge, weight = _unpacked(data)
                column[begin:][edge] = weight
        return column

    def chosen(self, numbers: Sequence[int]) -> WeightSets:
        """Return some of the sets."""
        return replace(self, other=tuple(self.other[number] for number in numbers))

    def columns(self, order: Int32 | Int64 | None = None) -> Float64:
        """Return all sets, float64[e, k], in another order of the edges if one is given."""
        columns = np.empty((len(self.full), self.num))
        for number in range(self.num):
            column = self.of(number)
            if order is None:
                columns[:, number] = column
                continue
            for begin in range(0, len(order), _ROWS_AT_ONCE):
                rows = slice(begin, begin + _ROWS_AT_ONCE)
                columns[rows, number] = column[order[rows]]
        return columns


def different(full: Float64, column: Float64) -> tuple[Int32, Float64]:
    """Return where float64[e] differs from another one, int32[d], and what is there."""
    if column is full:
        return np.empty(0, np.int32), np.empty(0)
    edge = (column != full).nonzero()[0].astype(np.int32)
    return edge, column[edge]


def difference(full: Float64, column: Float64) -> Difference:
    """Return what float64[e] differs in from another one."""
    return (packed(*different(full, column)),)


def packed(edge: Int32, weight: Float64) -> bytes:
    """Pack edges, ascending int32[d], each less the one before it, and their float64[d]."""
    if len(edge) == 0:
        return b""
    apart = np.diff(edge, prepend=np.int32(0))
    return zlib.compress(apart.tobytes() + weight.tobytes(), 1)


def _unpacked(packed: bytes) -> tuple[Int32, Float64]:
    data = zlib.decompress(packed)
    num = len(data) // _EDGE_BYTES
    apart = np.frombuffer(data, np.int32, num)
    return np.cumsum(apart, dtype=np.int32), np.frombuffer(data, np.float64, num, apart.nbytes)


def or_known(change: Difference, before: Sequence[Difference]) -> Difference:
    """Return the first of the last ones before that is the same, if one is: it is kept once."""
    return next((known for known in before[-_MAX_BACK:] if known == change), change)
