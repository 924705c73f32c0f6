"""Garbage collection and checkpoints have ranges: they hold the launching thread up."""

import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

import instrument

pytestmark = pytest.mark.slow

COLLECTION = ["push garbage collection", "pop"]
CHECKPOINT = ["push save checkpoint", "pop"]


def test_collections_have_ranges_but_those_of_the_youngest(recorded: list[str]) -> None:
    before = [*gc.callbacks]
    instrument.enable()
    for generation in (0, 1, 2):
        gc.collect(generation)
    assert recorded == COLLECTION * 2
    instrument.disable()
    assert gc.callbacks == before
    gc.collect()
    assert recorded == COLLECTION * 2


def test_objects_that_end_in_a_collection_end_as_ever(recorded: list[str]) -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(len(recorded))

    ended: list[int] = []
    instrument.enable()
    Node()
    gc.collect()
    assert recorded == COLLECTION
    assert ended == [1]  # inside


def test_a_program_may_take_all_callbacks_away(recorded: list[str]) -> None:
    before = [*gc.callbacks]
    instrument.enable()
    gc.callbacks.clear()
    gc.collect()
    instrument.disable()
    assert recorded == []
    gc.callbacks[:] = before


def test_a_collection_that_had_begun_before(recorded: list[str]) -> None:
    instrument.enable()
    mark: Any = gc.callbacks[-1]
    mark("stop", {"generation": 2})
    assert recorded == []


def test_saving_has_a_range(recorded: list[str]) -> None:
    original, tensor = torch.save, torch.arange(3.0)
    plain, named = io.BytesIO(), io.BytesIO()
    torch.save(tensor, plain)
    instrument.enable()
    torch.save(tensor, named)
    assert recorded == CHECKPOINT
    assert named.getvalue() == plain.getvalue()
    with pytest.raises(AttributeError):
        torch.save(lambda: None, io.BytesIO())  # cannot be pickled
    assert recorded == CHECKPOINT * 2
    instrument.disable()
    assert torch.save is original


def test_distributed_checkpoints_have_one_range(recorded: list[str], tmp_path: Path) -> None:
    original = vars(checkpoint)["save"]
    instrument.enable()
    with pytest.warns(UserWarning, match="single process"):
        vars(checkpoint)["save"]({"weight": torch.arange(3.0)}, checkpoint_id=tmp_path, no_dist=True)
    assert recorded[0] == CHECKPOINT[0]
    assert recorded[-1] == CHECKPOINT[1]
    instrument.disable()
    assert vars(checkpoint)["save"] is original
