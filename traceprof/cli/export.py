"""`traceprof export`: a run for other tools: Perfetto, Parquet, CSV."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared
from traceprof.cli.main import SuggestingGroup
from traceprof.cli.output import check_folder, check_output, filled_folder, opened_output
from traceprof.errors import MissingExtraError, one_line

if TYPE_CHECKING:
    from traceprof.execution.options import Options


@click.group(
    "export", cls=SuggestingGroup, no_args_is_help=False, short_help="Write a run for other tools."
)
def command() -> None:
    """Write what ranks did, and what was found, for other tools."""


@command.command(
    "perfetto",
    cls=shared.ReportsCommand,
    short_help="A trace for ui.perfetto.dev.",
    epilog="Example: traceprof export perfetto recording -o recording.pftrace",
)
@shared.reports_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    help="The trace to write, replaced only when all is written; - is stdout.",
)
@shared.judging_options
def perfetto(reports: tuple[str, ...], output: str, options: Options) -> None:
    """Write all ranks of a run on one clock as a trace for ui.perfetto.dev.

    Each rank is a process: findings with their evidence, steps, streams, counters of links, the
    launch queue, and threads with their marks, ranges and CUDA calls. Arrows lead from rank to rank
    through operations that are one. Above them are the critical paths of a step of median length
    and of the slowest one, if a replay fits what was measured, and the stages of pipelines with
    their passes and waits.
    """
    _need("perfetto")
    from traceprof.analysis import analyze
    from traceprof.replay.results import Refusal
    from traceprof.reports.perfetto.trace import critical_paths, write

    paths = shared.expand(reports)
    check_output(output, paths)
    with closing(analyze(*paths, options=options)) as analysis:
        shared.print_failures(analysis.result.failed)
        shared.print_internal_errors(analysis.not_applicable)
        paths_of_steps = critical_paths(analysis)
        if isinstance(paths_of_steps, Refusal):
            click.echo(f"traceprof: no critical path: {one_line(paths_of_steps.why)}", err=True)
            paths_of_steps = ()
        with shared.progress("ranks") as shown, opened_output(output) as file:
            write(analysis, file, shown, paths_of_steps)


def _of_tables(ending: str, what: str) -> None:
    @command.command(
        ending,
        cls=shared.ReportsCommand,
        short_help=f"Tables of events and results, as {what} files.",
        epilog=f"Example: traceprof export {ending} recording -o tables",
        help=f"Write the events of a run and what was measured of it as {what} files, one for each"
        " table, with units in the names of columns.\n\nkernels, copies, api_calls, ranges, marks"
        " and communication have a row for each event, in the time of its report; the others, such"
        " as steps and findings, are the lists of the JSON document; kernels_totals is called"
        " kernels there.",
    )
    @shared.reports_argument
    @click.option(
        "-o",
        "--output",
        metavar="FOLDER",
        required=True,
        help="The folder to write to; files of the same names are replaced only when"
        " all are written.",
    )
    @click.option(
        "--for-spreadsheets",
        is_flag=True,
        hidden=ending != "csv",
        help="Put an apostrophe before texts that a spreadsheet would calculate, such as =A1.",
    )
    @shared.flops_option
    @shared.judging_options
    def tables(
        reports: tuple[str, ...],
        output: str,
        flops_per_step: float | None,
        options: Options,
        *,
        for_spreadsheets: bool,
    ) -> None:
        if for_spreadsheets and ending != "csv":
            raise click.UsageError(f"{ending} files need no --for-spreadsheets")
        options = replace(options, flops_per_step=flops_per_step)
        options.check()
        if ending == "parquet":
            _need("pyarrow")
        from traceprof.analysis import analyze
        from traceprof.reports.table_files import write

        check_folder(output)
        paths = shared.expand(reports)
        with closing(analyze(*paths, options=options)) as analysis:
            shared.print_failures(analysis.result.failed)
            shared.print_internal_errors(analysis.not_applicable)
            with shared.progress("ranks") as shown, filled_folder(output) as folder:
                write(analysis, folder, ending, shown, for_spreadsheets=for_spreadsheets)


_of_tables("parquet", "Parquet")
_of_tables("csv", "CSV")


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError.of("cannot write this", package, "export")
