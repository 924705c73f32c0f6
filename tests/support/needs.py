"""What a test needs from outside and does not find here."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test because of what is missing; in CI, which installs everything, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must not skip what needs it")
    pytest.skip(what)
