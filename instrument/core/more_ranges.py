"""Ranges that are opened only where they are asked for, by variables of the environment."""

from __future__ import annotations

import os

MODULES = "TRACEPROF_MODULES"
"""How many levels of modules get ranges, from the outermost one on."""
GARBAGE_COLLECTION = "TRACEPROF_GC"
"""Whether garbage collections get ranges: 1 if they do."""


def asked_depth() -> int:
    """Return the number of levels of modules that get ranges; 0 if none is asked for.

    Raises:
        ValueError: the variable is set to something else than a whole number.
    """
    return max(int(os.environ.get(MODULES, "").strip() or 0), 0)


def asks_for_collections() -> bool:
    """Return whether garbage collections get ranges."""
    return os.environ.get(GARBAGE_COLLECTION, "").strip() == "1"
