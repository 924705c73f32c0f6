"""A wait names its operation, also where it is for a view of what the operation returned."""

import gc
import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import instrument
from instrument.core import completion
from tests.support.recording import pushed

pytestmark = pytest.mark.usefixtures("beside_another")


def test_tensor_parallel_waits_name_their_operation(recorded: list[str]) -> None:
    mesh = init_device_mesh("cpu", (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = parallelize_module(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)),
            mesh,
            {"0": ColwiseParallel(), "2": RowwiseParallel()},
        )
    instrument.enable()
    rows = torch.ones(2, 4, requires_grad=True)
    model(rows).sum().backward()
    numbers = [text.rsplit("=", 1)[1] for text in pushed(recorded) if text.startswith("all_reduce")]
    assert [text for text in pushed(recorded) if "all_reduce bytes" not in text] == [
        "forward",
        f"wait op=all_reduce group=0 seq={numbers[0]}",
        "backward",
        f"wait op=all_reduce group=0 seq={numbers[1]}",
    ]
    del rows
    gc.collect()
    assert len(completion._labels) == 0


def test_a_sparse_tensor_stands_for_itself() -> None:
    sparse = torch.eye(2).to_sparse()
    assert completion.label_of(sparse) is None


def test_the_end_of_a_future_that_is_done_is_known() -> None:
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    assert completion.follow(future, [], "all_reduce")
    assert completion.may_report("all_reduce")
