"""What a tree of components holds."""

import json
from collections.abc import Iterator
from typing import Any

from dash.development.base_component import Component


def components(tree: Any) -> Iterator[Component]:
    """Yield all components of a tree, the outer first."""
    if isinstance(tree, (list, tuple)):
        for component in tree:
            yield from components(component)
    elif hasattr(tree, "to_plotly_json"):
        yield tree
        yield from components(getattr(tree, "children", None))


def text(tree: Any) -> str:
    """Return the text of a tree, a space between any two parts."""
    if tree is None:
        return ""
    if isinstance(tree, (list, tuple)):
        return " ".join(filter(None, map(text, tree)))
    if hasattr(tree, "to_plotly_json"):
        return text(getattr(tree, "children", None))
    return str(tree)


def named(tree: Any, kind: str) -> list[Any]:
    """Return the components of a class, such as `AgGrid`."""
    return [component for component in components(tree) if type(component).__name__ == kind]


def charts(tree: Any) -> list[dict[str, Any]]:
    """Return what the charts of a tree are to draw."""
    written = (getattr(component, "data-plots", None) for component in components(tree))
    return [json.loads(drawn) for drawn in written if drawn is not None]
