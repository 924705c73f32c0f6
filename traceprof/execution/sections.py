"""Reading the sections of a report in several processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.execution import children
from traceprof.execution.children import Child, ChildError, ProgressOfAll, send
from traceprof.structs import Record
from traceprof.trace.model.trace import Section, SectionData, Trace

if TYPE_CHECKING:
    from typing_extensions import Self


# A smaller report is read in less time than it takes to make a child.
MIN_SHARED_BYTES = 24 << 20


class ReadSection(Record, frozen=True):
    """A section that was read."""

    report: int  # the report's index
    section: Section  # the section
    data: SectionData  # its content


class SectionReader:
    """Reads the sections of a report, most of them in child processes; a context manager.

    `num_processes` counts this one, too. `report` is its index, `held` the sections that it holds
    already. With `forwards` all sections also go to the parent of this process, itself a child:
    then children read all of them, so that the first one does not wait for the others.
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
        self._coming: dict[Section, Iterator[ReadSection]] = {}
        self._arrived: dict[Section, SectionData] = {}

    def __enter__(self) -> Self:
        for sections in self._parts:
            child = Child(partial(self._read, sections), self._progress, forwards=self._forwards)
            items = self._stack.enter_context(child).items()
            self._coming.update(dict.fromkeys(sections, items))
        self._trace.set_section_source(self._section)
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.set_section_source(self._trace.read_section)
        self._stack.close()
        self._coming.clear()  # they would keep the report alive after its last use

    def keep_all(self) -> None:
        """Read all sections into the report."""
        for section in [*self._missing]:
            self._trace.keep_section(section, self._section(section))

    def _parts_of_children(self, num_processes: int) -> list[Sequence[Section]]:
        is_small = _num_bytes(self._trace.path) < MIN_SHARED_BYTES
        if is_small or num_processes < 2 or not children.can_fork():
            return []
        if self._forwards:
            return [[section] for section in self._missing]
        others = self._missing[1:]
        num_children = min(num_processes - 1, len(others))
        return [others[first::num_children] for first in range(num_children)]

    def _read(self, sections: Sequence[Section]) -> Iterator[ReadSection]:
        self._trace.reopen()
        for section in sections:
            yield ReadSection(self._report, section, self._trace.read_section(section))

    def _section(self, section: Section) -> SectionData:
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
    except OSError:  # it was moved; the open file is read
        return MIN_SHARED_BYTES
