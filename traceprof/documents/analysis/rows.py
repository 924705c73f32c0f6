"""Records made of the rows that analyses measure: the field of a row declares the column, too."""

from __future__ import annotations

import sys
from functools import cache
from inspect import get_annotations
from operator import attrgetter
from types import EllipsisType
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import Struct, defstruct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Record = TypeVar("Record", bound=Struct)


def record(
    *columns: str | EllipsisType, without: Sequence[str] = ()
) -> Callable[[type[Record]], type[Record]]:
    """Return a decorator that makes a record of a subclass of a row.

    Args:
        columns: the order of the fields; `...` stands for those of the row that are not named.
        without: fields of the row that the document has not.

    Raises:
        TypeError: a field that the record declares has no place among the columns.
    """

    def made(declared: type[Record]) -> type[Record]:
        types = {
            name: _evaluated(annotation, base.__module__)
            for base in reversed(declared.__mro__)
            for name, annotation in get_annotations(base).items()
        }
        if unlisted := declared.__annotations__.keys() - set(columns):
            raise TypeError(f"{declared.__name__} does not list {', '.join(sorted(unlisted))}")
        rest = [
            name
            for name in declared.__struct_fields__
            if name not in {*columns, *without, *declared.__annotations__}
        ]
        names = [
            name
            for column in columns
            for name in (rest if isinstance(column, EllipsisType) else [column])
        ]
        return cast(
            "type[Record]",
            defstruct(
                declared.__name__,
                [(name, types[name]) for name in names],
                namespace={"__doc__": declared.__doc__},
                module=declared.__module__,
                frozen=True,
                forbid_unknown_fields=True,
            ),
        )

    return made


@cache
def _evaluated(annotation: object, module: str) -> object:
    """Return the type that an annotation names: in a third of the time of `get_type_hints`."""
    if isinstance(annotation, str):
        return eval(annotation, vars(sys.modules[module]))  # noqa: S307  (our own)
    return annotation


def maker(kind: type[Record], *own: str) -> Callable[..., Record]:
    """Return a function that makes a record of a row and what the row lacks: `made(row, 3)`.

    Args:
        kind: the type of the record.
        own: the fields whose values are given, in this order; a row has an attribute for each of
            the others.
    """
    names = tuple(name for name in kind.__struct_fields__ if name not in own)
    values = attrgetter(*names)

    def made(row: object, *given: object) -> Record:
        return kind(*given, *values(row))

    def made_by_name(row: object, *given: object) -> Record:
        return kind(**dict(zip((*own, *names), (*given, *values(row)), strict=True)))

    # There are many steps, and names take longer.
    return made if (*own, *names) == kind.__struct_fields__ else made_by_name
