"""The progress bar of the commands that read reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from typing_extensions import Self


class RowsBar:
    """Rows read against rows expected, on stderr; gone when the reading is done."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("reading"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=0)
        self._expected = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, rows: int) -> None:
        """Learn that so many rows more will be read."""
        self._expected += rows
        self._bar.update(self._task, total=self._expected)

    def advance(self, rows: int) -> None:
        """Learn that so many rows were read."""
        self._bar.advance(self._task, rows)
