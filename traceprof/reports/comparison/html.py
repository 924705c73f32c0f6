"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.reports import drawings
from traceprof.reports.comparison.sections import sections, verdict
from traceprof.reports.html import environment
from traceprof.structs import Record
from traceprof.units import duration
from traceprof.version import __version__

if TYPE_CHECKING:
    from traceprof.documents.comparison import Comparison, Parts

_ROW = 34  # of the drawing, pixels
_MAX_TITLE = 80


class DrawnPart(Record, frozen=True):
    """A part of a drawn step: its class in the style, and where it is, in pixels."""

    name: str
    x: float
    width: float


class DrawnStep(Record, frozen=True):
    """A mean step as a row of the drawing."""

    name: str  # of the side
    y: int  # its top
    text: str  # how long it is
    end: float  # where it ends, in pixels
    parts: tuple[DrawnPart, ...]  # what it is made of


def render(comparison: Comparison) -> str:
    """Return the comparison as a self-contained HTML page."""
    longest = max(comparison.mean_before.mean_step_ns, comparison.mean_after.mean_step_ns, 1)
    first, *others = sections(comparison)
    sentence = verdict(comparison)
    names = f"{comparison.before.name} → {comparison.after.name}"
    page = {
        "title": one_line(f"traceprof: {names}", _MAX_TITLE),
        "version": f"traceprof {__version__}",
        "verdict": sentence,
        "lines": [one_line(line) for line in first.lines if line != sentence],
        "steps": [
            _drawn("before", 0, comparison.mean_before, longest),
            _drawn("after", _ROW, comparison.mean_after, longest),
        ],
        "height": 2 * _ROW,
        "parts": drawings.PARTS,
        "drawn": drawings,
        "sections": others,
    }
    return environment().get_template("comparison.html.jinja").render(page)


def _drawn(name: str, y: int, mean: Parts, longest_ns: int) -> DrawnStep:
    scale = (drawings.WIDTH - 2 * drawings.LABELS) / longest_ns
    x, parts = float(drawings.LABELS), []
    for part in drawings.PARTS:
        width = scale * getattr(mean, part)
        parts.append(DrawnPart(part, round(x, 1), round(width, 1)))
        x += width
    return DrawnStep(name, y, duration(mean.mean_step_ns), round(x, 1), tuple(parts))
