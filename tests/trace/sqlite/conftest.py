"""What tests of the reader of SQLite have in common."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"
