"""A server of the dashboard in this process, for any report."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from dashboards.server.serving import DashboardServer
from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Serve = Callable[[Path], str]
    """Serves a report and returns its address."""


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """Serve a run's dashboard on a free port; yields its address without a slash at the end."""
    with closing(analyze(*paths)) as analysis, DashboardServer(has_token=False) as server:
        server.show(analysis)
        yield server.url.removesuffix("/")
