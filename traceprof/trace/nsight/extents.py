"""Extents of the operations of each rank: number, first start and last end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.trace.grouping import pieces
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int64


class Extent(NamedTuple):
    """The number of a rank's rows, the first start and the last end."""

    number: int
    first_ns: int
    last_end_ns: int


NO_ROWS = Extent(0, 0, 0)
_FEW_RUNS = 64  # so few are looked up faster than sorted


class ExtentsBuilder:
    """The extent of each rank, built as rows are read."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._number = np.zeros(0, np.int64)
        self._first_ns, self._last_end_ns = self._number, self._number

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._places)

    def add(self, process: Int64, device: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Count rows.

        Args:
            process: int64[n], n > 0.
            device: int64[n].
            start: int64[n].
            end: int64[n].

        Returns:
            Runs of rows of one rank: int64[m], the first row of each, and int64[m], the number of
            its rank in order of first occurrence.
        """
        differ = (process[1:] != process[:-1]) | (device[1:] != device[:-1])
        run = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(differ) + 1))
        owner = self._owners(process[run], device[run])
        more = len(self) - len(self._number)
        self._number = np.append(self._number, np.zeros(more, np.int64))
        self._first_ns = np.append(self._first_ns, np.full(more, np.iinfo(np.int64).max))
        self._last_end_ns = np.append(self._last_end_ns, np.full(more, NULL))
        np.add.at(self._number, owner, np.diff(run, append=len(process)))
        np.minimum.at(self._first_ns, owner, np.minimum.reduceat(start, run))
        np.maximum.at(self._last_end_ns, owner, np.maximum.reduceat(end, run))
        return run, owner

    def finish(self) -> dict[RankKey, Extent]:
        """Return each rank's extent, in order of first occurrence."""
        columns = (self._number, self._first_ns, self._last_end_ns)
        extents = zip(*(column.tolist() for column in columns), strict=True)
        return {
            RankKey(*key): Extent(*extent)
            for key, extent in zip(self._places, extents, strict=True)
        }

    def _owners(self, process: Int64, device: Int64) -> Int64:
        """Return the number of each run's rank, int64[m]."""
        if len(process) <= _FEW_RUNS:
            keys = zip(process.tolist(), device.tolist(), strict=True)
            return np.array([self._place(key) for key in keys], np.int64)
        owner = np.empty(len(process), np.int64)
        for rows in pieces(process, device):
            owner[rows] = self._place((int(process[rows][0]), int(device[rows][0])))
        return owner

    def _place(self, key: tuple[int, int]) -> int:
        return self._places.setdefault(key, len(self._places))
