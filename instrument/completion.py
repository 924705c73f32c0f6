"""When asynchronous operations end, and what they were when somebody waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed import Work
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.futures import Future

from instrument import nvtx_ranges
from instrument.identity import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_labels: ByIdentity[str] = ByIdentity()
_without_future: set[str] = set()
"""Functions of Gloo whose operations do not tell when they are done."""


def followed(
    original: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    text: str,
    name: str,
) -> Any:  # noqa: ANN401
    """Call the function; put a start/end range from here to the end of the operation."""
    handle = None if name in _without_future else nvtx_ranges.start(text)
    try:
        result = original(*args, **kwargs)
    except BaseException:
        nvtx_ranges.end(handle)
        raise
    remember(result, text)
    if handle is not None:
        _end_when_done(result, handle, name)
    return result


def _end_when_done(result: Any, handle: object, name: str) -> None:  # noqa: ANN401
    """End a range when the operation is done; at once where that cannot be known."""
    try:
        future = result if isinstance(result, Future) else result.get_future()
        future.add_done_callback(lambda _: nvtx_ranges.end(handle))
    except Exception:  # noqa: BLE001  (not every operation has a future: then never again)
        _without_future.add(name)
        nvtx_ranges.end(handle)


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
