"""Draw the README's picture: the report on the sample trace, as rich draws a terminal.

python docs/picture.py

With `--check` nothing is written: the exit status is 1 if the texts of the picture are others.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import traceprof
from traceprof.reports import text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "report.svg"
# rich's template fetches a font from the network; the reader's own monospaced font will do.
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def drawn() -> str:
    """Return the picture that the code draws today."""
    console = Console(file=io.StringIO(), record=True, width=104, force_terminal=True)
    analysis = traceprof.analyze("sample_traces/training.sqlite")
    console.print(text.report(analysis.result))
    analysis.close()
    return console.export_svg(
        title="traceprof analyze sample_traces/training.sqlite",
        code_format=TEMPLATE,
        unique_id="report",
    )


def texts(picture: str) -> list[str]:
    """Return the words of a picture; where they stand is of rich's version."""
    return re.sub(r"<style>.*?</style>|<[^>]*>|&#160;", " ", picture, flags=re.DOTALL).split()


def main() -> None:
    """Write docs/report.svg, or check it."""
    picture = drawn()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture, encoding="utf-8")
    elif texts(picture) != texts(PICTURE.read_text(encoding="utf-8")):
        sys.exit("docs/report.svg is not what the code gives: run python docs/picture.py")


if __name__ == "__main__":
    main()
