"""`save checkpoint`: writing of checkpoints, as long as it holds the thread up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from instrument.core.patching import after_import
from instrument.core.wrapping import outermost
from traceprof import labels

if TYPE_CHECKING:
    from instrument.core.patching import Patches

_DISTRIBUTED = "torch.distributed.checkpoint.state_dict_saver"
_SAVING = ("save", "async_save")
"""`async_save` returns when the tensors are staged; what writes them is another thread."""


def install(patches: Patches) -> None:
    """Wrap `torch.save`, and distributed checkpoints when their module is imported."""
    patches.replace_everywhere(torch.save, outermost(labels.SAVE_CHECKPOINT, torch.save))
    patches.on_restore(after_import(_DISTRIBUTED, lambda: _wrap_distributed(patches)))


def _wrap_distributed(patches: Patches) -> None:
    module = sys.modules[_DISTRIBUTED]
    functions = [vars(module)[name] for name in _SAVING if name in vars(module)]
    patches.replace_each_everywhere(
        [(function, outermost(labels.SAVE_CHECKPOINT, function)) for function in functions]
    )
