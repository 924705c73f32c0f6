"""Numbers for texts and blobs of many rows: few of them are distinct."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.intervals import Int64
from traceprof.trace.model.special_values import clipped
from traceprof.trace.sqlite.pages import Bytes, Words, factors, gathered

Text: TypeAlias = "str | bytes"

NONE = -1
"""The number of NULL."""


class NumberedTexts:
    """Numbers for texts in order of first occurrence.

    With `digits_alike` each digit counts as 0, so that texts that differ in numbers are equal.
    """

    def __init__(self, *, digits_alike: bool = False) -> None:
        self._digits_alike = digits_alike
        self._numbers: dict[Text, int] = {}

    @property
    def known(self) -> list[Text]:
        """The texts by number; bytes where the export has a blob."""
        return [*self._numbers]

    def of(self, values: Iterable[object]) -> Int64:
        """Return the number of each text, int64[n], `NONE` for None; integers become texts."""
        numbers = [
            NONE
            if value is None
            else self._number(value if isinstance(value, str | bytes) else str(value))
            for value in values
        ]
        return np.array(numbers, np.int64)

    def of_stored(
        self, data: Bytes, begin: Int64, length: Int64, is_blob: npt.NDArray[np.bool_]
    ) -> Int64 | None:
        """Numbers of texts in pages, `NONE` for NULL; None if two texts cannot be distinguished.

        `begin`: of each text. `length`: its bytes in UTF-8, `NONE` for NULL.
        """
        numbers = np.full(len(begin), NONE, np.int64)
        words = -(-length // 8)
        for width in np.flatnonzero(np.bincount(words[length >= 0])).tolist():
            rows = np.flatnonzero((words == width) & (length >= 0))
            of_width = self._of_width(data, begin[rows], length[rows], is_blob[rows], width)
            if of_width is None:
                return None
            numbers[rows] = of_width
        return numbers

    def _of_width(
        self, data: Bytes, begin: Int64, length: Int64, is_blob: npt.NDArray[np.bool_], width: int
    ) -> Int64 | None:
        """Numbers of texts that take `width` words of eight bytes."""
        kind = (length << 1 | is_blob).view(np.uint64)
        stored = gathered(data, begin, 8 * width).view(np.uint64).reshape(len(begin), width)
        if width:
            stored[:, -1] &= _TAILS[length & 7]
        if self._digits_alike:
            characters = stored.view(np.uint8)
            np.copyto(characters, _ZERO, where=characters - _ZERO < 10)
        hashes: Words = stored @ factors(width) + kind * _KIND_FACTOR
        _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
        which = which.reshape(-1)
        same = first[which]
        if (stored != stored.take(same, axis=0)).any() or (kind != kind[same]).any():
            return None
        texts = (stored[row].tobytes()[: int(length[row])] for row in first.tolist())
        numbers = [
            self._number(text if blob else text.decode("utf-8", "replace"))
            for text, blob in zip(texts, is_blob[first].tolist(), strict=True)
        ]
        return np.array(numbers, np.int64)[which]

    def _number(self, text: Text) -> int:
        if isinstance(text, str):
            text = clipped(text.translate(_DIGITS) if self._digits_alike else text)
        return self._numbers.setdefault(text, len(self._numbers))


_ZERO = np.uint8(ord("0"))
_DIGITS = str.maketrans("123456789", "0" * 9)
_KIND_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# The bytes of a text's last word, by its length modulo 8.
_TAILS = (
    np.where(np.arange(8) < np.array([8, 1, 2, 3, 4, 5, 6, 7])[:, None], 255, 0)
    .astype(np.uint8)
    .view(np.uint64)
    .reshape(-1)
)
