"""The progress bar of the commands that read reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from typing_extensions import Self


class CountBar:
    """A bar on stderr of rows or reports done, of those expected; it disappears at the end."""

    def __init__(self, unit: str) -> None:
        self._bar = Progress(
            TextColumn("reading"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,  # `advance` does
        )
        self._task = self._bar.add_task("", total=0)
        self._expected = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, number: int) -> None:
        """Expect this many more."""
        self._expected += number
        self._bar.update(self._task, total=self._expected)

    def advance(self, number: int) -> None:
        """Count this many as done."""
        self._bar.advance(self._task, number)
        self._bar.refresh()
