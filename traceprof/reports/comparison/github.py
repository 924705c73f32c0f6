"""The gates of a comparison as annotations, which GitHub reads in the log of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.reports.comparison.sections import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.documents.comparison import Comparison


def render(comparison: Comparison) -> str:
    """Return workflow commands, one a line: errors, warnings, and a notice if all is well."""
    return "".join(f"{line}\n" for line in _commands(comparison))


def _commands(comparison: Comparison) -> Iterator[str]:
    for reason in comparison.comparable.reasons:
        yield _command("warning", "traceprof: not comparable", reason)
    failed = [gate for gate in comparison.gates if gate.outcome != "met"]
    for gate in failed:
        yield _command("error", f"traceprof: {gate.gate} {gate.outcome}", gate.reason)
    if not failed:
        yield _command("notice", "traceprof", verdict(comparison))


def _command(kind: str, title: str, message: str) -> str:
    escaped = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={escaped}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return one_line(text).replace("%", "%25")
