"""A server of the dashboard, in this process or in one of its own, for any report."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dashboards.server.app import create_app
from dashboards.server.serving import DashboardServer
from tests.support.opened import analysis_of
from tests.support.traces import SAMPLE
from traceprof.analysis import Analysis, analyze

Serve = Callable[[Path], str]
"""Serves a report and returns its address."""
Ask = Callable[..., Any]
"""Asks for a route of the timeline with parameters, and returns what the server answers."""


def asking(analysis: Analysis) -> Ask:
    """Return a function that asks the server of an analysis, which must have an answer."""
    browser = create_app(analysis).server.test_client()

    def ask(route: str, **parameters: object) -> Any:
        reply = browser.get(f"/timeline/{route}", query_string=parameters)
        assert reply.status_code == 200, reply.get_data()
        return json.loads(reply.get_data())

    return ask


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """Serve a run's dashboard on a free port; yields its address without a slash at the end."""
    opened = analysis_of(*paths) if len(paths) == 1 else closing(analyze(*paths))
    with opened as analysis, DashboardServer(has_token=False) as server:
        server.show(analysis)
        yield server.url.removesuffix("/")


@contextmanager
def running(*arguments: str, report: Path = SAMPLE) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yields the process and the address that it prints."""
    command = [sys.executable, "-m", "traceprof", "dashboard", str(report), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
