"""What analyses claim, or say that they cannot."""

from collections.abc import Sequence

from traceprof.findings import Finding, NotApplicable


def only_finding(claims: Sequence[object]) -> Finding:
    """Return the only claim, which has to be a finding."""
    (claim,) = claims
    assert isinstance(claim, Finding)
    return claim


def only_gap(claims: Sequence[object]) -> NotApplicable:
    """Return the only claim, which has to be that something is missing."""
    (claim,) = claims
    assert isinstance(claim, NotApplicable)
    return claim


def assert_missing(claims: Sequence[object], why: str, how_to_collect: str) -> None:
    """Assert that nothing is claimed but that something is missing, and how to record it."""
    missing = only_gap(claims)
    assert why in missing.reason
    assert how_to_collect in missing.how_to_collect
