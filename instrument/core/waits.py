"""Wrappers of waits for asynchronous operations: one range, which names the operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from instrument.core import calls, completion
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable


def around(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a range around its waits for the operation of its first argument.

    A wait inside a labelled call is part of that call, and has none.
    """
    return calls.around(wait, _awaited, labels.WAIT, label=_label)


def around_method(cls: type, method: str) -> Callable[..., Any]:
    """Return a replacement for a method of a C++ class that waits for the object's operation."""
    return calls.around_method(cls, method, _awaited, labels.WAIT, label=_label)


def _awaited(awaited: object, *_: object, **__: object) -> object:
    return awaited


def _label(wait: str, awaited: object) -> tuple[str, bool]:
    """Return the label of a wait, with the label of the operation, if known."""
    text = completion.label_of(awaited)
    if text is None:
        return wait, False
    operation = labels.parse(text)
    known = {key: operation.facts[key] for key in ("group", "seq") if key in operation.facts}
    return str(labels.Label(wait, {"op": operation.operation} | known)), False
