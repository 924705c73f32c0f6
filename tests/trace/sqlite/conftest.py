"""What tests of the reader of SQLite have in common."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database is to be written."""
    return tmp_path / "t.sqlite"
