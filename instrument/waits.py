"""Waits for asynchronous operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from instrument import calls, completion
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.patching import Patches


def install(patches: Patches) -> None:
    """Name every wait for the work that an operation returned."""
    calls.switch_on(patches)
    for method in ("wait", "synchronize"):
        original = calls.as_override(getattr(dist.Work, method), method)
        patches.replace(dist.Work, method, named(original))


def named(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a range around its waits for what its first argument stands for.

    A wait inside a labelled call is part of that call.
    """
    return calls.around(original, lambda args, kwargs: calls.Range(_label(*args, **kwargs)))


def _label(awaited: object, *_: object, **__: object) -> str:
    """Return the label of a wait, with what is known of the operation."""
    text = completion.label_of(awaited)
    if text is None:
        return labels.WAIT
    operation = labels.parse(text)
    known = {key: operation.facts[key] for key in ("group", "seq") if key in operation.facts}
    return str(labels.Label(labels.WAIT, {"op": operation.operation} | known))
