"""The server: it answers at once, shows how far the analysis is, and then its results.

Dash is imported while the reports are read, which both takes time; what a browser has loaded
meanwhile goes on with the results.
"""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dashboards.server.access import TOKEN, Access, is_loopback
from dashboards.server.progress import PROGRESS, AnalysisProgress
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self
    from werkzeug.serving import BaseWSGIServer

    from traceprof.analysis import Analysis

    Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

HOST = "127.0.0.1"
_POLL_S = 0.5


class DashboardServer:
    """Serves the dashboard of one analysis; a context, in which it listens.

    Args:
        host: the address to listen at; loopback only, or a token is asked for.
        port: 0 for any that is free.

    Attributes:
        url: where it is, the token included where there is one.
        is_open: whether others than this machine reach it.
        progress: how far the analysis is; who makes it tells.

    Raises:
        UsageError: the port is taken, or there is no such address.
    """

    def __init__(self, host: str = HOST, port: int = 0) -> None:
        self._socket = _listen(host, port)
        self._host, self._port = host, self._socket.getsockname()[1]
        self.is_open = not is_loopback(self._socket.getsockname()[0])
        self._token = secrets.token_urlsafe(24) if self.is_open else None
        self.progress = AnalysisProgress()
        self._application: Application | None = None
        self._server: BaseWSGIServer | None = None
        self._failure: BaseException | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dashboard", daemon=True)

    @property
    def url(self) -> str:
        """Where the dashboard is, for this machine's browser or, where it is open, for others."""
        name = self._host
        if name in {"0.0.0.0", "::", ""}:  # noqa: S104  (every address of this machine)
            name = socket.gethostname()
        if ":" in name:
            name = f"[{name}]"
        query = f"?{urlencode({TOKEN: self._token})}" if self._token else ""
        return f"http://{name}:{self._port}/{query}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.end()
        self._is_up.wait()
        if self._server is not None:
            self._server.shutdown()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Give the address back; where it never served, that is all there is to do."""
        self._socket.close()

    def show(self, analysis: Analysis) -> None:
        """Show an analysis from now on."""
        from dashboards.server.app import create_app  # noqa: PLC0415  (the thread imports it meanwhile)

        # In a thread, because an interrupt inside Dash is caught there, and lost.
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(create_app, analysis, access=Access(self._token)).result()
        self._application = made.server
        self.progress.end()

    def wait(self) -> None:
        """Return when the server has ended.

        Raises:
            Exception: what ended it.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        self._begin()
        if self._server is not None:
            self._server.serve_forever(poll_interval=0.1)
            self._server.server_close()

    def _begin(self) -> None:
        """Import what answers, and listen."""
        try:
            from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

            from dashboards.server.app import create_app  # noqa: PLC0415  (half a second)

            class Handler(WSGIRequestHandler):
                """Logs nothing of what goes well."""

                def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                    del code, size

            loading = create_app(None, progress=self.progress, access=Access(self._token))
            self._application = self._application or loading.server
            self._server = make_server(
                self._host,
                self._port,
                self._answer,
                threaded=True,
                request_handler=Handler,
                fd=self._socket.fileno(),
            )
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._failure = error
        finally:
            self._is_up.set()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401
        assert self._application is not None  # noqa: S101  (set before the server is up)
        if environ["PATH_INFO"] == PROGRESS:
            from werkzeug.wrappers import Request  # noqa: PLC0415  (it is there by now)

            # So that who asks again and again learns at once.
            self.progress.wait(_POLL_S, Request(environ).args.get("previews", type=int))
        return self._application(environ, start_response)


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
