"""What analyses claim, or say that they cannot."""

from collections.abc import Sequence

from traceprof.findings import NotApplicable


def assert_missing(claims: Sequence[object], why: str, how_to_collect: str) -> None:
    """Assert that nothing is claimed but that something is missing, and how to record it."""
    (missing,) = claims
    assert isinstance(missing, NotApplicable)
    assert why in missing.reason
    assert how_to_collect in missing.how_to_collect
