"""What was derived from a rank is kept until it is released: by one mechanism, for all that derive.

Results are kept by the function that derives them, not by a name, so that two modules cannot meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Kept = TypeVar("Kept")


class Cache:
    """Results by the function that derives them and what else it was given.

    Several threads may derive the same at once: the result that is there first is everybody's.
    """

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[tuple[Callable[..., Any], tuple[Hashable, ...]], Any] = {}

    def __contains__(self, derive: Callable[..., Any]) -> bool:
        """Say whether something is kept that this function derived from the owner alone."""
        return (derive, ()) in self._results

    def get(self, derive: Callable[..., Kept], owner: object, *others: Hashable) -> Kept:
        """Return what a function derives from the owner, deriving it on first use.

        Args:
            derive: a function of a module or a class; not one that is made anew for each call.
            owner: whose cache it is.
            others: further arguments.
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
        """Do the same, and where it must be derived let go of all that it was derived from.

        Args:
            derive: as above.
            owner: whose cache it is.
            release: lets go of what else there is, this cache's results among it.
        """
        if derive not in self:
            result = derive(owner)
            release()
            self._results[derive, ()] = result
        return self.get(derive, owner)

    def release(self) -> None:
        """Let go of all that is kept: it is derived again when it is needed."""
        self._results.clear()


class HasCache(Protocol):
    """An object with a cache."""

    @property
    def cache(self) -> Cache:
        """What was derived from it."""


class _Derived(Generic[Kept]):
    """A property whose value its owner's cache keeps."""

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
