"""`traceprof analyze`: findings with their evidence, as text, JSON, HTML or Markdown."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared
from traceprof.cli.main import EXIT_DONE, EXIT_FINDINGS, EXIT_LEFT_OUT
from traceprof.cli.output import STDOUT, check_output, output_options, write_output, write_text
from traceprof.errors import UsageError, one_line
from traceprof.findings import Severity
from traceprof.units import parse_time

if TYPE_CHECKING:
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.execution.options import Options
    from traceprof.run.windows import Range

_SEVERITIES = [str(severity) for severity in Severity]


@click.command(
    "analyze",
    cls=shared.ReportsCommand,
    epilog="Example: traceprof analyze recording --only gpu-idle,host-sync",
    short_help="Say where the time went and what to change.",
)
@shared.reports_argument
@output_options("text", "json", "html", "markdown")
@shared.judging_options
@click.option("--steps", metavar="A:B", help="Only training steps A up to, not including, B.")
@click.option(
    "--time-range",
    metavar="A:B",
    help="Only this span on the report's own clock, in ns or with a unit:"
    " 1.5s:1.7s. A single : selects all of it, including the time before"
    " and after the training.",
)
@click.option(
    "--kernels",
    "shows_kernels",
    is_flag=True,
    help="Show which kernels take the time, by name. (JSON always has them all.)",
)
@click.option(
    "--verbose",
    "is_verbose",
    is_flag=True,
    help="Show the full text instead of at most 60 lines. (JSON is always complete.)",
)
@shared.flops_option
@click.option(
    "--savings/--no-savings",
    default=None,
    help="Replay training steps without each finding, or give only bounds of the saving. By default"
    " steps are replayed unless many reports would have to be read again.",
)
@click.option(
    "--save",
    "store",
    metavar="DB",
    help="Also save the result in this store of runs: a SQLite file, created if missing.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the saved run, unique in its store; by default that of its first report.",
)
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="A label of the saved run, such as commit=1a2b3c4 or batch=64. Repeatable.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of processes, which analyse reports and the ranks of a"
    " report in parallel; by default one for each processor core. Small"
    " reports use fewer.",
)
@click.option(
    "--scheduler",
    metavar="tcp://HOST:PORT",
    help="Analyse on the workers of this Dask cluster instead. They open the reports by the paths"
    " given here, so they need the same file system, and the same traceprof. With tls:// the"
    " certificates are those of Dask's configuration. Anyone who reaches the scheduler can run code"
    " on its workers.",
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
    shows_kernels: bool,
    is_verbose: bool,
    flops_per_step: float | None,
    savings: bool | None,
    store: str | None,
    name: str | None,
    labels: tuple[str, ...],
    jobs: int | None,
    scheduler: str | None,
    fail_on: str | None,
    is_strict: bool,
) -> int:
    """Say where the time of each rank went, what the findings cost, and what to change.

    REPORTs are Nsight Systems exports (nsys export --type=sqlite) or traces of torch.profiler of
    one run, folders of them, or patterns. One that cannot be read is left out, and named on stderr
    and in the result; if none can be read that is an error.

    Exit status: 0 done; 1 a finding at or above --fail-on; 2 an error; 3 with --strict, reports
    were left out.
    """
    from traceprof.analysis import analyze_reports
    from traceprof.documents.watched import is_watched

    options = replace(
        options,
        steps=None if steps is None else _range(steps, "--steps", _step_number),
        time_range=None if time_range is None else _time_range(time_range),
        savings=savings,
        flops_per_step=flops_per_step,
        measures_all=shows_kernels or store is not None,
    )
    options.check()
    labels_by_key = shared.read_labels(labels)
    if store is None and (name is not None or labels):
        option = "--label" if name is None else "--name"
        raise UsageError(f"cannot use {option}", "no run is saved", "say where: --save runs.db")
    if store is not None:
        from traceprof.store import check

        check(store, name)
        if output not in {None, STDOUT} and os.path.realpath(store) == os.path.realpath(output):
            why = "it is also the store of --save"
            raise UsageError(f"cannot write {output}", why, "choose another name for one of them")
    paths = shared.expand(reports)
    check_output(output, paths)
    if len(paths) == 1 and scheduler is None and is_watched(paths[0]):  # else workers have it
        return _show_watched(paths[0], output_format, output)
    with shared.progress("rows" if len(paths) == 1 and scheduler is None else "reports") as shown:
        analysis = analyze_reports(paths, options, jobs=jobs, scheduler=scheduler, listener=shown)
    shared.print_failures(analysis.failed)
    try:
        if store is not None:
            _save(analysis, store, name, labels_by_key)
    finally:  # a full disk must not cost the result
        _write(
            analysis,
            options,
            output_format,
            output,
            shows_kernels=shows_kernels,
            is_verbose=is_verbose,
        )
    if is_strict and analysis.failed:
        return EXIT_LEFT_OUT
    if fail_on is not None and any(
        finding.severity >= Severity(fail_on) for finding in analysis.findings
    ):
        return EXIT_FINDINGS
    return EXIT_DONE


def _show_watched(path: Path, output_format: str, output: str | None) -> int:
    from traceprof.documents.watched import read_windows, watched
    from traceprof.reports import watched_text
    from traceprof.reports.json import render_document

    if output_format not in {"text", "json"}:
        what, why = f"cannot write {output_format}", f"{path} holds what instrument.watch wrote"
        raise UsageError(what, why, "choose --format text or json")
    found = watched(path, read_windows(path))
    render = render_document if output_format == "json" else watched_text.render
    write_output([render(found)], output)
    return EXIT_DONE


def _time_range(text: str) -> Range:
    if text.strip() == ":":
        return None, None
    return _range(text, "--time-range", parse_time)


def _range(text: str, option: str, read: Callable[[str], int]) -> Range:
    start, colon, end = text.partition(":")
    if not colon or not (start.strip() or end.strip()):
        raise UsageError(
            f"cannot read {option} {text!r}", "it is not a range", "write A:B, A: or :B"
        )
    return (read(start) if start.strip() else None, read(end) if end.strip() else None)


def _step_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(
            f"cannot read the step {text!r}", "it is not a whole number", "write A:B, such as 5:10"
        ) from error


def _save(analysis: RunResult, store: str, name: str | None, labels: dict[str, str]) -> None:
    from traceprof.store import save

    saved = save(store, analysis, name, labels)
    click.echo(f"traceprof: saved as {saved!r} in {one_line(store)}", err=True)


def _write(
    analysis: RunResult,
    options: Options,
    output_format: str,
    output: str | None,
    *,
    shows_kernels: bool,
    is_verbose: bool,
) -> None:
    if output_format == "text":
        from traceprof.reports.text import report

        write_text(report(analysis, shows_kernels=shows_kernels, is_verbose=is_verbose), output)
    elif output_format == "json":
        from traceprof.reports.json import pieces

        write_output(pieces(analysis), output)
    elif output_format == "markdown":
        from traceprof.reports import markdown

        write_output([markdown.render(analysis, shows_kernels=shows_kernels)], output)
    else:
        from traceprof.reports import html
        from traceprof.reports.tracks import scenes

        drawn = scenes(analysis, options)
        write_output([html.render(analysis, shows_kernels=shows_kernels, scenes=drawn)], output)
