"""`traceprof info`: the contents of a report, possible analyses, and the flags to add."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared

if TYPE_CHECKING:
    from rich.table import Table

    from traceprof.progress import Progress
    from traceprof.run.opening import Run

_UNWRAPPED = 10_000  # in a pipe a fact stays on its line, for grep


@click.command(
    "info",
    epilog="Example: traceprof info recording/*.sqlite",
    short_help="Say what a report holds and what can be analysed.",
)
@shared.reports_argument
def command(reports: tuple[str, ...]) -> None:
    """Say what each REPORT holds: versions, GPUs, ranks, tables, and which flags would add more.

    Windows of ranks are exact: it reads every kernel, copy and range, and counts all other rows.

    One that cannot be read is left out, and named on stderr; if none can be read that is an error.
    """
    from rich.console import Console

    from traceprof.reports.text import plain
    from traceprof.run.guard import collected_failures
    from traceprof.run.opening import open_run
    from traceprof.run.summary import FailedReport, all_failed, try_report

    runs: list[Run] = []
    tables: list[Table] = []
    failed: list[FailedReport] = []
    with ExitStack() as opened:
        failures = opened.enter_context(collected_failures())
        with shared.progress() as shown:
            for path in shared.expand(reports):
                opened_report = try_report(path, partial(_opened, path, shown, opened))
                if isinstance(opened_report, FailedReport):
                    failed.append(opened_report)
                else:
                    runs.append(opened_report[0])
                    tables.append(opened_report[1])
        if not runs:
            raise all_failed(failed, "read")
        shared.print_failures(failed)
        if len(runs) > 1:  # together they may have other numbers
            run = open_run([capture.traces[0] for capture in runs])
            tables = [_table(run, index) for index in range(len(runs))]
        for table in tables:
            if sys.stdout.isatty():
                Console().print(table)
            else:
                click.echo(plain(table, width=_UNWRAPPED))
        shared.print_internal_errors(failures)


def _opened(path: Path, shown: Progress | None, opened: ExitStack) -> tuple[Run, Table]:
    """Open a report until `opened` is closed; return it as a run of its own, and what it holds."""
    from traceprof.run.opening import open_run
    from traceprof.trace.open import open_trace

    trace = open_trace(path, shown)
    opened.callback(trace.close)
    run = open_run([trace])
    # Read everything that can be damaged before printing anything about the others.
    return run, _table(run, 0)


def _table(run: Run, index: int) -> Table:
    from traceprof.reports import info

    return info.render(run.traces[index], run, index)
