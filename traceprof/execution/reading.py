"""The sections of a report, read side by side: what the GPU did beside what the host did."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from traceprof.execution.child_process import Child, ChildError, ProgressOfAll, can_fork, send

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from traceprof.trace.model.trace import Section, SectionData, Trace

__all__ = ["ProgressOfAll", "ReadSection", "SectionsBeside"]

# Bytes of a report from which reading takes longer than a child process takes to be made.
MIN_SHARED_BYTES = 24 << 20
# More would starve the others where every core is busy with somebody else's work.
_NICENESS = 5


class ReadSection(NamedTuple):
    """A section of a report.

    Attributes:
        report: its index.
        section: which one.
        data: what it holds.
    """

    report: int
    section: Section
    data: SectionData


class SectionsBeside:
    """Reads the sections of a report, most of them beside this process; a context.

    Args:
        trace: the report.
        progress: who is told of the rows that are read.
        num_processes: how many processes read, this one included.
        report: the report's index.
        held: sections that the report holds already.
        forwards: whether the parent of this process, a child, gets all sections, too; then children
            read them all, and the first one is not kept waiting for others.
    """

    def __init__(
        self,
        trace: Trace,
        progress: ProgressOfAll | None,
        num_processes: int,
        report: int = 0,
        held: Collection[Section] = (),
        *,
        forwards: bool = False,
    ) -> None:
        self._trace, self._progress = trace, progress
        self._report, self._forwards = report, forwards
        self._stack = ExitStack()
        self._missing = [section for section in trace.sections if section not in held]
        self._parts = self._parts_of_children(num_processes)
        self._children: list[Child[ReadSection]] = []
        self._coming: dict[Section, Iterator[ReadSection]] = {}
        self._arrived: dict[Section, SectionData] = {}

    def __enter__(self) -> Self:
        for number, sections in enumerate(self._parts):
            child = Child(
                partial(self._read, sections),
                self._progress,
                niceness=_NICENESS if number and self._forwards else 0,
                forwards=self._forwards,
            )
            self._children.append(self._stack.enter_context(child))
            self._coming.update(dict.fromkeys(sections, child.items()))
        self._trace.set_section_source(self._section)
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.set_section_source(self._trace.read_section)
        self._stack.close()
        # They know this object, and would keep the report alive after its last use.
        self._children.clear()
        self._coming.clear()

    @property
    def are_coming(self) -> bool:
        """Whether others still read."""
        for child in self._children:
            child.receive()
        return not all(child.has_ended for child in self._children)

    def keep_all(self) -> None:
        """Have the report hold all of its sections."""
        for section in [*self._missing]:
            self._trace.keep_section(section, self._section(section))

    def _parts_of_children(self, num_processes: int) -> list[Sequence[Section]]:
        """Return the sections that each child reads."""
        is_small = _num_bytes(self._trace.path) < MIN_SHARED_BYTES
        if is_small or num_processes < 2 or not can_fork():
            return []
        if self._forwards:
            return [[section] for section in self._missing]
        others = self._missing[1:]
        num_children = min(num_processes - 1, len(others))
        return [others[first::num_children] for first in range(num_children)]

    def _read(self, sections: Sequence[Section]) -> Iterator[ReadSection]:
        """Read sections, in a child."""
        self._trace.reopen()
        for section in sections:
            yield ReadSection(self._report, section, self._trace.read_section(section))

    def _section(self, section: Section) -> SectionData:
        """Return what a section holds, when it is there."""
        with suppress(ChildError):
            for read in self._coming.pop(section, ()):
                self._arrived[read.section] = read.data
                if read.section == section:
                    break
        data = self._arrived.pop(section, None)
        if data is None:
            data = self._trace.read_section(section)
            if self._forwards:
                send(ReadSection(self._report, section, data))
        if section in self._missing:
            self._missing.remove(section)
        return data


def _num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was replaced; what was opened is read
        return MIN_SHARED_BYTES
