"""Ends of asynchronous operations, and their labels for later waits."""

from __future__ import annotations

import atexit
import os
import time
from functools import partial
from itertools import chain, filterfalse
from operator import methodcaller
from typing import Any

import torch
from torch.distributed import Work, _functional_collectives
from torch.futures import Future

from instrument.core import nvtx_ranges, wrapping
from instrument.core.operations import ByIdentity
from instrument.core.wrapping import without_overrides

_AsyncTensor: Any = getattr(_functional_collectives, "AsyncCollectiveTensor", ())
_labels: ByIdentity[str] = ByIdentity()
_without_future: set[str] = set()
"""Functions of Gloo whose operations do not report their end."""


def may_report(name: str) -> bool:
    """Return whether this function's operations may report their end."""
    return name not in _without_future


def follow(result: Any, handles: list[Any], name: str) -> bool:  # noqa: ANN401
    """End start/end ranges when an operation or a future is done; return whether that is known."""
    try:
        end_when_done(result.get_future() if isinstance(result, Work) else result, handles)
    except Exception as error:
        if not wrapping.is_ours(error):
            raise
        _without_future.add(name)  # as some operations of Gloo: do not try again
        return False
    return True


def end_when_done(future: Future[Any], handles: list[Any]) -> None:
    """End start/end ranges when the future is complete, on any thread, and empty the list."""
    if future.done():
        nvtx_ranges.end_all(handles)
        return
    if nvtx_ranges.end_with is not None:
        _closing[:] = filterfalse(_is_done, _closing)
        while handles:
            _closing.append(nvtx_ranges.end_with(handles.pop(), future))
        return
    ending = object()
    # Functions of C, one after the other: if the future is done by now, they run here.
    calls = chain(
        map(nvtx_ranges.end, handles), map(_clear, (handles,)), map(_awaited.discard, (ending,))
    )
    _awaited.add(ending)
    try:
        _add_done_callback(future, partial(next, filter(None, calls)))  # none returns anything
    except BaseException:
        _awaited.discard(ending)
        raise


_clear = methodcaller("clear")
_is_done = methodcaller("done")
_closing: list[Any] = []
"""Futures that are complete when the ranges that close with a future are closed."""
# The class' own function adds a frame; without both there is `then`, which makes another future.
_add_done_callback = getattr(torch._C.Future, "add_done_callback", Future.then)  # noqa: SLF001
_awaited: set[object] = set()
"""One object for every operation whose end has not been reported."""


def _wait_for_all() -> None:
    """Wait for operations under way before the interpreter ends.

    The destructor of Gloo's group waits for them, too, but only after Python's end, when the
    callbacks would abort the process.
    """
    last = time.monotonic() + MAX_WAIT_S
    was_awaited = bool(_awaited)
    while _awaited and time.monotonic() < last:
        time.sleep(1e-3)
    if was_awaited:
        time.sleep(1e-2)  # for Gloo's threads to release the callbacks


MAX_SETTLE_S = 0.1
"""The wait for operations that are under way when recording ends."""

MAX_WAIT_S = 5.0
"""Longer than any operation with all its partners; without them, exiting fails anyhow."""

atexit.register(_wait_for_all)
os.register_at_fork(after_in_child=_awaited.clear)  # the child has none of Gloo's threads


def settle() -> None:
    """Wait briefly until other threads have closed the ranges of complete operations."""
    last = time.monotonic() + MAX_SETTLE_S
    while not all(map(_is_done, _closing)) and time.monotonic() < last:
        time.sleep(1e-3)


def wait_for_gpu() -> None:
    """Wait for all work that the process launched on its current GPU, if it has one."""
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()


def remember(result: object, text: str) -> None:
    """Keep the label of the call that returned this, as long as it can be waited for."""
    if isinstance(result, Work):
        _labels.set(result, text)
    elif isinstance(result, _AsyncTensor):
        _labels.set(_storage(result.elem), text)
    elif isinstance(result, list):  # of a batch, or of coalesced operations
        for part in result:
            if label_of(part) is None:  # an operation keeps its own label
                remember(part, text)


def label_of(awaited: object) -> str | None:
    """Return the label of the call that returned the awaited object."""
    return _labels.get(_storage(awaited) if isinstance(awaited, torch.Tensor) else awaited)


def _storage(tensor: torch.Tensor) -> object:
    """Return the storage that a tensor shares with its views.

    DTensor waits for a view of the tensor that an operation returned. A tensor without a storage
    (a sparse one, one of another library's device) stands for itself.
    """
    try:
        with without_overrides():  # hidden from the user's modes
            return tensor.untyped_storage()
    except NotImplementedError:
        return tensor
