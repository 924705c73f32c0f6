"""Shared parts of the commands that read reports: arguments, and progress on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from traceprof.cli.progress import CountBar
    from traceprof.run.summary import FailedReport


class ReportPath(click.Path):
    """A path as it is: opening it finds every fault; the shell completes it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the path."""
        del param, ctx
        return str(value)


reports_argument = click.argument(
    "reports", nargs=-1, required=True, metavar="REPORT...", type=ReportPath()
)


def expand(reports: Sequence[str]) -> list[Path]:
    """Return the named reports, each once, with folders and unexpanded patterns resolved.

    Raises:
        TraceFileError: a pattern matches no file, or a folder contains no report.
    """
    from traceprof.trace.folder import report_paths

    return report_paths(reports)


def print_failures(reports: Iterable[FailedReport]) -> None:
    """Name on stderr the reports that were left out, and why."""
    for report in reports:
        click.echo(f"traceprof: left out: {report.error}", err=True)


@contextmanager
def progress(unit: str = "rows") -> Iterator[CountBar | None]:
    """Show a bar on stderr while reports are read, if stderr is a terminal.

    Args:
        unit: of the count.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from traceprof.cli.progress import CountBar

    with CountBar(unit) as bar:
        yield bar
