"""Medians of all entries of a row but one, against numpy's of what is left."""

import numpy as np
import pytest

from traceprof.ranks.medians import mean_of, middle_of_others


@pytest.mark.parametrize("num", [2, 3, 4, 9, 16])
@pytest.mark.parametrize("highest", [3, 10**9])
def test_middle_of_others(num: int, highest: int) -> None:
    values = np.random.default_rng(num).integers(-highest, highest, (50, num))
    found = mean_of(*middle_of_others(values))
    for column in range(num):
        others = np.median(np.delete(values, column, axis=1), axis=1).astype(np.int64)
        assert found[:, column].tolist() == others.tolist()
