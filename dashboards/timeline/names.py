"""Names of a timeline's events as numbers, in full and in short, and the search among them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from traceprof.kernel_names import function_name
from traceprof.trace.model.texts import Texts

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
        self._folded: Texts | None = None

    def __len__(self) -> int:
        return len(self.names)

    def label(self, number: int) -> str:
        """Return a name as it is written into an event: of a kernel, its function."""
        return _label(self.names[number], is_kernel=number < self._num_kernels)

    def matching(self, text: str) -> Int64:
        """Return the numbers of the names that hold a text, in full or in short, ascending.

        Args:
            text: not empty; its letters count alike in either case.
        """
        if self._folded is None:
            self._folded = Texts(
                _folded(f"{name} {self.label(number)}" if number < self._num_kernels else name)
                + b"\n"
                for number, name in enumerate(self.names)
            )
        # Where the text begins, and of these places ever fewer at which it goes on.
        letters, wanted = np.frombuffer(self._folded.joined, np.uint8), _folded(text)
        at = np.flatnonzero(letters[: max(len(letters) - len(wanted) + 1, 0)] == wanted[0])
        for index, letter in enumerate(wanted[1:], 1):
            at = at[letters[at + index] == letter]
        return np.unique(np.searchsorted(self._folded.ends, at, side="right"))


def _folded(text: str) -> bytes:
    return text.replace("\n", " ").lower().encode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _label(name: str, *, is_kernel: bool) -> str:
    shown = function_name(name) if is_kernel else name
    return shown if len(shown) <= _LABEL_CHARACTERS else f"{shown[: _LABEL_CHARACTERS - 1]}…"
