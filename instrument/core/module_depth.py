"""How deep the modules of a model get ranges of their own: not at all unless asked for."""

from __future__ import annotations

import os

VARIABLE = "TRACEPROF_MODULES"
"""Environment variable: how many levels of modules get ranges, from the outermost one on."""


def asked_depth() -> int:
    """Return the number of levels that get ranges; 0 where none is asked for.

    Raises:
        ValueError: the variable is set to something else than a whole number.
    """
    return max(int(os.environ.get(VARIABLE, "").strip() or 0), 0)
