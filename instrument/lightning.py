"""`instrument.lightning.Callback`: names steps, epochs and validations of a Lightning trainer.

`Trainer(callbacks=[instrument.lightning.Callback()])`. Without it steps are detected from optimizer
steps. With arguments, those of `instrument.watch`, it watches the ranks of each training.
Lightning, or pytorch_lightning, is imported on first use of the class.
"""

from __future__ import annotations

from instrument.callbacks import callback_class

_HOOKS = {
    "on_train_start": lambda training, trainer: training.begin(trainer.global_step),
    "on_train_epoch_start": lambda training, trainer: training.opens(
        "epoch", f"epoch {trainer.current_epoch}"
    ),
    "on_train_batch_start": lambda training, _: training.step_begins(),
    "on_train_batch_end": lambda training, trainer: training.batch_ends(trainer.global_step),
    "on_train_epoch_end": lambda training, _: training.closes("epoch"),
    "on_validation_start": lambda training, _: training.opens("validation", "validate"),
    "on_validation_end": lambda training, _: training.closes("validation"),
    "on_train_end": lambda training, _: training.end(),
    "on_exception": lambda training, _: training.end(),
}


_BASES = ("lightning.pytorch.Callback", "pytorch_lightning.Callback")


def __getattr__(name: str) -> type:
    if name == "Callback":
        return callback_class(__name__, _BASES, _HOOKS, 0)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
