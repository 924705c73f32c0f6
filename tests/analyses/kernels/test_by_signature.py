"""Durations are sorted by signature the same in 32 bits, in 64, and in two keys."""

import numpy as np
import pytest

from traceprof.analyses.kernels.by_signature import sorted_by_signature


@pytest.mark.parametrize("longest", [1, 1 << 20, (1 << 26) - 1, 1 << 26, 1 << 40, 1 << 62])
def test_durations_by_signature(longest: int) -> None:
    rng = np.random.default_rng(longest)
    signature = rng.integers(0, 64, 500)
    length = np.append(rng.integers(0, longest, 499), longest)
    expected = length[np.lexsort((length, signature))]
    assert np.array_equal(sorted_by_signature(length, signature), expected)


def test_none() -> None:
    nothing = np.empty(0, np.int64)
    assert len(sorted_by_signature(nothing, nothing)) == 0
