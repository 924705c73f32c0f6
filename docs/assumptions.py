"""Bring the table of assumptions in docs/whatif.md up to date: it is made from the code.

python docs/assumptions.py
"""

from __future__ import annotations

import re
from pathlib import Path

from traceprof.replay.assumptions.table import markdown

PAGE = Path(__file__).parent / "whatif.md"


def with_table(text: str) -> str:
    """Return the text of the page with the table of the code."""
    begin, end = "<!-- assumptions: begin -->", "<!-- assumptions: end -->"
    made = f"{begin}\n\n{markdown()}\n\n{end}"
    return re.sub(f"{begin}.*?{end}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
