"""Waits for asynchronous operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from instrument.core import calls, completion
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.core.patching import Patches


def install(patches: Patches) -> None:
    """Name every wait for the work that an operation returned."""
    calls.switch_on(patches)
    for method in ("wait", "synchronize"):
        wrapper = calls.around_method(dist.Work, method, _awaited, labels.WAIT, label=_label)
        patches.replace(dist.Work, method, wrapper)


def around(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a range around its waits for what its first argument stands for.

    A wait inside a labelled call is part of that call, and has none.
    """
    return calls.around(wait, _awaited, labels.WAIT, label=_label)


def _awaited(awaited: object, *_: object, **__: object) -> object:
    return awaited


def _label(wait: str, awaited: object) -> tuple[str, bool]:
    """Return the label of a wait, with what is known of the operation."""
    text = completion.label_of(awaited)
    if text is None:
        return wait, False
    operation = labels.parse(text)
    known = {key: operation.facts[key] for key in ("group", "seq") if key in operation.facts}
    return str(labels.Label(wait, {"op": operation.operation} | known)), False
