"""The server: it shows the progress of the analysis, and then its results.

Dash is imported while the reports are analysed, as both take time. A page that a browser loads
during that time continues with the results.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dashboards.questions import Ask, CompareQuestion
from dashboards.server.guard import TOKEN, Access, is_loopback
from dashboards.server.notes import Notes
from dashboards.server.state import PROGRESS, AnalysisProgress, ReportFiles
from traceprof.analysis import Analysis
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self


Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

HOST = "127.0.0.1"
_MAX_WAIT_S = 0.5  # for news of the analysis
_FORBIDDEN = "403"
_POLL_S = 0.1  # how late the end of the server is seen
_MAX_JOIN_S = 1.0  # Python answers a signal that comes right before a wait only after it
_NUM_THREADS = 16  # that answer
_MAX_CONNECTIONS = 500
_MAX_SILENCE_S = 30  # until a connection that says nothing is closed
_MAX_UNKNOWN_SILENCE_S = 5  # until one that has not shown the token is
_MAX_BYTES = 1 << 20  # of a request; the largest that pages send are a few kilobytes
# Werkzeug parses Python, which Python 3.11 does in one thread at a time only (gh-106905).
_making_application = threading.Lock()
_IN_MEMORY = 1 << 30  # waitress does not close all files in which longer ones wait


class DashboardServer:
    """Serves the dashboard of one analysis; a context manager, which listens inside its block.

    Where it is of a file of `instrument.watch`, that is all it shows. Port 0 is any free one;
    without `notes`, those of readers are kept until the server ends. A UsageError says that the
    port is in use, or that there is no such address.
    """

    def __init__(
        self,
        host: str = HOST,
        port: int = 0,
        *,
        has_token: bool = True,
        notes: Notes | None = None,
        watched: Path | None = None,
    ) -> None:
        self._watched = watched
        self._notes = notes or Notes()
        self._socket = _listen(host, port)
        address, self._port = self._socket.getsockname()[:2]
        self._host = host
        self.is_open = not is_loopback(address)
        token = secrets.token_urlsafe(24) if has_token else None
        self.access = Access(token, self._port, self.is_open)
        self.progress = AnalysisProgress()
        self._application: Application | None = None
        self._failure: BaseException | None = None
        self._files: ReportFiles | None = None
        self._is_wanted_anew = threading.Event()
        self._is_up = threading.Event()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dashboard", daemon=True)

    @property
    def url(self) -> str:
        """The address of the dashboard: for this machine or, where it is open, for others."""
        name = self._host
        if name in {"0.0.0.0", "::", ""}:  # noqa: S104  (every address of this machine)
            name = socket.gethostname()
        if ":" in name:
            name = f"[{name}]"
        query = f"?{urlencode({TOKEN: self.access.token})}" if self.access.token else ""
        return f"http://{name}:{self._port}/{query}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.end()
        self._is_up.wait()
        self._is_ending.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Release the address, which is enough if the server never ran."""
        self._socket.close()

    def watch(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Remember the state of the files that are read from now on, to report changes."""
        self._files = ReportFiles(paths)

    def read(self) -> None:
        """Show the progress of a new reading of the reports from now on."""
        self.progress = AnalysisProgress()
        self._application = self._made(None)

    def show(
        self, analysis: Analysis, ask: Ask | None = None, compared: CompareQuestion | None = None
    ) -> None:
        """Show an analysis, of reports that stay open, from now on.

        `ask` answers questions that take long; by default, this process does.
        """
        from dashboards.questions import answer_by  # noqa: PLC0415  (with an analysis only)

        if ask is not None or compared is not None:
            answer_by(analysis, ask, compared)
        self._application = self._made(analysis)
        with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # 45 MB with two million kernels
        self.progress.end()

    def _made(self, analysis: Analysis | None) -> Application:
        # In a thread, because an interrupt inside Dash is caught there, and lost.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._application_of, analysis).result()

    def wait(self) -> bool:
        """Wait until the server has ended; return whether a reader asks to read again before.

        An exception that ended the server is raised.
        """
        while self._thread.is_alive():
            if self._is_wanted_anew.wait(_MAX_JOIN_S):
                self._is_wanted_anew.clear()
                return True
        if self._failure is not None:
            raise self._failure
        return False

    def _serve(self) -> None:
        connections: dict[int, Any] = {}
        try:
            from waitress import create_server, wasyncore  # noqa: PLC0415

            loading = self._application_of(None)
            self._application = self._application or loading
            # Neither a queue nor a connection that ends is a fault.
            logging.getLogger("waitress").setLevel(logging.ERROR)
            server = create_server(
                self._answer,
                connections,
                sockets=[self._socket],
                threads=_NUM_THREADS,
                connection_limit=_MAX_CONNECTIONS,
                channel_timeout=_MAX_SILENCE_S,
                cleanup_interval=_MAX_SILENCE_S // 3,
                max_request_body_size=_MAX_BYTES,
                inbuf_overflow=_IN_MEMORY,
                outbuf_overflow=_IN_MEMORY,
                ident=None,
            )
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._failure = error
            return
        finally:
            self._is_up.set()
        # Requests are read here as they come, and answers are sent as they are taken: a connection
        # that is slow in either takes no thread.
        while not self._is_ending.is_set():
            wasyncore.loop(timeout=_POLL_S, use_poll=True, map=connections, count=1)
            _close_unknown(connections.values())
        server.task_dispatcher.shutdown(timeout=1)
        # Who still answers finds the connection closed.
        logging.getLogger("waitress").setLevel(logging.CRITICAL)
        wasyncore.close_all(connections)

    def _application_of(self, analysis: Analysis | None) -> Application:
        from dashboards.server.app import create_app  # noqa: PLC0415  (half a second)

        progress = self.progress if analysis is None else None
        with _making_application:
            app = create_app(
                analysis,
                progress=progress,
                access=self.access,
                files=self._files,
                read_anew=None if analysis is None else self._is_wanted_anew.set,
                notes=self._notes,
                watched=self._watched,
            )
        application: Application = app.server
        return application if analysis is None else _reading(analysis, application)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        assert self._application is not None  # noqa: S101  (set before the server is up)
        if environ["PATH_INFO"] == PROGRESS:
            self.progress.wait(_MAX_WAIT_S)  # so that clients that poll notice at once

        def admit(status: str, *rest: Any) -> Any:  # noqa: ANN401  (as WSGI has it)
            if not status.startswith(_FORBIDDEN):
                environ["waitress.client_disconnected"].__self__.is_admitted = True
            return start_response(status, *rest)

        return self._application(environ, admit)


def _close_unknown(connections: Iterable[Any]) -> None:
    """Close connections that were silent for long and were not answered yet, or only refused."""
    since = time.time() - _MAX_UNKNOWN_SILENCE_S
    for connection in [*connections]:
        is_silent = getattr(connection, "last_activity", since) < since and not connection.requests
        if is_silent and not hasattr(connection, "is_admitted"):
            connection.will_close = True


def _reading(analysis: Analysis, application: Application) -> Application:
    """Return an application that keeps the reports open while it answers a request."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        with analysis.run.in_use():
            return application(environ, start_response)

    return answer


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        remedy = (
            "choose another with --port, or --port 0 for any that is free"
            if error.errno in {errno.EADDRINUSE, errno.EACCES}
            else "choose an address of this machine with --host"
        )
        # Python adds the address, which is said already.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise UsageError(f"cannot serve on {host}:{port}", why, remedy) from error
