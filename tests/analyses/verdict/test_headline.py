"""The limit that the headline names: a bound by an assumption, and one that matters."""

import pytest

from traceprof.analyses.verdict.headline import largest_limit
from traceprof.findings import Basis, Finding, Saving, Severity

BOUND = Saving.at_most(200, "no-communication")


def made(saving: Saving | None) -> Finding:
    return Finding("gpu-idle", Severity.HIGH, 0, "it is so", 1, 0.1, {}, saving=saving)


@pytest.mark.parametrize(
    "other",
    [
        None,
        Saving.at_most(900),  # what it costs, by no assumption
        Saving(500, 400, 900, Basis.REPLAY, "no-idle"),
        Saving.at_most(9, "too-little"),
    ],
)
def test_a_bound_by_an_assumption_is_the_limit(other: Saving | None) -> None:
    assert largest_limit([made(other)], 1000) is None
    limit = largest_limit([made(other), made(BOUND), made(Saving.at_most(100, "less"))], 1000)
    assert limit is not None
    assert limit.saving == BOUND
