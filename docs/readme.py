"""Bring the outputs that pages show up to date: run their commands, put in what they print.

python docs/readme.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "export.md", ROOT / "docs" / "symptoms.md")


def main() -> None:
    """Rewrite the console blocks of the pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = re.sub(
            r"^```console\n\$ (.*?)\n.*?^```$", _session, text, flags=re.MULTILINE | re.DOTALL
        )
        page.write_text(text, encoding="utf-8")


def _session(match: re.Match[str]) -> str:
    command = match[1]
    if "\n…\n" in match[0]:  # an excerpt, which the tests compare
        return match[0]
    with tempfile.TemporaryDirectory() as folder:  # commands may leave files
        (Path(folder) / "sample_traces").symlink_to(ROOT / "sample_traces")
        done = subprocess.run(  # noqa: S602  (commands of our own README)
            command.replace("traceprof ", f"{sys.executable} -m traceprof ", 1),
            shell=True,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    return f"```console\n$ {command}\n{done.stdout}{done.stderr}```"


if __name__ == "__main__":
    main()
