"""The lists of the JSON document as frames."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from traceprof.documents.analysis.records import TABLES
from traceprof.errors import UsageError, closest
from traceprof.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from traceprof.analyses.verdict.run_result import RunResult

# Texts of which hardly one is like another; all others are names.
_PROSE = frozenset({"how_to_collect", "note", "path", "reason", "sentence", "title"})
_NESTED = frozenset({dict, list, tuple, Mapping})


def table_frame(result: RunResult, table: str) -> pd.DataFrame:
    """Return a list of the JSON document as a frame.

    Args:
        result: what was found out about a run.
        table: the name of the list in the document, such as `steps`.

    Returns:
        A row for each record and a column for each of its fields. Names are categories. What is not
        known is missing. Of findings, `metrics` and `saving` hold dicts; `evidence` and `advice`
        hold lists.

    Raises:
        UsageError: there is no such list.
    """
    import pandas as pd  # noqa: PLC0415  (takes longer than most reports)
    from msgspec import to_builtins  # noqa: PLC0415

    if table not in TABLES:
        guess = closest(str(table), [*TABLES])
        remedy = f"did you mean {guess}?" if guess else f"choose one of {', '.join(TABLES)}"
        raise UsageError(f"cannot make a frame of {table!r}", "there is no such table", remedy)
    record, records = TABLES[table]
    rows = list(records(result))
    columns = {}
    for field, kind in get_type_hints(record).items():
        values = [getattr(row, field) for row in rows]
        if any(_is_nested(choice) for choice in _kinds(kind)):
            nested = to_builtins(values)
            values = [list(value) if isinstance(value, tuple) else value for value in nested]
        columns[field] = _series(field, kind, values)
    return pd.DataFrame(columns)


def _series(field: str, kind: Any, values: Sequence[Any]) -> pd.Series[Any]:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415

    if field == "severity":
        order = [str(severity) for severity in sorted(Severity)]
        return pd.Series(pd.Categorical(values, order, ordered=True))
    if str in _kinds(kind) and field not in _PROSE:
        texts = sorted({value for value in values if value is not None})
        categories: pd.Index[str] = pd.Index(texts, dtype="str")
        return pd.Series(pd.Categorical(values, categories))
    series: pd.Series[Any] = pd.Series(values, dtype=_dtype(kind))
    return series


def _dtype(kind: Any) -> Any:  # noqa: ANN401
    kinds = _kinds(kind)
    is_optional = NoneType in kinds
    if bool in kinds:
        return "boolean" if is_optional else "bool"
    if float in kinds:
        return "float64"
    if int in kinds:
        return "Int64" if is_optional else "int64"
    return "str" if str in kinds else "object"


def _kinds(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the types that a field may have."""
    if _origin(kind) is Literal:
        return (str,)
    kinds = (kind,) if _origin(kind) in _NESTED else get_args(kind) or (kind,)
    return tuple(str if _origin(choice) is Literal else choice for choice in kinds)


def _is_nested(kind: Any) -> bool:  # noqa: ANN401
    """Say whether a field holds lists or records, which become lists and dicts."""
    return _origin(kind) in _NESTED or hasattr(kind, "__struct_fields__")


def _origin(kind: Any) -> Any:  # noqa: ANN401
    return getattr(kind, "__origin__", kind)
