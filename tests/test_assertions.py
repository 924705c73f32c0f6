"""No test asserts nothing: itself, or a function of the tests that it calls."""

import ast
from pathlib import Path

_FOLDER = Path(__file__).parent
_ASSERTING = ("assert", "check", "expect", "until", "pytest.raises", "pytest.fail", "pytest.warns")
"""Beginnings of functions that fail where something is not so."""


def _called(function: ast.FunctionDef) -> set[str]:
    """Return what a function calls: by its name, and with what stands before it."""
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return calls | {name.rpartition(".")[2] for name in calls}


def test_every_test_asserts_something() -> None:
    functions = [
        (path, node)
        for path in sorted(_FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    called = {id(node): _called(node) for _, node in functions}
    asserting: set[str] = set()
    while True:
        more = {
            node.name
            for _, node in functions
            if node.name not in asserting
            and (
                any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
                or any(name.startswith(_ASSERTING) for name in called[id(node)])
                or called[id(node)] & asserting
            )
        }
        if not more:
            break
        asserting |= more
    tests = [(path, node) for path, node in functions if node.name.startswith("test_")]
    assert len(tests) > 2000
    empty = [f"{path}: {node.name}" for path, node in tests if node.name not in asserting]
    assert empty == []
