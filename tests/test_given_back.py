"""What a thread takes for a while is given back by `with`, also if its work fails."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = [Path(__file__).parents[1] / name for name in ("traceprof", "dashboards", "instrument")]
_TAKING = {"acquire", "get", "get_nowait"}  # of locks and queues: without arguments
MANAGERS = {"contextmanager", "asynccontextmanager"}


def taken(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that take something from a queue or a lock, but for managers of `with`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            isinstance(name, ast.Name) and name.id in MANAGERS for name in node.decorator_list
        ):
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _TAKING
            and not node.args
        ):
            yield node.lineno
        yield from taken(node)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_nothing_is_taken_without_with(package: Path) -> None:
    paths = [*package.rglob("*.py")]
    assert paths
    places = [f"{path}:{line}" for path in paths for line in taken(ast.parse(path.read_text()))]
    assert places == []


def test_what_is_taken_is_seen() -> None:
    source = "def f(queue):\n    x = queue.get()\n    queue.put(x)\n"
    assert [*taken(ast.parse(source))] == [2]
    assert [*taken(ast.parse("@contextmanager\n" + source))] == []
