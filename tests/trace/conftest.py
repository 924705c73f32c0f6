"""Exceptions that nobody foresaw are shown, and nothing may hang."""

import faulthandler
from collections.abc import Iterator

import pytest

_HANGS_S = 120  # far longer than any of these tests takes


@pytest.fixture(autouse=True)
def _unforeseen_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPROF_TRACEBACK", "1")


@pytest.fixture(autouse=True)
def _hanging_ends_the_tests() -> Iterator[None]:
    # A loop in SQLite's C code hears no signal; this watchdog does not depend on it.
    faulthandler.dump_traceback_later(_HANGS_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
