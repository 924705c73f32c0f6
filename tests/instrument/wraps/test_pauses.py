"""Garbage collection and checkpoints have ranges: they hold the launching thread up."""

import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint

import instrument
from instrument import switch
from instrument.core import nvtx_ranges

pytestmark = pytest.mark.slow

COLLECTION = ["push garbage collection", "pop"]
CHECKPOINT = ["push save checkpoint", "pop"]


@pytest.fixture
def with_collections(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record collections, too; there are only those of the test."""
    monkeypatch.setattr(switch, "PARTS", ("instrument.wraps.pauses",))
    monkeypatch.setenv(nvtx_ranges.GARBAGE_COLLECTION, "1")
    gc.disable()
    yield recorded
    gc.enable()


def test_collections_have_ranges_but_those_of_the_youngest(with_collections: list[str]) -> None:
    before = [*gc.callbacks]
    instrument.enable()
    for generation in (0, 1, 2):
        gc.collect(generation)
    assert with_collections == COLLECTION * 2
    instrument.disable()
    assert gc.callbacks == before
    gc.collect()
    assert with_collections == COLLECTION * 2


def test_objects_that_end_in_a_collection_end_as_ever(with_collections: list[str]) -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(len(with_collections))

    ended: list[int] = []
    instrument.enable()
    Node()
    gc.collect()
    assert with_collections == COLLECTION
    assert ended == [1]  # inside


def test_collections_have_none_unless_asked_for(
    with_collections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [*gc.callbacks]
    monkeypatch.delenv(nvtx_ranges.GARBAGE_COLLECTION)
    instrument.enable()
    assert gc.callbacks == before
    gc.collect()
    assert with_collections == []


def test_what_others_do_to_callbacks_harms_nothing(with_collections: list[str]) -> None:
    before = [*gc.callbacks]
    instrument.enable()
    mark: Any = gc.callbacks[-1]
    mark("stop", {"generation": 2})  # of a collection that had begun before
    gc.callbacks.clear()
    gc.collect()
    instrument.disable()
    assert with_collections == []
    gc.callbacks[:] = before


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
        vars(checkpoint)["save"](
            {"weight": torch.arange(3.0)}, checkpoint_id=tmp_path, no_dist=True
        )
    assert recorded[0] == CHECKPOINT[0]
    assert recorded[-1] == CHECKPOINT[1]
    instrument.disable()
    assert vars(checkpoint)["save"] is original
