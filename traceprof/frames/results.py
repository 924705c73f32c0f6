"""The lists of the JSON document as frames, and what the columns of any table hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.documents.analysis.model import meanings
from traceprof.documents.analysis.records import TABLES
from traceprof.errors import UsageError, closest
from traceprof.findings import Severity
from traceprof.intervals import Int64
from traceprof.structs import Record
from traceprof.trace.grouping import numbered

if TYPE_CHECKING:
    import pandas as pd
    from msgspec import Struct
    from pandas.api.extensions import ExtensionArray


Numbers = npt.NDArray[Any]


class TextColumn(Record, frozen=True):
    """A column of texts with few distinct values."""

    index: Numbers  # int[n], which of `texts` each is; -1 for none
    texts: Sequence[str | None]  # some perhaps several times, and None for none

    def __len__(self) -> int:
        return len(self.index)


Part = dict[str, "Numbers | TextColumn | Callable[[], Numbers]"]
"""Columns by name; of a masked array some are unknown; a large one is made when its turn comes."""


def names_at(keys: Int64, texts: Mapping[int, str] | Sequence[str]) -> TextColumn:
    """Return the text of each key, int64[n]."""
    distinct, index = numbered(keys)
    return TextColumn(index, [texts[key] for key in distinct.tolist()])


def names_of_kinds(kinds: Int64, texts: Mapping[int, str | None]) -> TextColumn:
    """Return the texts of small numbers, int64[n]; none where a number has none."""
    stop = max(texts, default=-1) + 1
    index = np.where((kinds >= 0) & (kinds < stop), kinds, -1).astype(np.int16)
    return TextColumn(index, [texts.get(kind) for kind in range(stop)])


def frame(parts: Sequence[Part]) -> pd.DataFrame:
    """Return a frame of the rows of all parts (at least one), which are emptied.

    All parts have the same columns; durations follow the ends.
    """
    import pandas as pd  # noqa: PLC0415  (takes longer than most reports)

    columns = {}
    for name in [*parts[0]]:
        taken = (part.pop(name) for part in parts)
        values = [column() if callable(column) else column for column in taken]
        columns[name] = _joined(values)  # one is in memory twice, not all
        if name == "end_ns":
            columns["duration_ns"] = columns[name] - columns["start_ns"]
    return pd.DataFrame(columns, copy=False)


def _joined(parts: Sequence[Numbers | TextColumn]) -> Any:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415

    names = [part for part in parts if isinstance(part, TextColumn)]
    if names:
        return _category(names)
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    values = np.concatenate([np.ma.getdata(part) for part in arrays])
    if not isinstance(arrays[0], np.ma.MaskedArray):
        return values
    unknown = np.concatenate([np.ma.getmaskarray(part) for part in arrays])
    values[unknown] = 0
    if values.dtype == np.bool_:
        return pd.arrays.BooleanArray(values, unknown)
    return pd.arrays.IntegerArray(values, unknown)


def _category(parts: Sequence[TextColumn]) -> ExtensionArray:
    """Return names as a column of categories: the names that occur, in alphabetical order."""
    import pandas as pd  # noqa: PLC0415

    used: set[str | None] = set()
    for part in parts:
        num_uses = np.bincount(part.index + 1, minlength=len(part.texts) + 1)
        used.update(compress(part.texts, num_uses[1:]))
    names = sorted(name for name in used if name is not None)
    code: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    codes = [
        # The last stands for an index of -1.
        np.array([*(code.get(text, -1) for text in part.texts), -1], np.int32)[part.index]
        for part in parts
    ]
    return pd.Categorical.from_codes(np.concatenate(codes), pd.Index(names, dtype="str"))


# Texts that hardly ever repeat; all others are names.
_PROSE = frozenset({"how_to_collect", "note", "path", "reason", "sentence", "title"})
_HAS_TEXTS = 3  # the version of pandas
_NESTED = frozenset({dict, list, tuple, Mapping})


def table_frame(result: RunResult, table: str) -> pd.DataFrame:
    """Return a list of the JSON document as a frame.

    Args:
        result: what was found out about a run.
        table: the name of the list in the document, such as `steps`.

    Returns:
        A row for each record and a column for each of its fields. Names are categories. What is not
        known is missing. Of findings, `metrics`, `saving` and `in_phase` hold dicts; `evidence` and
        `advice` hold lists.

    Raises:
        UsageError: there is no such list.
    """
    import pandas as pd  # noqa: PLC0415  (takes longer than most reports)
    from msgspec import UNSET, to_builtins  # noqa: PLC0415

    if table not in TABLES:
        guess = closest(str(table), [*TABLES])
        remedy = f"did you mean {guess}?" if guess else f"choose one of {', '.join(TABLES)}"
        raise UsageError(f"cannot make a frame of {table!r}", "there is no such table", remedy)
    record, records = TABLES[table]
    rows = list(records(result))
    columns = {}
    for field, kind in get_type_hints(record).items():
        given = [getattr(row, field) for row in rows]
        values = [None if value is UNSET else value for value in given]
        if any(_is_nested(choice) for choice in kinds_of(kind)):
            nested = to_builtins(values)
            values = [list(value) if isinstance(value, tuple) else value for value in nested]
        columns[field] = _series(field, kind, values)
    return pd.DataFrame(columns)


def _series(field: str, kind: Any, values: Sequence[Any]) -> pd.Series[Any]:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415

    if field == "severity":
        order = [str(severity) for severity in sorted(Severity)]
        return pd.Series(pd.Categorical(values, order, ordered=True))
    if str in kinds_of(kind) and field not in _PROSE:
        texts = sorted({value for value in values if value is not None})
        categories: pd.Index[str] = pd.Index(texts, dtype="str")
        return pd.Series(pd.Categorical(values, categories))
    series: pd.Series[Any] = pd.Series(values, dtype=_dtype(kind))
    return series


def _dtype(kind: Any) -> Any:  # noqa: ANN401
    kinds = kinds_of(kind)
    is_optional = NoneType in kinds
    if bool in kinds:
        return "boolean" if is_optional else "bool"
    if float in kinds:
        return "float64"
    if int in kinds:
        return "Int64" if is_optional else "int64"
    return text_dtype() if str in kinds else "object"


def text_dtype() -> Any:  # noqa: ANN401
    """Return the text type in which None stays unknown, unlike `str` of pandas 2."""
    import pandas as pd  # noqa: PLC0415

    return "str" if int(pd.__version__.partition(".")[0]) >= _HAS_TEXTS else "string"


def nested_fields(record: type[Struct]) -> list[str]:
    """Return the columns of a table that hold lists or dicts, by the type of its rows."""
    kinds = get_type_hints(record).items()
    return [field for field, kind in kinds if any(map(_is_nested, kinds_of(kind)))]


def kinds_of(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the types that the values of a field may have."""
    if _origin(kind) is Literal:
        return (str,)
    kinds = (kind,) if _origin(kind) in _NESTED else get_args(kind) or (kind,)
    return tuple(str if _origin(choice) is Literal else choice for choice in kinds)


def _is_nested(kind: Any) -> bool:  # noqa: ANN401
    return _origin(kind) in _NESTED or hasattr(kind, "__struct_fields__")


def _origin(kind: Any) -> Any:  # noqa: ANN401
    return getattr(kind, "__origin__", kind)


_UNITS = {"_ns": "ns", "bytes": "bytes", "gb_per_s": "GB/s", "flops_per_s": "FLOP/s"}
"""By the end of a column's name."""
_KINDS = {bool: "true or false", float: "number", int: "integer", str: "text"}


class ColumnText(NamedTuple):
    """A column of a table, in words."""

    name: str  # the name
    kind: str  # the kind of its values
    unit: str  # the unit of its numbers; empty if they have none
    meaning: str  # the meaning, where the name does not say it


def columns(record: type[Struct]) -> list[ColumnText]:
    """Return the columns of a table in their order, by the type of its rows."""
    texts, nested = meanings(record), nested_fields(record)
    found = []
    for name, hint in get_type_hints(record).items():
        kind = next((kind for kind in _KINDS if kind in kinds_of(hint)), str)
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        if name in nested or kind in {bool, str}:
            unit = ""
        found.append(
            ColumnText(name, "JSON" if name in nested else _KINDS[kind], unit, texts.get(name, ""))
        )
    return found


def subject(record: type[Struct]) -> str:
    """Return what a row of a table is."""
    return (record.__doc__ or "").partition("\n")[0].replace("`", "").removesuffix(".")
