"""What readers of event tables share: checks, rows by rank, numbers for kernel signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from traceprof import intervals
from traceprof.trace.model import RankKey, Signatures
from traceprof.trace.packed import Growing
from traceprof.trace.reader import NULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.database import Database
    from traceprof.trace.packed import Packed

Key = TypeVar("Key", int, RankKey)

# A report is of one machine, with a few processes to each of its GPUs. Ids that are noise would
# otherwise make every operation a rank.
_MOST_PROCESSES = 1024

# Slices to be copied one by one; beyond, sorting the rows takes less time.
_MOST_RUNS = 64


def check_times(database: Database, table: str, start: Int64, end: Int64) -> None:
    """Raise a TraceFormatError where times are beyond any clock."""
    limit = intervals.BEYOND_NS
    if len(start) and (int(start.min()) <= -limit or int(end.max()) >= limit):
        raise database.damaged(f"{table} holds times beyond any clock")


def check_few_processes(database: Database, table: str, num_processes: int) -> None:
    """Raise a TraceFormatError where there are more processes than a machine runs."""
    if num_processes > _MOST_PROCESSES:
        raise database.damaged(f"{table} names more than {_MOST_PROCESSES} processes")


def groups(*keys: Int64) -> Iterator[Int64]:
    """Yield the indices of the rows that agree in every key, in the order of the rows."""
    found: dict[tuple[int, ...], list[Int64]] = {}
    every = np.arange(len(keys[0]))
    for rows in pieces(*keys):
        found.setdefault(tuple(int(key[rows][0]) for key in keys), []).append(every[rows])
    for parts in found.values():
        yield np.concatenate(parts)


def pieces(*keys: Int64) -> Iterator[slice | Int64]:
    """Yield rows that agree in every key: in their order, and as few times as that is quick.

    Rows of one process or device often follow each other: then slices are yielded, which need no
    copy, and one key may come several times.
    """
    if len(keys[0]) == 0:
        return
    differ = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(np.append(True, differ))
    stop = np.append(first[1:], len(keys[0]))
    if len(first) <= _MOST_RUNS:
        for each in zip(first.tolist(), stop.tolist(), strict=True):
            yield slice(*each)
        return
    of_runs = [key[first] for key in keys]
    order = np.lexsort(of_runs)
    changes = np.logical_or.reduce([np.diff(key[order], prepend=key[order[:1]]) for key in of_runs])
    number = np.empty(len(first), np.int64)
    number[order] = np.cumsum(changes)
    # A stable sort of 16 bits is many times as fast as one of 64.
    number = number.astype(np.min_scalar_type(int(number.max())))
    of_rows = np.repeat(number, stop - first)
    rows = np.argsort(of_rows, kind="stable")
    yield from np.split(rows, np.cumsum(np.bincount(of_rows))[:-1])


class Parts(Generic[Key]):
    """The rows of each rank or process, put together chunk by chunk."""

    def __init__(self) -> None:
        self._columns: dict[Key, dict[str, Growing]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._columns)

    def add(self, key: Key, columns: Mapping[str, Int64], rows: slice | Int64) -> None:
        """Add some rows of a chunk, of whose columns every chunk has the same."""
        own = self._columns.get(key)
        if own is None:
            own = self._columns[key] = {name: Growing() for name in columns}
        for name, values in columns.items():
            own[name].append(values[rows])

    def finished(self) -> Iterator[tuple[Key, dict[str, Packed]]]:
        """Yield the columns of each key, in order, and forget them."""
        for key in sorted(self._columns):
            columns = self._columns.pop(key)
            yield key, {name: column.finish() for name, column in columns.items()}


class Signer:
    """Numbers kernel signatures (name, grid, block) in the order in which they are met."""

    def __init__(self) -> None:
        self.names: set[int] = set()
        self._hashes = np.empty(0, np.uint64)  # sorted
        self._numbers = np.empty(0, np.int64)  # of the sorted hashes
        self._rows: list[Int64] = []

    @property
    def signatures(self) -> Signatures:
        """What was met so far."""
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, 7), np.int64)
        return Signatures(rows[:, 0], rows[:, 1:])

    def number(self, name: Int64, shape: Sequence[Int64 | None]) -> Int64:
        """Return the number of each row's signature, int64[n].

        Args:
            name: int64[n].
            shape: six int64[n]; None for what the export lacks.
        """
        columns = [name, *shape]
        hashes = _hashes(columns, len(name))
        known = self._positions(hashes)
        new = np.flatnonzero(known < 0)
        if len(new):
            _, first = np.unique(hashes[new], return_index=True)
            self._learn(hashes, columns, np.sort(new[first]))
            known = self._positions(hashes)
        return self._numbers[known]

    def _positions(self, hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Int64:
        """Return where each hash is among the known ones, -1 for an unknown one."""
        if len(self._hashes) == 0:
            return np.full(len(hashes), -1, np.int64)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[at] == hashes, at, -1)

    def _learn(
        self,
        hashes: np.ndarray[tuple[int], np.dtype[np.uint64]],
        columns: Sequence[Int64 | None],
        rows: Int64,
    ) -> None:
        missing = np.full(len(rows), NULL, np.int64)
        picked = [missing if each is None else each[rows] for each in columns]
        self._rows.append(np.stack(picked, axis=1))
        self.names.update(picked[0].tolist())
        numbers = np.arange(len(rows)) + len(self._numbers)
        all_hashes = np.concatenate((self._hashes, hashes[rows]))
        order = np.argsort(all_hashes)
        self._hashes = all_hashes[order]
        self._numbers = np.concatenate((self._numbers, numbers))[order]


def _hashes(
    columns: Sequence[Int64 | None], length: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Mix the columns of each row into 64 bits.

    Of a hundred thousand signatures two would share a hash in one of four billion exports.
    """
    mixed = np.zeros(length, np.uint64)
    for column in columns:
        if column is not None:
            mixed ^= column.astype(np.uint64)
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return mixed
