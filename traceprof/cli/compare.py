"""`traceprof compare`: the effect of a change, and where it shows."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared
from traceprof.cli.main import EXIT_DONE, EXIT_FINDINGS
from traceprof.cli.output import STDOUT, check_output, output_options, write_output, write_text
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.documents.comparison import Comparison
    from traceprof.execution.options import Options

_FORMATS = ["text", "json", "markdown", "junit", "html"]
_READ_BY_PEOPLE = ("text", "markdown")


@click.command(
    "compare",
    cls=shared.ReportsCommand,
    epilog="Example: traceprof compare before/ after/ --gate step:+2%",
    short_help="Say whether a change helped, and where.",
)
@click.argument("before", required=False, metavar="BEFORE", type=shared.ReportPath())
@click.argument("after", required=False, metavar="AFTER", type=shared.ReportPath())
@click.option(
    "--before",
    "more_before",
    metavar="SIDE",
    multiple=True,
    help="Add to the side before: the report of another rank, or another recording. Repeatable.",
)
@click.option(
    "--after",
    "more_after",
    metavar="SIDE",
    multiple=True,
    help="Add to the side after. Repeatable.",
)
@click.option(
    "--gate",
    "gates",
    metavar="METRIC:LIMIT",
    multiple=True,
    help="Exit with 1 if this limit is exceeded: step:+2%, idle:+0.5ms,"
    " exposed-communication:+1pp (of the step), finding:ID (absent). Metrics are step, compute,"
    " exposed-communication, exposed-copy and idle. A limit that cannot be checked counts as"
    " exceeded. Repeatable.",
)
@click.option(
    "--allow-different",
    "allow_different",
    metavar="KIND",
    multiple=True,
    help="Compare although the sides differ in this: gpu, world-size, clocks, steps; or"
    " although both are the same recording: recording. Without it the"
    " verdict is 'not comparable', and every gate fails. Repeatable.",
)
@click.option(
    "--one-recording",
    is_flag=True,
    help="Judge gates by these recordings alone, though other runs of one program may differ.",
)
@click.option(
    "--runs",
    metavar="DB",
    type=shared.ReportPath(),
    help="A store with runs of the unchanged program: how much these differ is taken from them.",
)
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Of the runs in --runs, take those with this label. Repeatable.",
)
@output_options(*_FORMATS)
@click.option(
    "--annotations",
    type=click.Choice(["github"]),
    help="Also write failed gates as annotations of the job: to stdout, or to stderr if stdout"
    " has a result for programs.",
)
@shared.judging_options
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of processes; by default one for each processor core.",
)
def command(
    before: str | None,
    after: str | None,
    more_before: tuple[str, ...],
    more_after: tuple[str, ...],
    gates: tuple[str, ...],
    allow_different: tuple[str, ...],
    one_recording: bool,
    runs: str | None,
    labels: tuple[str, ...],
    output_format: str,
    output: str | None,
    annotations: str | None,
    options: Options,
    jobs: int | None,
) -> int:
    """Compare a recording AFTER a change with one BEFORE it.

    A side is a report, a folder of the reports of a run, a saved analysis (analyze --format json),
    or a saved run (runs.db#NAME). Several reports on a side are ranks of one recording if they were
    recorded together, else recordings of their own: then the interval is over recordings.

    Exit status: 0 done; 1 a gate is not met; 2 an error.
    """
    from traceprof.comparison.ask import compared, without_predictions
    from traceprof.comparison.gates import parse
    from traceprof.comparison.sides import check_allowed, files_of, loaded, stored_with

    check_allowed(allow_different)
    limits = [parse(gate) for gate in gates]  # report mistakes before any report is read
    sides = [_sources(before, more_before), _sources(after, more_after)]
    for name, side in zip(("before", "after"), sides, strict=True):
        if not side:
            why = f"nothing is given for the side {name}"
            raise UsageError("cannot compare", why, "write traceprof compare BEFORE AFTER")
    earlier = () if runs is None else stored_with(runs, shared.read_labels(labels))
    check_output(output, [file for side in sides for file in files_of(side)])
    is_single = all(len(side) == 1 and not os.path.isdir(side[0]) for side in sides)  # noqa: PTH112
    with shared.progress("rows" if is_single else "reports") as shown:
        first = loaded(sides[0], options, listener=shown, jobs=jobs)
        second = loaded(sides[1], without_predictions(options), listener=shown, jobs=jobs)
    captures = [capture for side in (first, second) for capture in side.captures]
    shared.print_internal_errors(gap for capture in captures for gap in capture.not_applicable)
    comparison = compared(
        first, second, limits, allow_different, earlier, one_recording=one_recording
    )
    _write(comparison, output_format, output)
    if annotations is not None:
        from traceprof.reports.junit import github_annotations

        is_free = output not in {None, STDOUT} or output_format in _READ_BY_PEOPLE
        click.echo(github_annotations(comparison), nl=False, err=not is_free)
    return EXIT_DONE if comparison.is_met else EXIT_FINDINGS


def _sources(first: str | None, others: Sequence[str]) -> list[str]:
    from traceprof.comparison.sides import run_of_store

    sources = []
    for source in (*([] if first is None else [first]), *others):
        is_pattern = glob.has_magic(source) and not os.path.lexists(source)
        if is_pattern and run_of_store(source) is None:
            sources += [str(path) for path in shared.expand([source])]
        else:
            sources.append(source)
    return sources


def _write(comparison: Comparison, output_format: str, output: str | None) -> None:
    if output_format == "text":
        from traceprof.reports.comparison_sections import comparison_report

        write_text(comparison_report(comparison), output)
        return
    module = import_module(f"traceprof.reports.{output_format}")
    write_output([module.render_comparison(comparison)], output)
