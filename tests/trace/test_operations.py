"""What columns of operations tell without being unpacked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceprof.trace.model import Operations
from traceprof.trace.packed import Differences, pack

NOTHING = pack(np.empty(0, np.int64))


def operations(starts: list[int], lengths: list[int]) -> Operations:
    return Operations(
        Differences(np.array(starts, np.int64)), pack(np.array(lengths, np.int64)), NOTHING, NOTHING
    )


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), min_size=1, max_size=30),
    st.integers(1, 4000),
    st.integers(0, 60_000),
)
def test_who_ends_last(pairs: list[tuple[int, int]], repeats: int, one_length: int) -> None:
    starts, lengths = [], []
    for number in range(repeats):
        starts += sorted(start + 51 * number for start, _ in pairs)
        lengths += [length for _, length in pairs]
    starts, lengths = starts[:5000], lengths[:5000]
    lengths[one_length % len(lengths)] = one_length
    made = operations(starts, lengths)
    last = max(start + length for start, length in zip(starts, lengths, strict=True))
    assert made.last_end_ns == last
    assert made.last_end_ns == int(made.end_ns.max())  # from unpacked starts, too
    assert made.last_end_ns == last
