"""Integers in columns that stand for something else than themselves."""

from __future__ import annotations

import numpy as np

NULL = int(np.iinfo(np.int64).min)
"""There is no value: the report does not tell."""

OPEN_END = int(np.iinfo(np.int64).max)
"""The end of a range that was still open when the capture ended."""

UNKNOWN = -1
"""A fact of a communication call, or an index, that is not known."""
