"""Every optimizer's step has one range, whoever calls it and however it was reached."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer

import instrument
from tests.support.recording import pushed
from tests.support.selection import long_after

STEP = ["push optimizer step", "pop"]


def weights() -> list[torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return [weight]


def own_class() -> Callable[[Any], Optimizer]:
    """Return a class of which no object was made yet."""

    class Own(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
            return closure() if closure is not None else None

    return Own


def test_optimizers_made_before_and_after(recorded: list[str]) -> None:
    before = SGD(weights(), lr=0.1)
    instrument.enable()
    for optimizer in (before, SGD(weights(), lr=0.1), own_class()(weights())):
        recorded.clear()
        optimizer.step()
        assert recorded == STEP
    instrument.disable()
    recorded.clear()
    before.step()
    assert recorded == []


def test_steps_that_were_held_before(recorded: list[str]) -> None:
    bound, optimizer = SGD(weights(), lr=0.1), SGD(weights(), lr=0.1)
    held = [bound.step, functools.partial(SGD.step, bound), optimizer.step]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # keeps the step, wraps the object's
    instrument.enable()
    for step in (*held, optimizer.step):
        recorded.clear()
        step()  # type: ignore[operator]
        assert recorded == STEP
    scheduler.step()  # warns if it finds the step exchanged
    instrument.disable()
    recorded.clear()
    optimizer.step()
    scheduler.step()
    assert recorded == []


@pytest.mark.parametrize("enable_first", long_after(1, [False, True]))
def test_schedulers_made_before_disabling_go_on(recorded: list[str], enable_first: bool) -> None:
    if enable_first:
        instrument.enable()
    optimizer = own_class()(weights())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5) if enable_first else None
    instrument.enable()
    optimizer.step()
    assert recorded == STEP
    instrument.disable()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    assert recorded == STEP


def test_a_step_within_a_step_and_closures(recorded: list[str]) -> None:
    class Twice(AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    instrument.enable()
    Twice(weights()).step()
    assert recorded == STEP
    recorded.clear()
    weight = torch.ones(3, requires_grad=True)

    def closure() -> float:  # as Lightning's, which runs the batch
        loss = weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    torch.optim.LBFGS([weight], max_iter=3).step(closure)  # type: ignore[no-untyped-call]
    first, *others = pushed(recorded)
    assert (first, {*others}) == ("optimizer step", {"backward"})


def test_hooks_and_gradient_scaling(recorded: list[str]) -> None:
    optimizer = SGD(weights(), lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    instrument.enable()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    scaler.update()
    assert calls == ["before", "after"]
    assert recorded == STEP


@pytest.mark.parametrize(
    "options", long_after(1, [{"foreach": True}, {"foreach": False}, {"fused": True}])
)
def test_parameters_bit_for_bit(recorded: list[str], options: dict[str, bool]) -> None:
    def stepped() -> torch.Tensor:
        parameters = weights()
        optimizer = AdamW(parameters, lr=0.1, **options)  # type: ignore[arg-type]
        for _ in range(3):
            optimizer.step()
        return parameters[0].detach()

    without = stepped()
    instrument.enable()
    assert torch.equal(stepped(), without)
    assert pushed(recorded) == ["optimizer step"] * 3
