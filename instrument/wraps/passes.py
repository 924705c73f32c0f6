"""`forward` and `backward`: the passes of a training step."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from instrument.core.importing import after_import
from instrument.core.wrapping import outermost, untraced
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.core.patching import Patches

_FSDP = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
"""Where FSDP's classes are; before 2.6 `fully_shard` was in the second."""


def install(patches: Patches) -> None:
    """Name all backward passes, and the forward passes of models that DDP or FSDP wraps."""
    # Tensor.backward, autograd.backward and autograd.grad all end here, whoever holds them and
    # under whatever name; they themselves stay what they are.
    run = torch.autograd.graph._engine_run_backward  # noqa: SLF001
    patches.replace_everywhere(run, outermost(labels.BACKWARD, run, unless=_in_backward))
    patches.replace(DistributedDataParallel, "forward", _forward(DistributedDataParallel.forward))
    for module in _FSDP:  # importing them takes half a second
        patches.on_restore(after_import(module, partial(_name_fsdp, module, patches)))


def _name_fsdp(module: str, patches: Patches) -> None:
    """Name the forward passes of models that the classes in this module wrap."""
    names = vars(sys.modules[module])
    if wrapper := names.get("FullyShardedDataParallel"):
        patches.replace(wrapper, "forward", _forward(wrapper.forward))
    sharded = names.get("FSDPModule")
    if sharded is not None and "__call__" not in vars(sharded):
        # `fully_shard` puts this class before the module's own. It gathers in the module's hooks,
        # which `__call__` runs and `forward` does not.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return super(sharded, self).__call__(*args, **kwargs)

        patches.replace(sharded, "__call__", _forward(untraced(call)))


def _forward(function: Callable[..., object]) -> Callable[..., object]:
    """Name a model's forward pass, not those of the models in it.

    What a backward pass computes again (activation checkpointing) is part of that pass.
    """
    return outermost(labels.FORWARD, function, unless=_in_backward)


def _in_backward() -> bool:
    """Return whether this thread runs a backward pass, also one that another thread began."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  (no public name)
