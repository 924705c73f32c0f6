"""The pictures of docs/architecture.md are what the code gives."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pictures_are_what_the_code_gives() -> None:
    done = subprocess.run(
        [sys.executable, "docs/architecture.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
