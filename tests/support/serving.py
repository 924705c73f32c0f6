"""A server of the dashboard in this process, for any report."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from werkzeug.serving import make_server

from dashboards.server.app import create_app
from dashboards.server.serving import HOST
from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Serve = Callable[[Path], str]
    """Serves a report and returns its address."""


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """Serve a report's dashboard on a free port; yields its address without a slash at the end."""
    with closing(analyze(path)) as analysis:
        server = make_server(HOST, 0, create_app(analysis).server, threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
