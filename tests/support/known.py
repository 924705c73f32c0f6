"""Values that a test takes for granted."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return a value, which must not be None."""
    assert value is not None
    return value
