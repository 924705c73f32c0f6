"""Special values in integer columns, and limits of numbers and texts in reports."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof import intervals
from traceprof.intervals import Int64

NULL = int(np.iinfo(np.int64).min)
"""No value: unknown in the report."""

OPEN_END = int(np.iinfo(np.int64).max)
"""The end of a range that was still open when the capture ended."""

FIRST_UTC_NS = 1_000_000_000_000_000_000
"""A time from which on times are since 1970: in 2001. Those since a session's start are smaller."""

UNKNOWN = -1
"""An unknown fact of a communication call, or an unknown index."""


MAX_TEXT = 1 << 14
"""Characters of a text: names of kernels have up to some thousand."""
MAX_EVENT_NS = 1 << 53
"""104 days: the longest event."""
MAX_SUM_NS = 1 << 58
"""9 years: the sum of the lengths of events that are read together."""
MAX_BYTES = 1 << 44
"""17.6 TB: the largest size of one operation, beyond any memory."""
MAX_RANK = (1 << 31) - 1
_MAX_DIGITS = 15


def are_times(start_ns: Int64, end_ns: Int64) -> bool:
    """Whether the times of n events, and the sum of their lengths, are possible."""
    if not len(start_ns):
        return True
    limit = intervals.BEYOND_NS
    if int(start_ns.min()) <= -limit or int(end_ns.max()) >= limit:
        return False
    return float((end_ns - start_ns).sum(dtype=np.float64)) < MAX_SUM_NS


def are_sizes(num_bytes: Int64) -> npt.NDArray[np.bool_]:
    """Return which values can be the size of an operation, bool[n]."""
    return (num_bytes >= 0) & (num_bytes < MAX_BYTES)


def known_sizes(num_bytes: Int64) -> Int64:
    """Return sizes, int64[n]; NULL for impossible values."""
    return np.where(are_sizes(num_bytes), num_bytes, NULL)


def known_devices(ordinals: Int64) -> Int64:
    """Return ordinals of devices, int64[n]; NULL for impossible values, such as CUPTI's -1."""
    return np.where((ordinals >= 0) & (ordinals < MAX_RANK), ordinals, NULL)


def clipped(text: str) -> str:
    """Return a text of at most `MAX_TEXT` characters; `…` stands for the others."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def whole_number(text: str | None) -> int | None:
    """Return the number in a short text of decimal digits; None for other texts."""
    is_number = text is not None and text.isdecimal() and len(text) < _MAX_DIGITS
    return int(text) if text is not None and is_number else None
