"""The pictures of docs/architecture.md and of the README are what the code gives."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import output_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["architecture.py", "picture.py"])
def test_pictures_are_what_the_code_gives(script: str) -> None:
    output_of(sys.executable, f"docs/{script}", "--check", cwd=ROOT)


def test_every_room_has_a_paragraph() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [path.parent.name for path in (ROOT / "traceprof").glob("*/__init__.py")]
    ground = {"kernel_names"}  # described together
    missing = [
        room
        for room in sorted({*rooms, "dashboards", "instrument"} - ground)
        if f"\n* **`{room}/`** " not in page
    ]
    assert len(rooms) > 10
    assert missing == []
    assert "\n* **`testing.py`** " in page
    assert "\n* **`analysis.py`** " in page
