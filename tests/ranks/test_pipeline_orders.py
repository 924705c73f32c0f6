"""Orders in which the stages of a pipeline compute their passes."""

import pytest
from msgspec.structs import replace

from tests.support.selection import long_after
from traceprof.ranks.pipelines import ORDERS, interleaved


@pytest.mark.parametrize("num_stages", long_after(2, [2, 4, 8]))
@pytest.mark.parametrize("order", ORDERS)
def test_every_pass_is_there_once(order: str, num_stages: int) -> None:
    for stage in range(num_stages):
        passes = ORDERS[order](stage, num_stages, 2 * num_stages)
        num_chunks = 2 if order == "interleaved" else 1
        assert len(passes) == len(set(passes)) == 4 * num_stages * num_chunks
        seen = set()
        for one in passes:  # a backward comes after its forward
            if not one.is_forward:
                assert replace(one, is_forward=True) in seen
            seen.add(one)


def test_micro_batches_that_cannot_be_dealt_out() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        interleaved(0, 4, 6)
