"""The base of classes that only hold data."""

from __future__ import annotations

from msgspec import Struct


class Record(Struct, frozen=True):
    """A value of named fields, as a dataclass is one, but made without compiling its methods.

    The hundreds of such classes would take half of the time in which all modules are imported. The
    types of their fields are for the type checker alone, unlike those of the JSON documents.
    """
