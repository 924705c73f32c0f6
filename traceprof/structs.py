"""The base of classes that only hold data, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import asdict

Item = TypeVar("Item")
Key = TypeVar("Key")


class Record(Struct, frozen=True):
    """A value of named fields, as a dataclass is one, but made without compiling its methods.

    The hundreds of such classes would take half of the time in which all modules are imported. The
    types of their fields are for the type checker alone, unlike those of the JSON documents.
    """


def given_fields(record: Struct) -> dict[str, object]:
    """Return a record as a dictionary, without fields that are left out."""
    values = asdict(record)
    if UNSET not in values.values():
        return values
    return {name: value for name, value in values.items() if value is not UNSET}


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key; keys and items are in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
