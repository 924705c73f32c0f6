"""What the commands that read reports share: their arguments, and progress on a terminal."""

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
    """Return the reports named, each once, with patterns that the shell left alone filled in.

    Raises:
        TraceFileError: a pattern fits no file.
    """
    paths: list[Path] = []
    for report in reports:
        if os.path.lexists(report) or not glob.has_magic(report):
            paths.append(Path(report))
            continue
        found = sorted(glob.glob(report))  # noqa: PTH207  (Path.glob takes no absolute pattern)
        if not found:
            raise TraceFileError(
                f"cannot read {report}", "no file fits this pattern", "check the path"
            )
        paths += [Path(each) for each in found]
    return list({os.path.realpath(path): path for path in reversed(paths)}.values())[::-1]


def print_failures(lost: Iterable[FailedReport]) -> None:
    """Name on stderr the reports that were left out, and why."""
    for each in lost:
        click.echo(f"traceprof: left out: {each.error}", err=True)


@contextmanager
def progress(unit: str = "rows") -> Iterator[CountBar | None]:
    """Show a bar on stderr while reports are read, if stderr is a terminal.

    Args:
        unit: what it counts.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from traceprof.cli.progress import CountBar

    with CountBar(unit) as bar:
        yield bar
