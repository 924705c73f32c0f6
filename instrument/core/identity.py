"""Weak per-object state."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A dictionary with weak keys that are compared by identity.

    Tensors compare by element and process groups must be freed in time, so neither `dict` nor
    `WeakKeyDictionary` fits.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], Value]] = {}

    def get(self, key: object) -> Value | None:
        """Return the value of an object, or None."""
        try:
            return self._known[id(key)][1]
        except KeyError:
            return None

    def set(self, key: object, value: Value) -> None:
        """Set the value of an object until it dies; raises TypeError if it has no weakrefs."""
        identity = id(key)
        # Another object can get the identity only after this has run. No Python function, in which
        # an exception of a signal handler would disappear.
        gone = weakref.ref(key, partial(self._known.pop, identity))
        self._known[identity] = (gone, value)

    def __len__(self) -> int:
        return len(self._known)
