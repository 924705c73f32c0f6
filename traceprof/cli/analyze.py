"""`traceprof analyze`: findings with their evidence, as text, JSON or HTML."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import click

from traceprof.cli.inputs import expand, print_failures, progress, reports_argument
from traceprof.cli.judging import judging_options
from traceprof.cli.main import EXIT_DONE, EXIT_FINDINGS, EXIT_LEFT_OUT
from traceprof.cli.output import STDOUT, check_output, write_output
from traceprof.errors import UsageError
from traceprof.findings import Severity
from traceprof.units import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.analyses.run_result import RunResult
    from traceprof.execution.options import Options
    from traceprof.run.windows import Range

_SEVERITIES = [str(severity) for severity in Severity]


@click.command("analyze", short_help="Say where the time went and what to change.")
@reports_argument
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="How to write the result.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the result to FILE, which is replaced only when all is written; - is stdout.",
)
@judging_options
@click.option("--steps", metavar="A:B", help="Only training steps A up to, not including, B.")
@click.option(
    "--time-range",
    metavar="A:B",
    help="Only this span of the report's own time, in ns or with a unit: 1.5s:1.7s.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="How many processes may analyse: reports side by side, and the ranks of a report; by"
    " default one for each processor core. Small reports are analysed by fewer.",
)
@click.option(
    "--scheduler",
    metavar="tcp://HOST:PORT",
    help="Analyse on the workers of this Dask cluster instead. They open the reports by the paths"
    " given here, so they need the same file system, and the same traceprof.",
)
@click.option(
    "--fail-on",
    type=click.Choice(_SEVERITIES),
    help="Exit with 1 if there is a finding of this severity or above.",
)
@click.option(
    "--strict",
    "is_strict",
    is_flag=True,
    help="Exit with 3 if a report was left out, whatever was found in the others.",
)
def command(
    reports: tuple[str, ...],
    output_format: str,
    output: str | None,
    options: Options,
    steps: str | None,
    time_range: str | None,
    jobs: int | None,
    scheduler: str | None,
    fail_on: str | None,
    is_strict: bool,
) -> int:
    """Say where the time of each rank went, what the findings cost, and what to change.

    REPORTs are Nsight Systems exports (nsys export --type=sqlite) of one run, folders of them, or
    patterns. One that cannot be read is left out, and named on stderr and in the result; if none
    can be read that is an error.

    Exit status: 0 done; 1 a finding at or above --fail-on; 2 an error; 3 with --strict, reports
    were left out.
    """
    from traceprof.analysis import analyze_reports
    from traceprof.execution.memory import keep_freed_memory

    keep_freed_memory()
    options = replace(
        options,
        steps=_range(steps, "--steps", _step_number) if steps else None,
        time_range=_range(time_range, "--time-range", parse_time) if time_range else None,
    )
    paths = expand(reports)
    check_output(output, paths)
    with progress("rows" if len(paths) == 1 else "reports") as shown:
        analysis = analyze_reports(paths, options, jobs=jobs, scheduler=scheduler, listener=shown)
    print_failures(analysis.failed)
    _write(analysis, output_format, output)
    if is_strict and analysis.failed:
        return EXIT_LEFT_OUT
    if fail_on is not None and any(
        finding.severity >= Severity[fail_on.upper()] for finding in analysis.findings
    ):
        return EXIT_FINDINGS
    return EXIT_DONE


def _range(text: str, option: str, read: Callable[[str], int]) -> Range:
    start, colon, end = text.partition(":")
    if not colon or not (start.strip() or end.strip()):
        raise UsageError(
            f"cannot read {option} {text!r}", "it is not a range", "write A:B, A: or :B"
        )
    return (
        read(start) if start.strip() else None,
        read(end) if end.strip() else None,
    )


def _step_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(
            f"cannot read the step {text!r}", "it is not a whole number", "write A:B, such as 5:10"
        ) from error


def _write(analysis: RunResult, output_format: str, output: str | None) -> None:
    if output_format == "text" and output in {None, STDOUT} and sys.stdout.isatty():
        from rich.console import Console

        from traceprof.reports import text

        text.render(analysis, Console())
        return
    rendered = import_module(f"traceprof.reports.{output_format}").render(analysis)
    write_output(rendered, output)
