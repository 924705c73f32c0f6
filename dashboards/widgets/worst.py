"""Worst ranks first: of many ranks, the costliest are drawn one by one, the others together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from dashboards.widgets.components import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash.development.base_component import Component

Item = TypeVar("Item")
Cost = TypeVar("Cost", float, "tuple[float, ...]")

MAX_DRAWN = 16
"""Ranks that are drawn one by one."""


class Split(NamedTuple, Generic[Item]):
    """Ranks that are drawn one by one, and the others.

    Attributes:
        drawn: all ranks in their order; of many, only the worst, the worst first.
        others: those that are drawn together, in their order.
    """

    drawn: list[Item]
    others: list[Item]

    def note(self, subject: str) -> str:
        """Return a note on which ranks are drawn; empty if all are.

        Args:
            subject: by which they are the worst, such as `the longest steps`.
        """
        if not self.others:
            return ""
        num = len(self.drawn)
        return f"the {num} ranks with {subject}, and the other {len(self.others)} together"


def worst_first(
    items: Sequence[Item], cost: Callable[[Item], Cost], most: int = MAX_DRAWN
) -> Split[Item]:
    """Split ranks into those to draw one by one and the others.

    Args:
        items: something of each rank.
        cost: how bad each is.
        most: the largest number of items drawn one by one.
    """
    if len(items) <= most:
        return Split([*items], [])
    order = sorted(range(len(items)), key=lambda at: cost(items[at]), reverse=True)
    worst = set(order[:most])
    return Split(
        [items[at] for at in order[:most]],
        [item for at, item in enumerate(items) if at not in worst],
    )


def sorted_worst_first(items: Sequence[Item], cost: Callable[[Item], Cost]) -> list[Item]:
    """Return the rows of a table in their order; of many ranks, the worst first."""
    return [*items] if len(items) <= MAX_DRAWN else sorted(items, key=cost, reverse=True)


def with_table(table: Component, num_ranks: int) -> Component:
    """Return the table of ranks below their chart; the table of many ranks is folded."""
    return table if num_ranks <= MAX_DRAWN else folded(f"All {num_ranks} ranks", table)
