"""`traceprof runs`: the runs that a store holds."""

from __future__ import annotations

import sys

import click

from traceprof.errors import UsageError, one_line


@click.command("runs", short_help="List the runs that were saved in a store.")
@click.argument("store", metavar="DB")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="How to write the list; csv: a row of numbers for each run, as Apache Otava reads it.",
)
@click.option(
    "--metric",
    "metrics",
    metavar="METRIC",
    multiple=True,
    help="A column of the csv, in ns: step (the mean), compute, exposed-communication,"
    " exposed-copy, idle, or finding:ID (its cost per step). Repeatable; by default all but"
    " findings.",
)
def command(store: str, output_format: str, metrics: tuple[str, ...]) -> None:
    """List the runs in DB, which `traceprof analyze --save DB` wrote, oldest first."""
    if output_format == "csv":
        _write_csv(store, metrics)
        return
    if metrics:
        why = "it is a column of the csv"
        raise UsageError("cannot use --metric", why, "add --format csv")
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


def _write_csv(store: str, metrics: tuple[str, ...]) -> None:
    import csv

    from traceprof.comparison.stored_series import stored_series

    series = stored_series(store, metrics)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(series.columns)
    writer.writerows(series.rows)
    for reason in series.left_out:
        click.echo(f"traceprof: left out {one_line(reason)}", err=True)
