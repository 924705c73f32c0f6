"""Lags of sequences: planted periods, and the reference that tries every lag."""

from pathlib import Path

import numpy as np
import pytest

from tests.reference.period_steps import period
from tests.support.planted import INSERTED, WITHOUT_INSERTIONS, named
from tests.support.traces import ranks_of
from traceprof.intervals import Int64
from traceprof.run.steps.lags import best_lag


@pytest.mark.parametrize("name", WITHOUT_INSERTIONS)
def test_planted_periods(name: str) -> None:
    sequence, expected = WITHOUT_INSERTIONS[name]
    assert best_lag(named(sequence)) == expected
    if len(sequence) <= 9000:
        assert period(np.array(sequence)) == expected


@pytest.mark.parametrize("name", INSERTED)
def test_what_some_periods_lack(name: str) -> None:
    sequence, expected = INSERTED[name]
    assert best_lag(named(sequence)) == expected


@pytest.mark.parametrize("num", [0, 1, 2, 3])
def test_hardly_any(num: int) -> None:
    assert best_lag(named([1] * num)) is None


def test_real_sequences(real_trace: Path) -> None:
    """As by trying every lag, wherever that finds one; insertions it does not know."""
    with ranks_of(real_trace) as ranks:
        for rank in ranks:
            kernels = rank.operations.kernels
            signature: Int64 = kernels.signature[~rank.is_communication_kernel][:8000]
            expected = period(signature)
            if expected is not None:
                assert best_lag(named(signature.tolist())) == expected
