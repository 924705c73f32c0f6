"""`traceprof runs`: the runs that a store holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from traceprof.cli.output import write_text
from traceprof.errors import UsageError, one_line

if TYPE_CHECKING:
    from traceprof.reports.blocks import Section
    from traceprof.store import StoredRun

_UNKNOWN = "unknown"
_COMMIT_DIGITS = 10


@click.command(
    "runs",
    epilog="Example: traceprof runs runs.db --format csv",
    short_help="List the runs that were saved in a store.",
)
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
    from traceprof.store import stored_runs

    runs = stored_runs(store)
    if output_format == "json":
        import json

        from msgspec.structs import asdict

        click.echo(json.dumps([asdict(run) for run in runs], indent=1))
        return
    from traceprof.reports.text import renderable

    write_text(renderable([_section(runs)]), None)


def _section(runs: Sequence[StoredRun]) -> Section:
    from traceprof.reports.blocks import MAX_NAME, section, table
    from traceprof.units import duration

    rows = []
    for run in runs:
        recorded = (run.recorded_utc or _UNKNOWN).rstrip("Z").replace("T", " ")
        others = f" and {len(run.hosts) - 1} more" if len(run.hosts) > 1 else ""
        names = (
            run.name,
            ", ".join(f"{key}={value}" for key, value in run.labels.items()),
            run.git_commit[:_COMMIT_DIGITS] if run.git_commit else _UNKNOWN,
            recorded,
            f"{run.hosts[0]}{others}" if run.hosts else _UNKNOWN,
        )
        step = _UNKNOWN if run.step_ns is None else duration(run.step_ns)
        rows.append((*(one_line(name, MAX_NAME) for name in names), str(run.num_ranks), step))
    headings = ("run", "labels", "commit", "recorded (UTC)", "host")
    return section("", table((*headings, "ranks", "step"), rows, text=headings))


def _write_csv(store: str, metrics: tuple[str, ...]) -> None:
    import csv

    from traceprof.comparison.sides import stored_series

    series = stored_series(store, metrics)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(series.columns)
    writer.writerows(series.rows)
    for reason in series.left_out:
        click.echo(f"traceprof: left out {one_line(reason)}", err=True)
