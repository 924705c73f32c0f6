"""Waits for asynchronous operations: the methods of the `Work` that they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from instrument.core import calls

if TYPE_CHECKING:
    from instrument.core.patching import Patches


def install(patches: Patches) -> None:
    """Wrap every wait for the work that an operation returned."""
    calls.switch_on(patches)
    for method in ("wait", "synchronize"):
        patches.replace(dist.Work, method, calls.around_waiting_method(dist.Work, method))
