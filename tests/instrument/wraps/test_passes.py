"""Forward and backward passes have one range each, however they are begun."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import instrument
from tests.support.recording import pushed

if TYPE_CHECKING:
    from collections.abc import Callable

    Wrap = Callable[[torch.nn.Module], torch.nn.Module]


def loss() -> torch.Tensor:
    return torch.ones(3, requires_grad=True).square().sum()


def run_backward(of: torch.Tensor) -> None:
    of.backward()  # type: ignore[no-untyped-call]


BACKWARD: dict[str, Callable[[torch.Tensor], object]] = {
    "of the tensor": run_backward,
    "held before": torch.Tensor.backward,
    "in a partial": functools.partial(torch.autograd.backward, grad_tensors=None),
    "looked up": lambda of: torch.autograd.backward(of),  # noqa: PLW0108  (looked up late)
}


@pytest.mark.parametrize("run", BACKWARD.values(), ids=BACKWARD)
def test_a_backward_pass_has_one_range(
    recorded: list[str], run: Callable[[torch.Tensor], object]
) -> None:
    instrument.enable()
    run(loss())
    assert recorded == ["push backward", "pop"]
    instrument.disable()
    run(loss())
    assert recorded == ["push backward", "pop"]


def test_gradients_that_are_asked_for_are_a_backward_pass(recorded: list[str]) -> None:
    instrument.enable()
    weight = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
    run_backward(gradient.sum())
    assert torch.equal(weight.grad, torch.full((3,), 6.0))  # type: ignore[arg-type]
    assert pushed(recorded) == ["backward", "backward"]


def test_what_a_backward_pass_begins_is_part_of_it(recorded: list[str]) -> None:
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(_: object, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                run_backward(loss())
            return gradient

    instrument.enable()
    run_backward(Again.apply(torch.ones(3, requires_grad=True)).sum())  # type: ignore[no-untyped-call]
    assert recorded == ["push backward", "pop"]


def test_exceptions_of_a_pass_close_its_range(recorded: list[str]) -> None:
    def fail(_: torch.Tensor) -> None:
        raise KeyError("the user's own")

    instrument.enable()
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(KeyError, match="the user's own"):
        run_backward(weight.sum())
    assert recorded == ["push backward", "pop"]
    run_backward(loss())
    assert recorded[2:] == ["push backward", "pop"]


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)  # type: ignore[return-value]


WRAP: dict[str, Wrap] = {
    "ddp": DistributedDataParallel,
    "fsdp": functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu")),
    "fsdp2": sharded,
}


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning")  # FSDP's of itself
@pytest.mark.parametrize("wrap", WRAP.values(), ids=WRAP)
def test_the_forward_pass_of_the_whole_model_has_one_range(recorded: list[str], wrap: Wrap) -> None:
    model = wrap(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)))
    instrument.enable()
    run_backward(model(torch.ones(1, 3)).sum())
    passes = [label for label in pushed(recorded) if label in {"forward", "backward"}]
    assert passes == ["forward", "backward"]
    recorded.clear()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(1, 4))
    assert pushed(recorded)[0] == "forward"
    assert recorded.count("pop") == len(pushed(recorded))
    recorded.clear()
    model(torch.ones(1, 3))
    assert pushed(recorded)[0] == "forward"
    instrument.disable()
    recorded.clear()
    model(torch.ones(1, 3))
    assert recorded == []


@pytest.mark.usefixtures("alone")
def test_what_a_checkpoint_computes_again_is_part_of_the_backward_pass(
    recorded: list[str],
) -> None:
    inner = DistributedDataParallel(torch.nn.Linear(3, 3))

    class Model(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, tensor, use_reentrant=True)  # type: ignore[no-any-return]

    instrument.enable()
    run_backward(Model()(torch.ones(1, 3, requires_grad=True)).sum())
    assert [label for label in pushed(recorded) if " " not in label] == ["forward", "backward"]


def test_everything_is_as_it_was(recorded: list[str]) -> None:
    def held() -> list[object]:
        return [
            torch.autograd.backward,
            torch.autograd.grad,
            torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
            torch.autograd.graph._engine_run_backward,
            torch.Tensor.backward,
            DistributedDataParallel.forward,
            FullyShardedDataParallel.forward,
            vars(FSDPModule).get("__call__"),
        ]

    before = held()
    instrument.enable()
    instrument.disable()
    assert all(new is old for new, old in zip(held(), before, strict=True))
