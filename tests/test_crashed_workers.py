"""A worker that crashed leaves what it did then."""

import subprocess
import sys
from pathlib import Path

import pytest

_CRASHING = """
import ctypes

def test_crash():
    ctypes.string_at(0)
"""
_CONFTEST = """
from tests.support.crashes import Crashes

def pytest_configure(config):
    config.pluginmanager.register(Crashes())
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="signals of other systems have other numbers")
def test_its_signal_and_its_stack_are_printed(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(_CRASHING)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", str(tmp_path)]
    here = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    _, crashed, printed = done.stdout.partition("worker gw0 crashed ==")
    assert crashed, done.stdout + done.stderr
    assert "exit status -11, by SIGSEGV" in printed
    assert 'test_crash.py", line 5 in test_crash' in printed
    assert "/_pytest/" not in printed
