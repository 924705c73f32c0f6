"""Annotations of a trace as named ranges, and its instant events as marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, groups, is_in
from traceprof.trace.kineto import content as table
from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.marks import Marks
from traceprof.trace.model.ranges import NamedRanges, RangeTable, name_until
from traceprof.trace.model.special_values import OPEN_END

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.kineto.content import Content


class Annotations(Record, frozen=True):
    """The annotations of one process, ordered by start, longer ones first.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 if still open at the recording's end.
        thread: int64[n].
        name: int64[n], indices into `names`.
        names: of the trace.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int64
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.start_ns)

    def matching(self, pattern: re.Pattern[str], until: str = "") -> NamedRanges:
        """Return annotations with a match in their name, ordered by start, then end.

        Args:
            pattern: searched for in each name.
            until: names end where this begins.
        """
        numbers = distinct_values(self.name).tolist()
        name_of = {number: name_until(self.names[number], until) for number in numbers}
        numbers = [number for number, name in name_of.items() if pattern.search(name) is not None]
        rows = np.flatnonzero(is_in(self.name, np.array(numbers, np.int64)))
        rows = rows[np.lexsort((self.end_ns[rows], self.start_ns[rows]))]
        thread = self.thread[rows]
        names = [name_of[number] for number in self.name[rows].tolist()]
        return NamedRanges(self.start_ns[rows], self.end_ns[rows], names, thread, thread)

    def table(self) -> RangeTable:
        """Return all annotations."""
        nests = np.ones(len(self), np.bool_)
        return RangeTable(self.start_ns, self.end_ns, self.name, self.thread, nests, self.names)


def read_annotations(content: Content) -> dict[int, Annotations]:
    """Return the annotations of each process that has any."""
    columns = content.tables.get(Kind.ANNOTATION)
    if columns is None:
        return {}
    process = columns[table.PROCESS].values
    annotations = {}
    for rows in groups(process):
        start = columns[table.START].at(rows) - (content.first_ns or 0)
        end = start + columns[table.LENGTH].at(rows)
        end[columns[table.IS_OPEN].at(rows) > 0] = OPEN_END
        order = np.lexsort((-end, start))
        annotations[int(process[rows[0]])] = Annotations(
            start[order],
            end[order],
            columns[table.THREAD].at(rows)[order],
            columns[table.NAME].at(rows)[order],
            content.names,
        )
    return annotations


def read_marks(content: Content) -> dict[int, Marks]:
    """Return the marks of each process that has any."""
    columns = content.tables.get(Kind.MARK)
    if columns is None:
        return {}
    process = columns[table.PROCESS].values
    marks = {}
    for rows in groups(process):
        time = columns[table.START].at(rows) - (content.first_ns or 0)
        order = np.argsort(time, kind="stable")
        marks[int(process[rows[0]])] = Marks(
            time[order],
            columns[table.NAME].at(rows)[order],
            columns[table.THREAD].at(rows)[order],
            content.names,
        )
    return marks
