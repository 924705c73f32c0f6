"""Names of a timeline's events as numbers, in full and in short, and the search among them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication import function_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64

_LABEL_CHARACTERS = 100


class NameTable:
    """Names by number; there can be a million.

    Attributes:
        names: in full, by number.
    """

    def __init__(self, names: Sequence[str], num_kernels: int = 0) -> None:
        """Take names, of which so many, from the first on, are those of kernels."""
        self.names = names
        self._num_kernels = num_kernels
        self._folded: tuple[str, Int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def label(self, number: int) -> str:
        """Return a name as it is written into an event: of a kernel, its function."""
        return _label(self.names[number], is_kernel=number < self._num_kernels)

    def matching(self, text: str) -> Int64:
        """Return the numbers of the names that hold a text, in full or in short, ascending.

        Letters count alike in either case.
        """
        if self._folded is None:
            # One text is searched many times as fast as a million.
            folded = [
                (f"{name} {self.label(number)}" if number < self._num_kernels else name)
                .replace("\n", " ")
                .lower()
                for number, name in enumerate(self.names)
            ]
            ends = np.cumsum([len(each) + 1 for each in folded], dtype=np.int64)
            self._folded = "\n".join(folded), ends
        joined, ends = self._folded
        wanted = re.compile(re.escape(text.replace("\n", " ").lower()))
        found = np.array([match.start() for match in wanted.finditer(joined)], np.int64)
        return np.unique(np.searchsorted(ends, found, side="right"))


@lru_cache(maxsize=4096)
def _label(name: str, *, is_kernel: bool) -> str:
    shown = function_name(name) if is_kernel else name
    return shown if len(shown) <= _LABEL_CHARACTERS else f"{shown[: _LABEL_CHARACTERS - 1]}…"
