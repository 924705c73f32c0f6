"""Ranges that the training script opens: named and closed, and harmless."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch

import instrument
import traceprof
from tests.support.commands import output_of
from tests.support.recording import pushed

Program = Callable[[torch.Tensor], torch.Tensor]
Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run it in a thread: another test's browser may have an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


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


def test_a_kept_step_counts_on(recorded: list[str]) -> None:
    kept = instrument.step()
    for _ in range(2):
        with kept:
            pass
    decorated = kept(lambda: None)
    decorated()
    decorated()
    assert pushed(recorded) == ["step 0", "step 1", "step 2", "step 3"]


@pytest.mark.parametrize("wrong", [5, "train"])
def test_a_step_takes_no_number(wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"step\(\) takes no {type(wrong).__name__}: steps are"):
        instrument.step(wrong)


def test_the_package_tells_its_names_and_version() -> None:
    assert dir(instrument) == sorted([*instrument.__all__, "lightning", "transformers"])
    assert instrument.__version__ == traceprof.__version__


def test_exceptions_pass_through_and_close_the_range(recorded: list[str]) -> None:
    @instrument.annotate("fails")
    def fail() -> None:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        fail()
    assert recorded == ["push fails", "pop"]


def test_a_step_that_an_exception_leaves_says_that_it_was_cut(recorded: list[str]) -> None:
    @instrument.step
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(KeyError), instrument.step():
        raise KeyError
    assert recorded == [
        event
        for number in range(2)
        for event in (f"push step {number}", "pop", f"push cut step {number}", "pop")
    ]


def test_a_coroutine_is_one_step_while_its_body_runs(recorded: list[str]) -> None:
    @instrument.step
    async def train(value: int) -> int:
        recorded.append("before")
        await asyncio.sleep(0)
        recorded.append("after")
        return value

    async def both() -> tuple[int, int]:
        return await asyncio.gather(train(1), train(2))

    assert inspect.iscoroutinefunction(train)
    coroutine = train(3)
    assert recorded == []
    assert run(coroutine) == 3
    assert recorded == ["start step 0", "before", "after", "end step 0"]
    recorded.clear()
    assert list(run(both())) == [1, 2]
    ends = ["after", "end step 1", "after", "end step 2"]
    assert recorded == ["start step 1", "before", "start step 2", "before", *ends]


def test_a_generator_is_one_range_while_its_body_runs(recorded: list[str]) -> None:
    @instrument.annotate("epoch")
    def epoch() -> Generator[int, str, str]:
        answer = yield 1
        recorded.append(answer)
        try:
            yield 2
        except KeyError:
            recorded.append("caught")
        return "done"

    run = epoch()
    assert recorded == []
    assert next(run) == 1
    assert run.send("sent") == 2
    with pytest.raises(StopIteration, match="done"):
        run.throw(KeyError())
    assert recorded == ["start epoch", "sent", "caught", "end epoch"]
    recorded.clear()
    left = epoch()
    next(left)
    left.close()
    assert recorded == ["start epoch", "end epoch"]


def test_steps_of_several_threads_have_numbers_of_their_own(recorded: list[str]) -> None:
    step = instrument.step(lambda: None)
    threads = [threading.Thread(target=lambda: [step() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(pushed(recorded)) == sorted(f"step {number}" for number in range(200))


@pytest.mark.parametrize("around", [instrument.step, instrument.annotate("named")])
def test_within_a_compiled_function_there_is_nothing_to_break_a_graph(
    recorded: list[str], around: Callable[[Program], Program]
) -> None:
    @around
    def inner(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    def outer(tensor: torch.Tensor) -> torch.Tensor:
        with instrument.annotate("block"):
            return inner(tensor) + 1

    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(
        torch.compile(inner, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0)
    )
    assert recorded == []


def test_training_gives_the_same_parameters_bit_for_bit(recorded: list[str]) -> None:
    def trained(around: Callable[[Callable[[], None]], Callable[[], None]]) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @around
        def train() -> None:
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()

        for _ in range(3):
            train()
        return model.weight.detach()

    assert torch.equal(trained(instrument.step), trained(lambda function: function))
    assert len(pushed(recorded)) == 3


def test_it_imports_next_to_nothing() -> None:
    heavy = "{'torch', 'pandas', 'dash', 'traceprof.analysis'}"  # nvtx itself takes numpy
    code = f"import sys, instrument; print(*({heavy} & set(sys.modules)))"
    assert output_of(sys.executable, "-c", code).strip() == ""
