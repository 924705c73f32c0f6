"""`traceprof dashboard`: the Dash app, where its extra is installed."""

from __future__ import annotations

import webbrowser
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from traceprof.cli.inputs import expand, print_failures, progress, reports_argument
from traceprof.cli.judging import judging_options
from traceprof.errors import MissingExtraError

if TYPE_CHECKING:
    from dashboards.server.serving import DashboardServer
    from traceprof.execution.options import Options


@click.command("dashboard", short_help="Show the findings in a browser.")
@reports_argument
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at. Elsewhere than on loopback a token is asked for.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8050,
    show_default=True,
    help="The port to listen at; 0 takes any that is free.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@judging_options
def command(reports: tuple[str, ...], host: str, port: int, opens: bool, options: Options) -> None:
    """Show where the time of each REPORT went, and its findings, in a browser.

    Everything is served from this machine; no network is needed. Ctrl-C ends it.
    """
    for package in ("dash", "dash_ag_grid"):
        if find_spec(package) is None:
            raise MissingExtraError(
                "cannot start the dashboard",
                f"the package {package} is not installed",
                "install the extra: pip install 'traceprof[dashboard]'",
            )
    from dashboards.server.serving import DashboardServer
    from traceprof.analysis import begun_analysis
    from traceprof.execution.memory import give_freed_memory_back, keep_freed_memory

    options.check()
    paths = expand(reports)
    server = DashboardServer(host, port)
    keep_freed_memory()
    with ExitStack() as stack:
        stack.callback(server.close)
        with progress() as bar:
            server.progress.also = bar
            begun = begun_analysis(*paths, options=options, listener=server.progress)
            with begun as analysis_of_reports:  # not before a report could be opened
                stack.enter_context(server)
                _announce(server, host, opens=opens)
                analysis = analysis_of_reports()
        print_failures(analysis.result.failed)
        stack.enter_context(closing(analysis))
        server.show(analysis)
        give_freed_memory_back()
        try:
            server.wait()
        except KeyboardInterrupt:
            click.echo("", err=True)  # after the terminal's ^C


def _announce(server: DashboardServer, host: str, *, opens: bool) -> None:
    """Say where the dashboard is, and open it in the browser if that is wanted."""
    click.echo(server.url)
    if server.is_open:
        click.echo(
            f"traceprof: {host} can be reached from other machines: whoever has the address"
            " with its token can see the reports",
            err=True,
        )
    if opens:
        webbrowser.open(server.url)
