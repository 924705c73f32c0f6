"""Simulated time: planned events in order of time, then of planning."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """A queue of planned events that runs them in order of time.

    Attributes:
        now_ns: the present.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_ns: int, happen: Callable[[], None]) -> None:
        """Plan an event for a time, now at the earliest."""
        heapq.heappush(self._planned, (max(time_ns, self.now_ns), next(self._numbers), happen))

    def run(self) -> None:
        """Run all planned events, and those that they plan in turn."""
        while self._planned:
            self.now_ns, _, happen = heapq.heappop(self._planned)
            happen()
