"""`forward` and `backward`: the passes of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import Module
from torch.utils.data import get_worker_info

from instrument.core import steps
from instrument.core.wrapping import is_within, outermost
from traceprof import labels

if TYPE_CHECKING:
    from instrument.core.patching import Patches

_graph_task = torch._C._current_graph_task_id  # noqa: SLF001  (no public name)


def install(patches: Patches) -> None:
    """Wrap all backward passes, and the forward passes of outermost modules."""
    # Tensor.backward, autograd.backward and autograd.grad all call this, under any name; they
    # themselves stay unchanged.
    run = torch.autograd.graph._engine_run_backward  # noqa: SLF001
    named = outermost(labels.BACKWARD, run, unless=_in_backward, before=steps.pass_begins)
    patches.replace_everywhere(run, named)
    # Not by PyTorch's global hooks for modules: each module would take the slow path through them,
    # and compiled models would warn of them. DDP, FSDP and pipeline stages are modules, too.
    call = Module.__call__
    forward = outermost(labels.FORWARD, call, unless=_is_no_forward, before=steps.pass_begins)
    patches.replace(Module, "__call__", forward)
    # torch.compile and torch.fx keep it under their own names, to see whether a user changed it.
    patches.replace_everywhere(call, forward)


def _is_no_forward() -> bool:
    """Return whether a module runs outside of a forward pass.

    Recomputation in a backward pass (activation checkpointing) is part of that pass, and preparing
    a batch is part of loading it.
    """
    return _in_backward() or is_within(labels.DATA_LOADING) or get_worker_info() is not None


def _in_backward() -> bool:
    """Return whether this thread runs a backward pass, even one begun on another thread."""
    return _graph_task() != -1
