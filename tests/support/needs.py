"""What a test needs from outside and does not find here."""

import os
from typing import NoReturn

import pytest


def missing(what: str, program: str = "") -> NoReturn:
    """Skip the test because of what is missing; in CI, which installs everything, fail it.

    Args:
        what: what is missing.
        program: its name, if `.ci/run` may find that a machine has none (TRACEPROF_WITHOUT).
    """
    can_be_had = program not in os.environ.get("TRACEPROF_WITHOUT", "").split()
    if os.environ.get("CI") and can_be_had:
        pytest.fail(f"{what}, and CI must not skip what needs it")
    pytest.skip(what)
