"""Special values in integer columns."""

from __future__ import annotations

import numpy as np

NULL = int(np.iinfo(np.int64).min)
"""No value: unknown in the report."""

OPEN_END = int(np.iinfo(np.int64).max)
"""The end of a range that was still open when the capture ended."""

UNKNOWN = -1
"""An unknown fact of a communication call, or an unknown index."""
