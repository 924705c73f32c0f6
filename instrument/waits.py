"""Waits for asynchronous operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from instrument import calls, completion
from traceprof import labels

if TYPE_CHECKING:
    from instrument.patching import Patches


def install(patches: Patches) -> None:
    """Name every wait for the work that an operation returned."""
    calls.switch_on(patches)
    for method in ("wait", "synchronize"):
        patches.replace(dist.Work, method, calls.around_method(dist.Work, method, begin))


def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> calls.Range:
    """Open the range of a wait for what the first argument stands for.

    A wait inside a labelled call is part of that call, and has none.
    """
    awaited = next(iter((*args, *kwargs.values())), None)
    return calls.Range(_label(awaited))


def _label(awaited: object) -> str:
    """Return the label of a wait, with what is known of the operation."""
    text = completion.label_of(awaited)
    if text is None:
        return labels.WAIT
    operation = labels.parse(text)
    known = {key: operation.facts[key] for key in ("group", "seq") if key in operation.facts}
    return str(labels.Label(labels.WAIT, {"op": operation.operation} | known))
