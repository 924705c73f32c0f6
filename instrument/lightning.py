"""`instrument.lightning.Callback`: names steps, epochs and validations of a Lightning trainer.

`Trainer(callbacks=[instrument.lightning.Callback()])`. Without it steps are detected from optimizer
steps. With arguments, those of `instrument.watch`, it watches the ranks of each training.
Lightning, or pytorch_lightning, is imported on first use of the class.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

from instrument.callbacks import ReportedTraining

# A trainer passes more arguments than hooks need; other versions pass further ones.
# ruff: noqa: ARG002


class _Hooks:
    """Methods that Lightning calls."""

    def __init__(self, **watch: Any) -> None:  # noqa: ANN401  (options of `instrument.watch`)
        super().__init__()
        self._training = ReportedTraining(watch)

    def on_train_start(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.begin(trainer.global_step)

    def on_train_epoch_start(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.epoch_begins(trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.step_begins()

    def on_train_batch_end(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.batch_ends(trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.epoch_ends()

    def on_validation_start(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.validation_begins()

    def on_validation_end(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.validation_ends()

    def on_train_end(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.end()

    def on_exception(self, trainer: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        self._training.end()


@functools.cache
def _callback() -> type:
    """Return the class for the Lightning that the script has imported, else the newer one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    for name in [*loaded, *names]:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            base = importlib.import_module(name).Callback
            return type("Callback", (_Hooks, base), {"__doc__": __doc__, "__module__": __name__})
    raise ImportError("instrument.lightning needs Lightning: pip install lightning")


def __getattr__(name: str) -> type:
    if name == "Callback":
        return _callback()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
