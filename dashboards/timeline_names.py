"""Names of a timeline's events as numbers, and the search among them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64


class NameTable:
    """Names by number; there can be a million.

    Attributes:
        names: by number.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._folded: tuple[str, Int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def matching(self, text: str) -> Int64:
        """Return the numbers of the names that hold a text in any case, ascending."""
        if self._folded is None:
            # One text is searched many times as fast as a million.
            folded = [name.replace("\n", " ").lower() for name in self.names]
            ends = np.cumsum([len(each) + 1 for each in folded], dtype=np.int64)
            self._folded = "\n".join(folded), ends
        joined, ends = self._folded
        wanted = re.compile(re.escape(text.replace("\n", " ").lower()))
        found = np.array([match.start() for match in wanted.finditer(joined)], np.int64)
        return np.unique(np.searchsorted(ends, found, side="right"))
