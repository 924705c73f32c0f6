"""A cache of data derived from a rank or a run, kept until it is released.

Results are kept by the function that derives them, not by a name, so two modules cannot collide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar, overload

Kept = TypeVar("Kept")


class Cache:
    """Results by the function that derives them and its further arguments.

    Several threads may derive the same result at once: all of them get the first one stored.
    """

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[tuple[Callable[..., Any], tuple[Hashable, ...]], Any] = {}

    def __reduce__(self) -> tuple[type[Cache], tuple[()]]:
        """Send none of the results, which are derived again."""
        return Cache, ()

    def __contains__(self, derive: Callable[..., Any]) -> bool:
        """Return whether a result is kept that this function derived from the owner alone."""
        return (derive, ()) in self._results

    def get(self, derive: Callable[..., Kept], owner: object, *others: Hashable) -> Kept:
        """The result of a function of a module or class for the owner and further arguments.

        It is derived on first use. A function that is created for each call would never be found.
        """
        key = derive, others
        try:
            result: Kept = self._results[key]
        except KeyError:
            result = self._results.setdefault(key, derive(owner, *others))
        return result

    def get_alone(
        self, derive: Callable[..., Kept], owner: object, release: Callable[[], None]
    ) -> Kept:
        """Do the same as `get`; after deriving, call `release`, which may empty this cache, too."""
        if derive not in self:
            result = derive(owner)
            release()
            self._results[derive, ()] = result
        return self.get(derive, owner)

    def release(self, derive: Callable[..., Any] | None = None) -> None:
        """Release all results, or one of the owner alone; they are derived again when needed."""
        if derive is None:
            self._results.clear()
        else:
            self._results.pop((derive, ()), None)

    def release_but(self, derive: Callable[..., Any]) -> None:
        """Release all results but what a function derived, which is small and took long."""
        kept = [item for item in [*self._results.items()] if item[0][0] is derive]
        self._results.clear()
        self._results.update(kept)


class HasCache(Protocol):
    """An object with a cache."""

    @property
    def cache(self) -> Cache:
        """Results that were derived from it."""


class _Derived(Generic[Kept]):
    def __init__(self, derive: Callable[[Any], Kept]) -> None:
        self._derive = derive
        self.__doc__ = derive.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> _Derived[Kept]: ...

    @overload
    def __get__(self, owner: HasCache, kind: type) -> Kept: ...

    def __get__(self, owner: HasCache | None, kind: type) -> _Derived[Kept] | Kept:
        return self if owner is None else owner.cache.get(self._derive, owner)


def derived(derive: Callable[[Any], Kept]) -> _Derived[Kept]:
    """Make a method a property whose value is kept in its owner's cache."""
    return _Derived(derive)
