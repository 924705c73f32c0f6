"""The base of classes that only hold data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, Struct
from msgspec.structs import asdict, astuple

if TYPE_CHECKING:
    from typing_extensions import Self

    from traceprof.intervals import Index


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


class Rows(Record, frozen=True):
    """Columns of n rows, as many as the first array has.

    `chosen` takes them from all arrays, which must be as long; other fields are of all rows.
    """

    def __len__(self) -> int:
        return len(next(filter(_is_array, astuple(self))))

    def chosen(self, rows: Index) -> Self:
        """Return the rows at these indices, int64[m], or where this mask is true, bool[n]."""
        return type(self)(*(one[rows] if _is_array(one) else one for one in astuple(self)))


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype")  # numpy is not imported for `--help`
