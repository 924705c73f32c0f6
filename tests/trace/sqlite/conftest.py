"""What tests of the reader of SQLite have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database is to be written."""
    return tmp_path / "t.sqlite"
