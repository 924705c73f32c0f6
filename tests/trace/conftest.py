"""Exceptions that nobody foresaw are shown, and nothing may hang."""

import faulthandler
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

_HANGS_S = 300  # far longer than any of these tests takes, or than one damaged file may


@pytest.fixture(autouse=True)
def _unforeseen_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPROF_TRACEBACK", "1")


@pytest.fixture(autouse=True)
def restart_watchdog(pytestconfig: pytest.Config) -> Iterator[Callable[[], None]]:
    # A loop in SQLite's C code hears no signal; this watchdog does not depend on it.
    restart = partial(pytestconfig.pluginmanager.getplugin("crashes").watch, _HANGS_S)
    restart()
    yield restart
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"
