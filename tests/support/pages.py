"""What components of the dashboard show, and what its server answers, as lines of text."""

import json
import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from dash.development.base_component import Component

from dashboards.widgets.charts import shortened

_MAX_VALUES = 12  # of a list of numbers, that are written one by one
_MAX_LISTED = 12  # that have a line of their own in a chart or an answer
_INLINE = {"Span", "Strong", "Code", "Small", "Link", "A", "Button", "Label", "Img"}
_IN_ONE_LINE = {"Tr", "Summary", "Header", "bar", "legend"}
_MARKS = {"H1": "", "H2": "## ", "H3": "### ", "H4": "#### ", "Li": "- "}


def _children(component: Any) -> list[Any]:
    children = getattr(component, "children", None)
    return [*children] if isinstance(children, (list, tuple)) else [children]


def _is_inline(child: Any) -> bool:
    return not isinstance(child, Component) or (
        type(child).__name__ in _INLINE and all(map(_is_inline, _children(child)))
    )


def _inline(child: Any) -> str:
    """Return a text with its links, tooltips and places of bars."""
    if not isinstance(child, Component):
        return "" if child is None else str(child)
    text = " ".join(filter(None, (_inline(one).strip() for one in _children(child))))
    href = getattr(child, "href", None)
    text = f"[{text}]({href})" if href else text
    style = getattr(child, "style", None) or {}
    extra = [f"{key} {style[key]}" for key in ("left", "width") if key in style]
    for key in ("title", "alt", "src", "data-src"):
        said = getattr(child, key, None)
        extra += [said] if said and said != text else []
    extra += ["hidden"] if getattr(child, "hidden", False) else []
    return f"{text}{{{'; '.join(extra)}}}" if extra else text


def lines_of(tree: Any) -> list[str]:
    """Return the lines of components, each block with a line of its own."""
    lines: list[str] = []
    children = tree if isinstance(tree, (list, tuple)) else [tree]
    for is_inline, some in groupby(children, _is_inline):
        if is_inline:
            text = " ".join(filter(None, (_inline(child).strip() for child in some)))
            lines += [text] if text else []
        else:
            lines += [line for child in some for line in _block(child)]
    return lines


def _block(child: Any) -> list[str]:
    kind, name = type(child).__name__, str(getattr(child, "id", ""))
    children = _children(child)
    if hasattr(child, "data-plots"):
        drawn = json.loads(getattr(child, "data-plots"))
        return [f"chart {name}: {getattr(child, 'data-label')}", *_indented(fields_of(drawn))]
    if kind == "AgGrid":
        return _grid(child)
    if name in {"timeline", "compare-timelines"}:
        return _timeline(child)
    kinds = {type(one).__name__ for one in children}
    if not _IN_ONE_LINE.isdisjoint({kind, getattr(child, "className", "")}) or "Dt" in kinds:
        parts = (" ".join(lines_of(part)).removeprefix("- ") for part in children)
        return [" | ".join(parts).rstrip()]
    lines = lines_of(children)
    if kind == "Details":
        return [("v " if child.open else "> ") + lines[0], *_indented(lines[1:])]
    return [*(_MARKS.get(kind, "") + line for line in lines[:1]), *lines[1:], *_own(child)]


def _timeline(child: Any) -> list[str]:
    props = sorted(child.to_plotly_json()["props"].items())
    written = {key: value for key, value in props if key.startswith("data-")}
    return fields_of({key: json.loads(v) if v[:1] in "[{" else v for key, v in written.items()})


def _own(child: Component) -> list[str]:
    """Return what a field of a form holds."""
    fields = [key for key in ("options", "value", "placeholder") if hasattr(child, key)]
    fields += ["hidden"] if getattr(child, "hidden", False) else []
    return [f"{key}: {value_of(getattr(child, key))}" for key in fields]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _grid(grid: Any) -> list[str]:
    """Return a table: columns with a filter have a *, those that are saved only, brackets."""
    columns = grid.columnDefs
    is_scrolled = grid.style["height"] is not None
    heads = [
        f"({one['headerName']})" if one.get("hide") else one["headerName"] + "*" * ("filter" in one)
        for one in columns
    ]
    rows = [" | ".join(_cell(one, row) for one in columns) for row in grid.rowData]
    name = f"{grid.id['name']}{' (scrolled)' * is_scrolled}"
    return [f"table {name}: {' | '.join(heads)}", *_indented(rows)]


def _cell(column: dict[str, Any], row: dict[str, Any]) -> str:
    value = row.get(column["field"])
    if isinstance(value, (int, float)):
        divided = re.search(r"/ (\S+)$", column.get("valueGetter", {}).get("function", ""))
        rounded = re.search(r"\.(\d)f", column.get("valueFormatter", {}).get("function", ""))
        value = value / float(divided[1]) if divided else value
        value = f"{value:,.{rounded[1]}f}" if rounded else value
    text = "–" if value is None else str(value)  # noqa: RUF001
    is_link = column.get("cellRenderer") == "Place" and row.get("href")
    return f"[{text}]({row['href']})" if is_link else text


def fields_of(data: dict[str, Any]) -> list[str]:
    """Return each field of a chart or an answer; what it lists has a line each."""
    lines: list[str] = []
    for key, value in data.items():
        listed = list(value.items()) if isinstance(value, dict) else value
        if isinstance(listed, list) and listed and isinstance(listed[0], (dict, tuple)):
            rest = [f"… {len(listed)} in all"] if len(listed) > _MAX_LISTED else []
            lines += [f"{key}:", *_indented([*map(value_of, listed[:_MAX_LISTED]), *rest])]
        else:
            lines.append(f"{key}: {value_of(value)}")
    return lines


def value_of(value: Any) -> str:
    """Return a value of a chart; of many numbers the first ones, their extremes and mean."""
    match value:
        case float():
            text = f"{value:.6g}"
        case dict():
            text = ", ".join(f"{key}={value_of(one)}" for key, one in value.items())
        case tuple():
            text = ": ".join(map(value_of, value))
        case [int() | float() | None, *_] if len(value) > _MAX_VALUES:
            known = [one for one in value if one is not None]
            ends = f"{value_of(min(known))} to {value_of(max(known))}"
            first = " ".join(map(value_of, value[: _MAX_VALUES // 2]))
            gaps, mean = len(value) - len(known), value_of(sum(known) / len(known))
            text = f"[{first} … {len(value)}, {gaps} unknown: {ends}, mean {mean}]"
        case list():
            text = f"[{' '.join(map(value_of, value))}]"
        case _:
            text = shortened(str(value), 100)
    return text
