"""Draw the README's picture: the report on the sample trace, as rich draws a terminal.

python docs/picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import traceprof
from traceprof.reports import text

ROOT = Path(__file__).parent.parent
# rich's template fetches a font from the network; the reader's own monospaced font will do.
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main() -> None:
    """Write docs/report.svg."""
    console = Console(file=io.StringIO(), record=True, width=104, force_terminal=True)
    analysis = traceprof.analyze("sample_traces/training.sqlite")
    console.print(text.report(analysis.result))
    analysis.close()
    picture = console.export_svg(
        title="traceprof analyze sample_traces/training.sqlite",
        code_format=TEMPLATE,
        unique_id="report",
    )
    (ROOT / "docs" / "report.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
