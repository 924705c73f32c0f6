"""The loop's waiting for batches has a range; what workers do has none."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import instrument
from instrument.core import nvtx_ranges
from tests.support.selection import long_after

pytestmark = pytest.mark.slow

WAIT = ["push data loading", "pop"]


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


class Nested(Dataset[list[str]]):
    """Loads its item with a loader of its own; tells what ranges that opened."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[str]:
        opened: list[str] = []
        nvtx_ranges.push = opened.append
        list(DataLoader(Numbers()))
        return opened


@pytest.mark.parametrize("workers", [0, 2])
def test_each_wait_has_a_range_also_the_one_that_ends_the_epoch(
    recorded: list[str], workers: int
) -> None:
    def batches() -> list[torch.Tensor]:
        loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, num_workers=workers)
        return [batch for (batch,) in loader]

    without = batches()
    instrument.enable()
    assert all(map(torch.equal, batches(), without))
    assert recorded == WAIT * 3
    instrument.disable()
    batches()
    assert recorded == WAIT * 3


def test_iterators_made_before_and_iterable_data(recorded: list[str]) -> None:
    before = iter(DataLoader(Numbers(), batch_size=None))
    instrument.enable()
    assert list(before) == [0, 1, 2]
    assert recorded == WAIT * 4


@pytest.mark.parametrize("context", long_after(1, ["fork", "spawn"]))
def test_loaders_within_workers_open_no_ranges(recorded: list[str], context: str) -> None:
    instrument.enable()
    loader: Any = DataLoader(
        Nested(), batch_size=None, num_workers=1, multiprocessing_context=context
    )
    assert list(loader) == [[], []]
    assert recorded == WAIT * 3
