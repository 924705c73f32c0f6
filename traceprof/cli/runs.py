"""`traceprof runs`: the runs that a store holds."""

from __future__ import annotations

import sys

import click


@click.command("runs", short_help="List the runs that were saved in a store.")
@click.argument("store", metavar="DB")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write the list.",
)
def command(store: str, output_format: str) -> None:
    """List the runs in DB, which `traceprof analyze --save DB` wrote, the oldest first."""
    from traceprof.reports import runs_list
    from traceprof.store.runs import stored_runs

    runs = stored_runs(store)
    if output_format == "json":
        click.echo(runs_list.as_json(runs), nl=False)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(runs_list.table(runs))
    else:
        from traceprof.reports.plain_text import plain

        click.echo(plain(runs_list.table(runs)), nl=False)
