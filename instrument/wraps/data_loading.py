"""`data loading`: waiting for the next batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import dataloader, get_worker_info

from instrument.core.wrapping import outermost
from traceprof import labels

if TYPE_CHECKING:
    from instrument.core.patching import Patches


def install(patches: Patches) -> None:
    """Wrap the wait of the training loop for its next batch, not the work of the workers."""
    iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001  (the base of both loaders)
    wait = outermost(labels.DATA_LOADING, iterator.__next__, unless=_in_worker)
    patches.replace(iterator, "__next__", wait)


def _in_worker() -> bool:
    """Return whether this is a loader inside a worker's data set."""
    return get_worker_info() is not None
