"""Columns of frames, concatenated from those of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pandas as pd
    from pandas.api.extensions import ExtensionArray

    from traceprof.intervals import Int64, Mask

    Numbers = npt.NDArray[Any]

_MAX_NARROW = np.iinfo(np.int16).max


class TextColumn(Record, frozen=True):
    """A column of texts with few distinct values."""

    index: Numbers  # int[n], which of `texts` each is; -1 for none
    texts: Sequence[str | None]  # some perhaps several times, and None for none

    def __len__(self) -> int:
        return len(self.index)


class Optional(Record, frozen=True):
    """A column of integers or flags, some of which are unknown."""

    values: Numbers  # int64[n] or bool[n], anything where they are not known
    is_known: Mask  # bool[n]

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def unless(cls, values: Int64, unknown: int) -> Optional:
        """Return a column in which one number stands for unknown values."""
        return cls(values, values != unknown)


Part = dict[str, "Numbers | TextColumn | Optional | Callable[[], Numbers | Optional]"]
"""Columns by name; a large one is made when its turn comes."""


def names_at(keys: Int64, texts: Mapping[int, str] | Sequence[str]) -> TextColumn:
    """Return the texts of keys, int64[n], each of which has one."""
    distinct, index = np.unique(keys, return_inverse=True)
    return TextColumn(index, [texts[key] for key in distinct.tolist()])


def names_of_kinds(kinds: Int64, texts: Mapping[int, str | None]) -> TextColumn:
    """Return the texts of small numbers, int64[n]; none where a number has none."""
    stop = max(texts, default=-1) + 1
    index = np.where((kinds >= 0) & (kinds < stop), kinds, -1).astype(np.int16)
    return TextColumn(index, [texts.get(kind) for kind in range(stop)])


def frame(parts: Sequence[Part]) -> pd.DataFrame:
    """Return a frame of the rows of all parts, at least one; they are emptied.

    Args:
        parts: with the same columns. Durations follow the ends.
    """
    import pandas as pd  # noqa: PLC0415  (takes longer than most reports)

    columns = {}
    for name in [*parts[0]]:
        values = [column() if callable(column) else column for column in _taken(parts, name)]
        columns[name] = _joined(values)  # one is in memory twice, not all
        if name == "end_ns":
            columns["duration_ns"] = columns[name] - columns["start_ns"]
    return pd.DataFrame(columns, copy=False)


def _taken(
    parts: Sequence[Part], name: str
) -> Iterator[Numbers | TextColumn | Optional | Callable[[], Numbers | Optional]]:
    for part in parts:
        yield part.pop(name)


def _joined(parts: Sequence[Numbers | TextColumn | Optional]) -> Any:  # noqa: ANN401
    """Return a column as pandas keeps it."""
    import pandas as pd  # noqa: PLC0415

    names = [part for part in parts if isinstance(part, TextColumn)]
    if names:
        return _category(names)
    some = [part for part in parts if isinstance(part, Optional)]
    if not some:
        return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    values = np.concatenate([part.values for part in some])  # noqa: PD011  (ours)
    unknown = ~np.concatenate([part.is_known for part in some])
    values[unknown] = 0
    if values.dtype == np.bool_:
        return pd.arrays.BooleanArray(values, unknown)
    return pd.arrays.IntegerArray(values, unknown)


def _category(parts: Sequence[TextColumn]) -> ExtensionArray:
    """Return names as a column of categories: the names that occur, in alphabetical order."""
    import pandas as pd  # noqa: PLC0415

    used = [np.zeros(len(part.texts), np.bool_) for part in parts]
    for part, is_used in zip(parts, used, strict=True):
        is_used[part.index[part.index >= 0]] = True
    texts = sorted(
        {
            text
            for part, is_used in zip(parts, used, strict=True)
            for text, is_there in zip(part.texts, is_used.tolist(), strict=True)
            if is_there and text is not None
        }
    )
    place: dict[str | None, int] = {text: number for number, text in enumerate(texts)}
    kind = np.int16 if len(texts) < _MAX_NARROW else np.int32
    codes = [
        # The last stands for an index of -1.
        np.array([*(place.get(text, -1) for text in part.texts), -1], kind)[part.index]
        for part in parts
    ]
    return pd.Categorical.from_codes(np.concatenate(codes), pd.Index(texts, dtype="str"))
