"""Work on the items of a list, shared by this process and children."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from traceprof.execution.child_process import Child, ChildError, can_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


# A child process takes some 20 ms, and so many operations 25 ms of analyses.
MIN_OPERATIONS_OF_A_PROCESS = 75_000


def worthwhile_processes(num_operations: int) -> int:
    """Return how many processes so many GPU operations are worth."""
    return max(num_operations // MIN_OPERATIONS_OF_A_PROCESS, 1)


def share(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    num_processes: int,
    prepare: Callable[[], None],
) -> list[Result]:
    """Return what work makes of each item; where no child can be made, this process does all.

    Args:
        work: makes the same of an item in every process; what it makes can be pickled.
        items: the items.
        num_processes: how many processes work, this one included; at least one.
        prepare: what a child does before.

    Raises:
        Exception: what `work` raises.
    """
    step = num_processes if can_fork() else 1

    def part(first: int) -> Iterator[Result]:
        prepare()
        yield from map(work, items[first::step])

    results: dict[int, Result] = {}
    with ExitStack() as stack:
        children = [
            (first, stack.enter_context(Child(partial(part, first))))
            for first in range(1, min(step, len(items)))
        ]
        for index in range(0, len(items), step):
            results[index] = work(items[index])
        for first, child in children:
            with suppress(ChildError):
                for number, result in enumerate(child.items()):
                    results[first + number * step] = result
    return [results[index] if index in results else work(item) for index, item in enumerate(items)]
