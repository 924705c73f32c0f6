"""`instrument.transformers.Callback`: names the steps and epochs of a Hugging Face Trainer.

`Trainer(..., callbacks=[instrument.transformers.Callback()])`. Without it steps are detected
from optimizer steps. With arguments, those of `instrument.watch`, it watches the ranks of each
training. transformers is imported on first use of the class.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from instrument.callbacks import ReportedTraining

# A trainer passes more arguments than hooks need; other versions pass further ones.
# ruff: noqa: ARG002


class _Hooks:
    """Methods that the Trainer calls; its step is an optimizer step, of one or more batches."""

    def __init__(self, **watch: Any) -> None:  # noqa: ANN401  (options of `instrument.watch`)
        super().__init__()
        self._training = ReportedTraining(watch)

    def on_train_begin(self, args: object, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.begin(state.global_step)

    def on_epoch_begin(self, args: object, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.epoch_begins(int(state.epoch or 0))

    def on_step_begin(self, args: object, *_: object, **__: object) -> None:
        self._training.step_begins()

    def on_step_end(self, args: object, *_: object, **__: object) -> None:
        self._training.step_ends()

    def on_epoch_end(self, args: object, *_: object, **__: object) -> None:
        self._training.epoch_ends()

    def on_train_end(self, args: object, *_: object, **__: object) -> None:
        self._training.end()


@functools.cache
def _callback() -> type:
    if importlib.util.find_spec("transformers") is None:
        raise ImportError("instrument.transformers needs transformers: pip install transformers")
    base = importlib.import_module("transformers").TrainerCallback
    return type("Callback", (_Hooks, base), {"__doc__": __doc__, "__module__": __name__})


def __getattr__(name: str) -> type:
    if name == "Callback":
        return _callback()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
