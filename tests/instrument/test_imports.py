"""Every wrapper is installed; import-linter holds what the instrumentation may import."""

from pathlib import Path

from instrument import wraps
from instrument.switch import PARTS


def test_every_wrapper_is_installed() -> None:
    modules = Path(*wraps.__path__).glob("[!_]*.py")
    assert {*PARTS} == {f"instrument.wraps.{module.stem}" for module in modules}
