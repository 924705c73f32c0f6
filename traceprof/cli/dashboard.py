"""`traceprof dashboard`: the Dash app, where its extra is installed."""

from __future__ import annotations

import webbrowser
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceprof.cli import options as shared
from traceprof.errors import MissingExtraError

if TYPE_CHECKING:
    from dashboards.questions import Question
    from dashboards.server.serving import DashboardServer
    from traceprof.analysis import Analysis
    from traceprof.execution.options import Options
    from traceprof.progress import Progress


@click.command(
    "dashboard",
    cls=shared.ReportsCommand,
    epilog="Example: traceprof dashboard recording",
    short_help="Show the findings in a browser.",
)
@click.argument("reports", nargs=-1, metavar="REPORT...", type=shared.ReportPath())
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8050,
    show_default=True,
    help="The port to listen on; 0 picks a free one.",
)
@click.option(
    "--no-token",
    "has_token",
    flag_value=False,
    default=True,
    help="Require no token: anyone who can reach the address, including every"
    " user of this machine, can see the reports.",
)
@click.option(
    "--before",
    metavar="SIDE",
    multiple=True,
    help="A side for the page Compare: a report, a folder, a saved analysis or runs.db#NAME, as in"
    " traceprof compare. Repeatable.",
)
@click.option(
    "--notes",
    "notes_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the notes that readers write in this file; without it they are kept until the"
    " dashboard ends.",
)
@click.option(
    "--watch",
    "watched",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show what instrument.watch wrote to this file, also while the training runs, in place of"
    " reports.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@shared.flops_option
@shared.judging_options
def command(
    reports: tuple[str, ...],
    host: str,
    port: int,
    has_token: bool,
    before: tuple[str, ...],
    notes_path: Path | None,
    watched: Path | None,
    opens: bool,
    flops_per_step: float | None,
    options: Options,
) -> None:
    """Show where the time of each REPORT went, and its findings, in a browser.

    Everything is served from this machine; no network is needed. The address that is printed
    holds a token, which lets a browser in. Ctrl-C ends it.
    """
    for package in ("dash", "dash_ag_grid", "waitress"):
        if find_spec(package) is None:
            raise MissingExtraError.of("cannot start the dashboard", package, "dashboard")
    from dashboards.questions import CompareQuestion
    from dashboards.server.notes import Notes
    from dashboards.server.serving import DashboardServer
    from traceprof.analysis import analyze_in_worker

    options = replace(options, flops_per_step=flops_per_step)
    options.check()
    if bool(reports) == (watched is not None):
        raise click.UsageError("Name reports, or the file of a watch: --watch FILE.")
    if watched is not None:
        _show_watched(
            DashboardServer(host, port, has_token=has_token, watched=watched), host, opens=opens
        )
        return
    paths = shared.expand(reports)
    compared = CompareQuestion(before, options) if before else None
    server = DashboardServer(host, port, has_token=has_token, notes=Notes(notes_path))
    is_first, is_wanted = True, True
    with ExitStack() as stack:
        stack.callback(server.close)
        opened = stack.enter_context(ExitStack())  # closed when the server has ended
        while is_wanted:
            server.watch(paths)
            reading = stack.enter_context(ExitStack())
            with shared.progress() as bar:
                server.progress.also = bar
                future = reading.enter_context(
                    analyze_in_worker(
                        *paths, options=options, listener=server.progress, answer=_answer
                    )
                )
            if is_first:
                stack.enter_context(server)  # not before a report could be read
                _announce(server, host, opens=opens)
            analysis = future.result()
            shared.print_failures(analysis.result.failed)
            opened.enter_context(closing(analysis))
            server.show(analysis, future.ask, compared)
            try:
                is_first, is_wanted = False, server.wait()
            except KeyboardInterrupt:
                click.echo("", err=True)  # after the terminal's ^C
                break
            if is_wanted:
                server.read()
                opened.close()
                reading.close()


def _show_watched(server: DashboardServer, host: str, *, opens: bool) -> None:
    with server:
        _announce(server, host, opens=opens)
        try:
            server.wait()
        except KeyboardInterrupt:
            click.echo("", err=True)


def _answer(analysis: Analysis, question: Question, progress: Progress) -> object:
    from dashboards.questions import answered

    return answered(analysis, question, progress)


def _announce(server: DashboardServer, host: str, *, opens: bool) -> None:
    click.echo(server.url)
    if server.is_open:
        who = "anyone with the address and its token" if server.access.token else "anyone who asks"
        click.echo(
            f"traceprof: {host} can be reached from other machines: {who} can see the reports",
            err=True,
        )
    if opens:
        webbrowser.open(server.url)
