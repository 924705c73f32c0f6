"""Numbers of a trace as int64 columns: times in nanoseconds, ids that may be missing."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64

MAX_FLOAT_US = float(1 << 43)
"""Below this, a float holds a time in microseconds exactly to the nanosecond."""
_MAX_US = float(1 << 52)
_NS_PER_US, _DIGITS = 1000, 3  # behind the point
_ZERO, _POINT, _END = ord("0"), ord("."), 0
_MISSING = b"null"
_MAX_LENGTH = 17  # of a text whose digits fit in 64 bits, in ns too
_MAX_TEXT = 64  # of a time, whatever its digits
_LIMITS = np.iinfo(np.int64)


def integers(values: Sequence[int | str | None]) -> Int64:
    """Return a column, int64[n], NULL for missing values, non-numbers and beyond 64 bits."""
    if values.count(None) == len(values):
        return np.full(len(values), NULL)
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        known = (
            value if isinstance(value, int) and _LIMITS.min <= value <= _LIMITS.max else NULL
            for value in values
        )
        return np.fromiter(known, np.int64, len(values))


def has_exact_floats(times_us: npt.NDArray[np.generic]) -> bool:
    """Return whether times hold the nanoseconds of the text, or are whole numbers."""
    if times_us.dtype != np.float64:
        return True
    return not (np.abs(times_us) >= MAX_FLOAT_US).any()


def nanoseconds(times_us: npt.NDArray[np.generic]) -> Int64:
    """Return times in nanoseconds, int64[n]; NULL for values that are no times.

    Args:
        times_us: int64[n] or float64[n].
    """
    if times_us.dtype == np.int64:
        whole = times_us.astype(np.int64, copy=False)
        return np.where(np.abs(whole) <= _MAX_US, whole * _NS_PER_US, NULL)
    floats = times_us.astype(np.float64, copy=False)
    is_time = np.abs(floats) <= _MAX_US
    floats = np.where(is_time, floats, 0.0)
    below = np.floor(floats)
    behind = np.rint((floats - below) * _NS_PER_US).astype(np.int64)
    return np.where(is_time, below.astype(np.int64) * _NS_PER_US + behind, NULL)


def nanoseconds_of_texts(texts: Sequence[bytes]) -> Int64:
    """Return times in nanoseconds, int64[n], of texts in microseconds; NULL for other texts."""
    if not texts:
        return np.empty(0, np.int64)
    texts = [text if len(text) <= _MAX_TEXT else _MISSING for text in texts]
    whole = np.array(texts, np.bytes_)
    digits = whole.view(np.uint8).reshape(len(texts), whole.dtype.itemsize)
    behind = np.full(len(texts), -1)  # digits behind the point, -1 before it
    value = np.zeros(len(texts), np.int64)
    is_plain = np.ones(len(texts), np.bool_)
    for column in digits.T:
        is_digit = (column >= _ZERO) & (column < _ZERO + 10)
        is_point = (column == _POINT) & (behind < 0)
        is_plain &= is_digit | is_point | (column == _END)
        behind += (is_digit & (behind >= 0)) | is_point
        value = np.where(is_digit, value * 10 + (column - np.int64(_ZERO)), value)
    behind = np.maximum(behind, 0)
    is_plain &= (behind <= _DIGITS) & (np.char.str_len(whole) <= _MAX_LENGTH)
    value *= 10 ** np.maximum(_DIGITS - behind, 0)
    is_missing = whole == _MISSING
    value[is_missing | (value > _MAX_US * _NS_PER_US)] = NULL
    for index in np.flatnonzero(~is_plain & ~is_missing).tolist():
        value[index] = _nanoseconds(texts[index])
    return value


def _nanoseconds(text: bytes) -> int:
    """Return a time with a sign, an exponent, or more digits."""
    try:
        time_us = Decimal(text.decode("ascii"))
        if not abs(time_us) <= _MAX_US:
            return NULL
    except (ArithmeticError, UnicodeDecodeError):
        return NULL
    return int((time_us * _NS_PER_US).to_integral_value())
