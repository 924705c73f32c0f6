"""When asynchronous operations end, and what they were when somebody waits for them."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.futures import Future

from instrument.core import nvtx_ranges
from instrument.core.identity import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

_labels: ByIdentity[str] = ByIdentity()
_without_future: set[str] = set()
"""Functions of Gloo whose operations do not report when they are done."""


def may_report(name: str) -> bool:
    """Return whether this function's operations may report when they are done."""
    return name not in _without_future


def follow(result: Any, handle: object, name: str) -> None:  # noqa: ANN401
    """End a start/end range when what was returned is done; now, where that cannot be known."""
    try:
        end_when_done(result if isinstance(result, Future) else result.get_future(), [handle])
    except Exception:  # noqa: BLE001  (not every operation of Gloo has a future: then never again)
        _without_future.add(name)
        nvtx_ranges.end(handle)


def end_when_done(future: Future[Any], handles: Sequence[object]) -> None:
    """End start/end ranges when the future is complete, on the thread that completes it."""
    ending = _Ending(handles)
    _awaited.add(ending)
    try:
        _add_done_callback(future, ending)
    except BaseException:
        _awaited.discard(ending)
        raise


_add_done_callback = torch._C.Future.add_done_callback  # noqa: SLF001  (the class' own adds a frame)


class _Ending:
    """Ends ranges, as a callback."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[object]) -> None:
        self._handles = handles

    def __call__(self, _: object) -> None:
        nvtx_ranges.end(*self._handles)
        _awaited.discard(self)


_awaited: set[_Ending] = set()


def _let_finish() -> None:
    """Wait for operations under way before the interpreter ends.

    The destructor of Gloo's group waits for them, too, but only when Python has gone, and then
    the callbacks would end the process with an abort.
    """
    last = time.monotonic() + MAX_WAIT_S
    was_awaited = bool(_awaited)
    while _awaited and time.monotonic() < last:
        time.sleep(1e-3)
    if was_awaited:
        time.sleep(1e-2)  # in which Gloo's threads let go of the callbacks


MAX_WAIT_S = 5.0
"""Longer than any operation takes whose partners are there; without them, exiting fails anyhow."""

atexit.register(_let_finish)
os.register_at_fork(after_in_child=_awaited.clear)  # the child has none of Gloo's threads


def remember(result: object, text: str) -> None:
    """Know the label of the call that returned this, until nobody can wait for it any more."""
    if isinstance(result, Work):
        _labels.set(result, text)
    elif isinstance(result, AsyncCollectiveTensor):
        _labels.set(result.elem, text)
    elif isinstance(result, list):  # of a batch, or of coalesced operations
        for part in result:
            if label_of(part) is None:  # what has a label of its own keeps it
                remember(part, text)


def label_of(awaited: object) -> str | None:
    """Return the label of the call that returned what is waited for."""
    return _labels.get(awaited)
