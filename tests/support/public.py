"""What of an example is not of the public API."""

import ast
from collections.abc import Iterator

import traceprof


def private_names(code: str) -> Iterator[str]:
    """Yield modules below `traceprof` that code imports, and private names that it uses."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("traceprof"):
            yield from () if node.module == "traceprof" else (str(node.module),)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("traceprof."))
        elif isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                yield node.attr
            elif isinstance(node.value, ast.Name) and node.value.id == "traceprof":
                yield from () if node.attr in traceprof.__all__ else (node.attr,)
