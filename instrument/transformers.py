"""`instrument.transformers.Callback`: names the steps and epochs of a Hugging Face Trainer.

`Trainer(..., callbacks=[instrument.transformers.Callback()])`. Without it steps are detected
from optimizer steps. With arguments, those of `instrument.watch`, it watches the ranks of each
training. transformers is imported on first use of the class.
"""

from __future__ import annotations

from instrument.callbacks import callback_class

_HOOKS = {  # a step is an optimizer step, of one or more batches
    "on_train_begin": lambda training, state: training.begin(state.global_step),
    "on_epoch_begin": lambda training, state: training.opens(
        "epoch", f"epoch {int(state.epoch or 0)}"
    ),
    "on_step_begin": lambda training, _: training.step_begins(),
    "on_step_end": lambda training, _: training.closes("step"),
    "on_epoch_end": lambda training, _: training.closes("epoch"),
    "on_train_end": lambda training, _: training.end(),
}


def __getattr__(name: str) -> type:
    if name == "Callback":
        return callback_class(__name__, ("transformers.TrainerCallback",), _HOOKS, 1)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
