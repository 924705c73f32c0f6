"""`traceprof whatif`: what a training step would take if something were otherwise."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from traceprof.cli.completion import assumptions
from traceprof.cli.inputs import expand, print_failures, progress, reports_argument
from traceprof.cli.judging import judging_options
from traceprof.cli.output import check_output, output_options, write_output

if TYPE_CHECKING:
    from traceprof.execution.options import Options


@click.command("whatif", short_help="Say what a step would take if something were otherwise.")
@reports_argument
@click.option(
    "--assume",
    "assumed",
    metavar="NAME[=VALUE]",
    multiple=True,
    shell_complete=assumptions,
    help="Assume this: no-sync, link=2x, kernel:REGEX=0.5x and others (see docs/whatif.md)."
    " Repeatable: each is answered, then all together. Without it, every one that needs no value.",
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
@judging_options
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
    threads waited for, and where ranks met. It is checked against what was measured before it
    answers; where it does not fit, it says so, and what to record.
    """
    from rich.console import Console

    from traceprof.replay.answers.ask import whatif
    from traceprof.replay.assumptions.assumptions import parse
    from traceprof.reports import whatif_json, whatif_text
    from traceprof.reports.plain_text import plain

    for text in assumed:
        parse(text)  # a mistake is told before any report is read
    paths = expand(reports)
    check_output(output, paths)
    with progress() as shown:
        asked = whatif(*paths, assume=assumed, paths_of=paths_of, options=options, listener=shown)
    print_failures(asked.failed)
    if output_format == "json":
        write_output(whatif_json.render(asked), output)
    elif output is None and sys.stdout.isatty():
        Console().print(whatif_text.report(asked))
    else:
        write_output(plain(whatif_text.report(asked)), output)
