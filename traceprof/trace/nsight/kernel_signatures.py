"""Kernel signatures: name, grid and block; even millions of kernels have few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.operations import Signatures
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.numbered_rows import NumberedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64

_NAME, _PROCESS = "name", "globalPid"
NAMES = ("demangledName", "shortName")
"""The possible columns of a kernel's name."""


class Signer:
    """Numbers for kernel signatures in order of first occurrence.

    A kernel's process, name, grid and block are read as one number, since they are neighbours in an
    export, and there are few combinations of them: see `NumberedRows`.

    Attributes:
        names: StringIds.id of the kernels' names.
        combinations: numbers for the combinations of columns.
    """

    def __init__(self, columns: Sequence[str] = (_PROCESS,)) -> None:
        """Prepare for kernels.

        Args:
            columns: of the table of kernels, including the combined ones.
        """
        self.names: set[int] = set()
        combined = (_PROCESS, *NAMES, *schema.GRID)
        self.combinations = NumberedRows([column for column in columns if column in combined])
        self._signatures = NumberedRows((_NAME, *schema.GRID))
        self._of_combination = np.empty(0, np.int64)  # -1 for new ones

    @property
    def signatures(self) -> Signatures:
        """The signatures so far."""
        rows = self._signatures.rows
        return Signatures(rows[:, 0], rows[:, 1:])

    def process(self, combination: Int64) -> Int64:
        """Return the process of each kernel, int64[n]."""
        place = self.combinations.names.index(_PROCESS)
        return self.combinations.rows[:, place].take(combination)

    def signature(self, combination: Int64) -> Int64:
        """Return the number of each kernel's signature, int64[n]."""
        more = len(self.combinations) - len(self._of_combination)
        if more:
            self._of_combination = np.append(self._of_combination, np.full(more, -1))
        numbers = self._of_combination.take(combination)
        new = numbers < 0
        if new.any():
            self._learn(distinct_values(combination[new]))
            numbers = self._of_combination.take(combination)
        return numbers

    def _learn(self, combinations: Int64) -> None:
        rows = self.combinations.rows[combinations]
        columns = dict(zip(self.combinations.names, rows.T, strict=True))
        missing = np.full(len(rows), NULL, np.int64)
        (name,) = [columns[column] for column in NAMES if column in columns] or [missing]
        shape = {column: columns.get(column, missing) for column in schema.GRID}
        self.names.update(name.tolist())
        self._of_combination[combinations] = self._signatures.of({_NAME: name, **shape})
