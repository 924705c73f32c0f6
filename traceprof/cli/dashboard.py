"""`traceprof dashboard`: the Dash app, where its extra is installed."""

from __future__ import annotations

import signal
import webbrowser
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from traceprof.cli.inputs import expand, print_failures, progress, reports_argument
from traceprof.cli.judging import judging_options
from traceprof.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from dashboards.server.serving import DashboardServer
    from traceprof.execution.measuring import Options


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
    from traceprof.execution.child_process import guarded_threads
    from traceprof.execution.memory import give_freed_memory_back, keep_freed_memory

    options.check()
    paths = expand(reports)
    with guarded_threads(), _interruptible(), DashboardServer(host, port) as server:
        click.echo(server.url)
        if server.is_open:
            click.echo(
                f"traceprof: {host} can be reached from other machines: whoever has the address"
                " with its token can see the reports",
                err=True,
            )
        if opens:
            webbrowser.open(server.url)
        from traceprof.analysis import analyze

        keep_freed_memory()
        with progress() as shown:
            server.waiting.also = shown
            analysis = analyze(
                *paths, options=options, progress=server.waiting, early=server.waiting.look
            )
        print_failures(analysis.result.failed)
        with closing(analysis):
            server.show(analysis)
            give_freed_memory_back()
            _serve(server)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C wait until an import is over.

    Two threads import at once. An interrupt inside the machinery of imports leaves a lock taken for
    which the other thread then waits for ever.
    """

    def interrupt(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    previous = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _serve(server: DashboardServer) -> None:
    try:
        server.wait()
    except KeyboardInterrupt:
        click.echo("", err=True)  # after the terminal's ^C
