"""Ranges that the training script opens: named and closed, and harmless."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import instrument


def test_a_decorated_step_is_numbered_at_each_call(recorded: list[str]) -> None:
    @instrument.step
    def train(value: int) -> int:
        """Train."""
        return value + 1

    assert [train(1), train(2)] == [2, 3]
    assert train.__doc__ == "Train."
    assert recorded == ["push step 0", "pop", "push step 1", "pop"]


def test_a_step_as_a_block(recorded: list[str]) -> None:
    for _ in range(2):
        with instrument.step(), instrument.annotate("validate"):
            pass
    assert recorded == [
        *("push step 0", "push validate", "pop", "pop"),
        *("push step 1", "push validate", "pop", "pop"),
    ]


def test_exceptions_pass_through_and_close_the_range(recorded: list[str]) -> None:
    @instrument.annotate("fails")
    def fail() -> None:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        fail()
    assert recorded == ["push fails", "pop"]


def test_training_gives_the_same_parameters_bit_for_bit() -> None:
    def trained(*, named: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train() -> None:
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()

        run = instrument.step(train) if named else train
        for _ in range(3):
            run()
        return [parameter.detach().clone() for parameter in model.parameters()]

    for plain, named in zip(trained(named=False), trained(named=True), strict=True):
        assert torch.equal(plain, named)


def test_without_nvtx_nothing_happens() -> None:
    code = (
        "import sys; sys.modules['nvtx'] = None\n"
        "import instrument\n"
        "with instrument.step(): print('ran')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"


def test_it_imports_nothing_of_the_analyzer() -> None:
    heavy = "{'pandas', 'dash', 'traceprof.analysis'}"  # nvtx itself takes numpy
    code = f"import sys, instrument; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
