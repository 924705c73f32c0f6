"""What is known about an object, for as long as it lives, without holding it."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A dictionary whose keys are objects themselves, not what they are equal to.

    Tensors compare by element and process groups must be allowed to die, so neither `dict` nor
    `WeakKeyDictionary` will do.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], Value]] = {}

    def get(self, key: object) -> Value | None:
        """Return what is known about the object, or None."""
        try:
            return self._known[id(key)][1]
        except KeyError:
            return None

    def set(self, key: object, value: Value) -> None:
        """Know this about the object until it dies; raises TypeError where it has no weakrefs."""
        identity = id(key)
        # An identity is free for another object only after this has run.
        # No function of Python: what a signal's handler raised in it would be lost.
        gone = weakref.ref(key, partial(self._known.pop, identity))
        self._known[identity] = (gone, value)

    def __len__(self) -> int:
        return len(self._known)
