"""Reports analysed beside a process that goes on with something else, such as answering a browser.

A child process reads and analyses; the sections of the reports come as soon as they are read, and
what is found out afterwards refers to them.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from traceprof.execution.child_process import Child, ChildError, can_fork, questions, send
from traceprof.execution.reading import ReadSection
from traceprof.trace.model.operations import NO_OPERATIONS, RankKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from traceprof.execution.child_process import ProgressOfAll
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Section, Trace

__all__ = ["Beside", "RankAlone", "made_beside", "questions", "send"]

Item = TypeVar("Item")

_OF_TRACE = ("trace", "operations", "process_cache", "cache")


@dataclass(frozen=True)
class Beside(Generic[Item]):
    """Another process that makes something.

    Attributes:
        items: what it makes, as it comes.
        ask: asks it something; False where it cannot be asked. The answer is its next item.
    """

    items: Iterator[Item]
    ask: Callable[[object], bool]


@contextmanager
def made_beside(
    make: Callable[[], Iterable[Item]],
    traces: Mapping[int, Trace],
    progress: ProgressOfAll | None,
    held: dict[int, list[Section]],
) -> Iterator[Beside[Item]]:
    """Have another process make something of open reports, from now on.

    Args:
        make: makes items there, by means of `SectionsBeside` that forward what they read; it may
            `send` some more.
        traces: the reports by their indices; in this process they are given their sections.
        progress: who is told of the rows that are read.
        held: filled with the sections that each report was given.

    Yields:
        The process. Its items come as they are made. Where no process could be made, or it was
        killed, or something went wrong, they end early, and this process has to make them.
    """

    def make_there() -> Iterator[Item | ReadSection]:
        for trace in traces.values():
            trace.reopen()
        yield from make()

    def items(child: Child[Item | ReadSection]) -> Iterator[Item]:
        with suppress(ChildError):
            for item in child.items():
                if isinstance(item, ReadSection):
                    traces[item.report].keep_section(item.section, item.data)
                    held.setdefault(item.report, []).append(item.section)
                else:
                    yield item

    if not can_fork():
        yield Beside(iter(()), lambda _: False)
        return
    with Child(make_there, progress) as child:

        def ask(question: object) -> bool:
            try:
                child.ask(question)
            except ChildError:
                return False
            return True

        yield Beside(items(child), ask)


class RankAlone(NamedTuple):
    """A rank without its report, to be sent to where the report is, too.

    Attributes:
        kind: its class.
        attributes: those that the report does not have.
    """

    kind: type[Rank]
    attributes: dict[str, object]

    @classmethod
    def of(cls, rank: Rank) -> RankAlone:
        """Return a rank without its report."""
        names = [field.name for field in fields(rank) if field.name not in _OF_TRACE]
        return cls(type(rank), {name: getattr(rank, name) for name in names})

    def within(self, trace: Trace) -> Rank:
        """Return the rank with its report."""
        process, device = self.attributes["process"], self.attributes["device"]
        key = RankKey(process, device)  # type: ignore[arg-type]
        operations = NO_OPERATIONS if device is None else trace.operations[key]
        return self.kind(**self.attributes, trace=trace, operations=operations)  # type: ignore[arg-type]
