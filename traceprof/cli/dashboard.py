"""`traceprof dashboard`: the Dash app, where its extra is installed."""

from __future__ import annotations

import click

from traceprof.cli.inputs import expand, progress, reports_argument
from traceprof.errors import MissingExtraError


@click.command("dashboard", short_help="Show the findings in a browser.")
@reports_argument
@click.option("--port", type=click.IntRange(1, 65535), default=8050, show_default=True)
def command(reports: tuple[str, ...], port: int) -> None:
    """Show where the time of each REPORT went, and its findings, on 127.0.0.1."""
    try:
        from dashboards.app import serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "cannot start the dashboard",
            f"the package {error.name} is not installed",
            "install the extra: pip install 'traceprof[dashboard]'",
        ) from error
    from traceprof.analysis import analyze

    with progress() as shown:
        analysis = analyze(*expand(reports), progress=shown)
    try:
        serve(analysis, port)
    finally:
        analysis.close()
