"""`traceprof.whatif` and `traceprof.compare` are functions, whatever has been imported."""

import inspect
from importlib import import_module

import pytest

import traceprof


@pytest.mark.parametrize(
    ("name", "module"),
    [("whatif", "traceprof.replay.answers.savings"), ("compare", "traceprof.comparison.ask")],
)
def test_a_public_function_has_its_signature(name: str, module: str) -> None:
    import_module(module)
    function = getattr(traceprof, name)
    assert inspect.isfunction(function)
    assert "options" in inspect.signature(function).parameters
