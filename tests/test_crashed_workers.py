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
_HANGING = """
import time

def test_crash(pytestconfig):
    pytestconfig.pluginmanager.getplugin("crashes").watch(0.5); time.sleep(600)
"""
_CONFTEST = """
from tests.support.workers import Crashes

def pytest_configure(config):
    config.pluginmanager.register(Crashes(), "crashes")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="signals of other systems have other numbers")
@pytest.mark.parametrize(
    ("test", "end"),
    [(_CRASHING, "exit status -11, by SIGSEGV"), (_HANGING, "exit status 1\nTimeout (0:00:00.5")],
)
def test_its_end_and_its_stack_are_printed(tmp_path: Path, test: str, end: str) -> None:
    (tmp_path / "test_crash.py").write_text(test)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", str(tmp_path)]
    here = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    _, crashed, printed = done.stdout.partition("worker gw0 crashed ==")
    assert crashed, done.stdout + done.stderr
    assert end in printed
    assert 'test_crash.py", line 5 in test_crash' in printed
    assert "/_pytest/" not in printed
