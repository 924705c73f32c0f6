"""Frameworks' trainers: their callbacks name steps and epochs, and steps are known without, too."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import instrument
from instrument.core import nvtx_ranges
from instrument.watching import Reporter
from tests.support.recording import pushed


class Base:
    """What a framework's own callback is, for tests: it has hooks that ours do not know."""

    def on_something_else(self) -> str:
        return "the framework's"


@pytest.fixture(autouse=True)
def _frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules that have the frameworks' base classes stand in for the frameworks."""
    for name, kind in (("lightning.pytorch", "Callback"), ("transformers", "TrainerCallback")):
        module = ModuleType(name)
        setattr(module, kind, Base)
        monkeypatch.setitem(sys.modules, name, module)
        root = name.partition(".")[0]
        parent = ModuleType(root) if root != name else module
        vars(parent)["__spec__"] = SimpleNamespace(name=root)
        monkeypatch.setitem(sys.modules, root, parent)
    for framework in (instrument.lightning, instrument.transformers):
        vars(framework).pop("Callback", None)


def fit(callback: Any, *, num_batches: int, accumulated: int, failing_at: int = -1) -> None:
    """Call the hooks in the order in which Lightning does, for two epochs."""
    trainer = SimpleNamespace(global_step=0, current_epoch=0)
    callback.on_train_start(trainer, None)
    for epoch in range(2):
        trainer.current_epoch = epoch
        callback.on_train_epoch_start(trainer, None)
        for batch in range(num_batches):
            callback.on_train_batch_start(trainer, None, "batch", batch)
            if batch == failing_at:
                callback.on_exception(trainer, None, KeyError())
                return
            if (batch + 1) % accumulated == 0 or batch + 1 == num_batches:
                trainer.global_step += 1
            callback.on_train_batch_end(trainer, None, None, "batch", batch)
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        callback.on_train_epoch_end(trainer, None)
    callback.on_train_end(trainer, None)


def test_lightning_names_steps_epochs_and_validations(recorded: list[str]) -> None:
    callback: Any = instrument.lightning.Callback()
    assert Base in type(callback).__mro__
    assert callback.on_something_else() == "the framework's"
    fit(callback, num_batches=2, accumulated=1)
    assert recorded == [
        *("push epoch 0", "push step 0", "pop", "push step 1", "pop"),
        *("push validate", "pop", "pop"),
        *("push epoch 1", "push step 2", "pop", "push step 3", "pop"),
        *("push validate", "pop", "pop"),
    ]


def test_batches_whose_gradients_are_added_up_are_one_step(recorded: list[str]) -> None:
    fit(instrument.lightning.Callback(), num_batches=5, accumulated=2)
    steps = [text for text in pushed(recorded) if text.startswith("step")]
    assert steps == [f"step {number}" for number in range(6)]  # the last batch is alone
    assert recorded.count("pop") == len(pushed(recorded))


def test_an_exception_closes_all(recorded: list[str]) -> None:
    fit(instrument.lightning.Callback(), num_batches=5, accumulated=1, failing_at=2)
    assert recorded[-6:] == ["pop", "push step 2", "pop", "push cut step 2", "pop", "pop"]


def test_transformers_names_steps_and_epochs(recorded: list[str]) -> None:
    callback: Any = instrument.transformers.Callback()
    assert Base in type(callback).__mro__
    state, common = SimpleNamespace(global_step=0, epoch=0.0), (None,)
    callback.on_train_begin(None, state, *common, model=None)
    for epoch in range(2):
        state.epoch = float(epoch)
        callback.on_epoch_begin(None, state, *common, model=None)
        callback.on_step_begin(None, state, *common, model=None)
        callback.on_step_end(None, state, *common, model=None)
        callback.on_epoch_end(None, state, *common, model=None)
    callback.on_train_end(None, state, *common, model=None)
    assert recorded == [
        *("push epoch 0", "push step 0", "pop", "pop"),
        *("push epoch 1", "push step 1", "pop", "pop"),
    ]


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_callbacks_watch_from_the_begin_of_the_training_to_its_end(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tables: list[Any] = []
    callback: Any = getattr(instrument, name).Callback(every=2, callback=tables.append)
    # One rank's times, without its thread.
    monkeypatch.setattr(Reporter, "full", lambda _, window: tables.append(window))
    assert not instrument.is_enabled()
    for _ in range(2):  # trainings
        if name == "lightning":
            fit(callback, num_batches=2, accumulated=1)
        else:
            state = SimpleNamespace(global_step=0, epoch=0.0)
            callback.on_train_begin(None, state)
            for _ in range(4):
                callback.on_step_begin(None, state)
                callback.on_step_end(None, state)
            callback.on_train_end(None, state)
        # With the first step, signs of life begin; it chooses the clock.
        assert [(window.number, len(window.steps)) for window in tables] == [(1, 0), (2, 1), (4, 2)]
        tables.clear()
        assert not instrument.is_enabled()
        assert not nvtx_ranges.is_recording()


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_without_the_framework_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for module in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        _ = getattr(instrument, name).Callback


def test_an_optimizer_that_steps_only_for_every_other_batch_makes_half_the_steps(
    recorded: list[str],
) -> None:
    class Accelerated(torch.optim.Optimizer):
        """As accelerate's: an optimizer around another, which it leaves out while it adds up."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.is_due = False

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if self.is_due:
                self.optimizer.step(closure)

    optimizer = Accelerated(torch.optim.SGD([torch.ones(2, requires_grad=True)]))
    instrument.enable()
    for batch in range(4):
        optimizer.is_due = batch % 2 == 1
        optimizer.step()
    assert pushed(recorded) == ["optimizer step"] * 2
