"""Special values in integer columns."""

from __future__ import annotations

import numpy as np

NULL = int(np.iinfo(np.int64).min)
"""No value: unknown in the report."""

OPEN_END = int(np.iinfo(np.int64).max)
"""The end of a range that was still open when the capture ended."""

FIRST_UTC_NS = 1_000_000_000_000_000_000
"""A time from which on times are since 1970: in 2001. Those since a session's start are smaller."""

UNKNOWN = -1
"""An unknown fact of a communication call, or an unknown index."""
