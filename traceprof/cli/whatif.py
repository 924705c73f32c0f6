"""`traceprof whatif`: the length of a training step under assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared
from traceprof.cli.output import check_output, output_options, write_output, write_text

if TYPE_CHECKING:
    from traceprof.execution.options import Options


class _Command(shared.ReportsCommand):
    """A command whose help lists all assumptions; they are imported only for that."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        from traceprof.replay.assumptions.table import ASSUMPTIONS

        with formatter.section("Assumptions"):
            formatter.write_dl([(entry.form, entry.meaning) for entry in ASSUMPTIONS])
        formatter.write_paragraph()
        formatter.write_text("Example: traceprof whatif recording --assume no-host-stall")


@click.command("whatif", cls=_Command, short_help="Estimate a step's time under an assumption.")
@shared.reports_argument
@click.option(
    "--assume",
    "assumed",
    metavar="NAME[=VALUE]",
    multiple=True,
    shell_complete=shared.assumptions,
    help="Make this assumption (see the list below). Repeatable: each is"
    " answered by itself, then all together. By default, all that need no"
    " value of yours are answered.",
)
@click.option(
    "--path-of",
    "paths_of",
    metavar="STEP",
    type=int,
    multiple=True,
    help="Show the critical path of this step: which calls and operations it runs through."
    " Repeatable; JSON has all parts.",
)
@output_options("text", "json")
@shared.judging_options
def command(
    reports: tuple[str, ...],
    assumed: tuple[str, ...],
    paths_of: tuple[int, ...],
    output_format: str,
    output: str | None,
    options: Options,
) -> None:
    """Replay the training steps of a run as if something were otherwise.

    The replay keeps what was recorded: which call launched which operation, what streams and
    threads waited for, and which ranks waited for each other. It is checked against what was
    measured before it answers; where it does not fit, it says so, and what to record.
    """
    from traceprof.documents.whatif import document
    from traceprof.replay.assumptions.assumption import parse
    from traceprof.replay.whatif import whatif
    from traceprof.reports.json import render_document
    from traceprof.reports.text import renderable
    from traceprof.reports.whatif_text import answers_section

    for assumption in assumed:
        parse(assumption)  # report mistakes before any report is read
    paths = shared.expand(reports)
    check_output(output, paths)
    with shared.progress() as shown:
        answers = whatif(*paths, assume=assumed, paths_of=paths_of, options=options, listener=shown)
    shared.print_failures(answers.failed)
    shared.print_internal_errors(answers.missing)
    if output_format == "json":
        write_output([render_document(document(answers))], output)
        return
    write_text(renderable([answers_section(answers)]), output)
