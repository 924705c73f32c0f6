"""Names of operations for people, for many operations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.columns import Column, pack

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank


class Names(Record, frozen=True):
    """Names of n operations.

    Attributes:
        packed: n indices into `names`, -1 if there is no operation.
        names: the distinct names.
    """

    packed: Column
    names: tuple[str, ...]

    @property
    def number(self) -> Int64:
        """The indices into `names`, int64[n]."""
        return self.packed.values

    def of(self, at: int) -> str | None:
        """Return the name of one operation, None if there is no operation."""
        number = int(self.packed.at(slice(at, at + 1))[0])
        return self.names[number] if number >= 0 else None


def operation_names(rank: Rank, index: Int64) -> Names:
    """Return the names of operations.

    Args:
        rank: a rank with a GPU.
        index: int64[n], into all operations of the rank, its groups joined; -1 for none.
    """
    number = np.full(len(index), -1, np.int64)
    known: dict[str, int] = {}
    kernels, copies, *_ = rank.operations.groups
    first = 0
    for group, operations in enumerate(rank.operations.groups):
        at = np.flatnonzero((index >= first) & (index < first + len(operations)))
        place = index[at] - first
        first += len(operations)
        alike = place * 0
        if operations is kernels:
            signature = rank.operations.kernels.packed_signature.kept[place]
            alike = rank.operations.kernels.name_of_signature[signature]
        elif operations is copies:
            alike = rank.operations.copies.kind[place]
        _, first_of, inverse = np.unique(alike, return_index=True, return_inverse=True)
        names = [rank.operation_name(group, which) for which in place[first_of].tolist()]
        numbers = [known.setdefault(name, len(known)) for name in names]
        number[at] = np.array(numbers, np.int64)[inverse.reshape(-1)]
    return Names(pack(number), tuple(known))
