"""Forward and backward passes have one range each, however they are begun."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import instrument
from tests.support.recording import pushed
from tests.support.selection import long_after

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


@pytest.mark.parametrize("run", long_after(2, BACKWARD.values()), ids=BACKWARD)
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
@pytest.mark.parametrize("wrap", long_after(2, WRAP.values()), ids=WRAP)
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
def test_what_a_checkpoint_computes_again_is_part_of_the_backward_pass(recorded: list[str]) -> None:
    inner = DistributedDataParallel(torch.nn.Linear(3, 3))

    class Model(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, tensor, use_reentrant=True)

    instrument.enable()
    run_backward(Model()(torch.ones(1, 3, requires_grad=True)).sum())
    assert [label for label in pushed(recorded) if " " not in label] == ["forward", "backward"]


def test_every_outermost_module_has_a_forward_pass(recorded: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    criterion = torch.nn.MSELoss()
    instrument.enable()
    criterion(model(torch.ones(1, 3)), torch.zeros(1, 3))
    assert recorded == ["push forward", "pop"] * 2
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(1, 4))
    assert recorded == ["push forward", "pop"] * 3


def test_a_module_that_prepares_batches_is_no_forward_pass(recorded: list[str]) -> None:
    prepare = torch.nn.Flatten(0)
    rows: Any = [torch.ones(1, 2)] * 3
    loader = torch.utils.data.DataLoader(rows, collate_fn=lambda b: prepare(b[0]))
    instrument.enable()
    assert len(list(loader)) == 3
    assert set(pushed(recorded)) == {"data loading"}


def test_a_compiled_model_has_one_forward_pass_and_the_same_graph(recorded: list[str]) -> None:
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append([str(node) for node in graph.graph.nodes])
        return graph.forward

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.inner(rows) + 1

    model = Model()
    expected = torch.compile(model, backend=backend, fullgraph=True)(torch.ones(1, 3))
    torch._dynamo.reset()
    instrument.enable()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(1, 3)), expected)
    assert recorded == ["push forward", "pop"] * 2
    instrument.disable()
    assert torch.equal(compiled(torch.ones(1, 3)), expected)
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_symbolic_trace_holds_the_same_modules(recorded: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    without = [str(node) for node in torch.fx.symbolic_trace(model).graph.nodes]
    instrument.enable()
    assert [str(node) for node in torch.fx.symbolic_trace(model).graph.nodes] == without
    scripted = torch.jit.trace(model, torch.ones(1, 3))  # type: ignore[no-untyped-call]
    assert torch.equal(scripted(torch.ones(1, 3)), model(torch.ones(1, 3)))
    assert recorded.count("pop") == len(pushed(recorded))
