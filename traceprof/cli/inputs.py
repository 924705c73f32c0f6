"""Shared parts of the commands that read reports: arguments, and progress on a terminal."""

from __future__ import annotations

import glob
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceprof.errors import TraceFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceprof.cli.progress import CountBar
    from traceprof.run.summary import FailedReport

# Existence is checked on opening, where every other fault of a file is found too.
reports_argument = click.argument(
    "reports", nargs=-1, required=True, metavar="REPORT...", type=click.Path(readable=False)
)


def expand(reports: Sequence[str]) -> list[Path]:
    """Return the named reports, each once, with folders and unexpanded patterns resolved.

    Raises:
        TraceFileError: a pattern matches no file, or a folder contains no report.
    """
    paths: list[Path] = []
    for report in reports:
        if os.path.isdir(report):  # noqa: PTH112  (Path raises where it may not look)
            from traceprof.trace.folder import reports_in

            paths += reports_in(Path(report))
        elif os.path.lexists(report) or not glob.has_magic(report):
            paths.append(Path(report))
        else:
            paths += _fitting(report)
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.realpath(path), path)
    return [*once.values()]


def _fitting(pattern: str) -> list[Path]:
    names = sorted(glob.glob(pattern))  # noqa: PTH207  (Path.glob takes no absolute pattern)
    if not names:
        raise TraceFileError(
            f"cannot read {pattern}", "no file fits this pattern", "check the path"
        )
    return [Path(name) for name in names]


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
