"""Request checks: every request passes them before Dash sees it.

Requests can come from other users of this machine, from other machines if the server is open, from
any page in the same browser, and through a foreign name that a name server resolves to this machine
(DNS rebinding). So a request must carry the printed token, or the cookie that replaces it. Without
a token, it must be sent to a name of this machine. Requests from pages of other sites are refused,
except a link that a user follows. What Dash cannot make sense of is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from dash import Dash
from dash.exceptions import DependencyException
from flask import Response, abort, redirect, request
from werkzeug.exceptions import BadRequest, HTTPException, InternalServerError, NotFound

from traceprof.errors import UsageError, one_line

if TYPE_CHECKING:
    from flask import Flask
    from werkzeug.wrappers import Response as AnyResponse

TOKEN = "token"  # noqa: S105  (the name of the parameter)


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a server."""

    token: str | None = None  # required once from each browser; None if no token is required
    # the server's port; part of the cookie's name, as browsers send cookies to all ports
    port: int = 0
    is_open: bool = False  # whether other machines can reach the server

    @property
    def cookie_name(self) -> str:
        """The name of the cookie: each port has its own."""
        return f"traceprof-{self.port}"

    @property
    def cookie(self) -> str:
        """The content of the cookie, which does not reveal the token."""
        assert self.token is not None  # noqa: S101  (asked for only with one)
        return hmac.new(self.token.encode(), b"traceprof cookie", "sha256").hexdigest()

    def is_known_host(self, name: str) -> bool:
        """Return whether the host in a request is accepted as this machine.

        An open server accepts every IP address, but no name that a foreign name server resolves.
        """
        if is_loopback(name):
            return True
        if not self.is_open:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {socket.gethostname().lower(), socket.getfqdn().lower()}
        return True


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_MAX_BYTES = 1 << 20  # of a request; the largest that pages send are a few kilobytes
_CALLBACKS = "/_dash-update-component"
LINK = "/link"
"""The path that returns the token, for the button that copies a link with it."""

_log = logging.getLogger("traceprof.dashboard")


def protect(app: Dash, access: Access) -> None:
    """Check all requests to an application, and add security headers to its replies."""
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = _MAX_BYTES

    def check() -> AnyResponse | None:
        _check_origin()
        return _check_host(access) if access.token is None else _check_token(access, access.token)

    # Before Dash's own, which prepares the application for its first request.
    server.before_request_funcs.setdefault(None, []).insert(0, check)
    server.register_error_handler(Exception, _answer)
    server.add_url_rule(LINK, "link", view_func=lambda: {TOKEN: access.token})
    policy: list[str] = []
    # What holds no data may be kept by browsers.
    kept = (f"/{app.config.assets_url_path}/", "/_dash-component-suites/")

    def add_headers(response: Response) -> Response:
        if not policy:  # Dash knows its scripts once it has served a page
            policy.append(_content_policy(app))
        response.headers.update(
            {
                "Content-Security-Policy": policy[0],
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Opener-Policy": "same-origin",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        if request.path.startswith(kept[0]):
            response.cache_control.immutable = True
        elif not request.path.startswith(kept):
            response.headers["Cache-Control"] = "no-store"
        return response

    server.after_request(add_headers)


def _content_policy(app: Dash) -> str:
    """Return what a page may load: only what we serve, and Dash's own inline script.

    Styles must be allowed inline: Dash and AG Grid write them into the page.
    """
    scripts = " ".join(["'self'", *app.csp_hashes()])
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self' data:",  # AG Grid's icons
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _check_origin() -> None:
    """Refuse what the page of another site asks for; a link on it may be followed."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is None:  # not a browser, or one of before 2023
        origin = request.headers.get("Origin")
        is_ours = origin is None or urlsplit(origin).netloc == request.host
    else:
        is_link = request.method == "GET" and (
            request.headers.get("Sec-Fetch-Mode"),
            request.headers.get("Sec-Fetch-Dest"),
        ) == ("navigate", "document")
        is_ours = site in {"same-origin", "none"} or is_link
    if not is_ours:
        abort(403, "the page of another site asked for this")


def _check_host(access: Access) -> AnyResponse | None:
    # The port may be another: the dashboard of a far machine comes through a tunnel.
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        host = ""
    if not access.is_known_host(host):
        abort(403, f"this dashboard is not at {request.host!r}")
    # A link from a time when there was a token.
    return _without_token() if TOKEN in request.args else None


def _check_token(access: Access, token: str) -> AnyResponse | None:
    given = request.args.get(TOKEN)
    is_known = _is_same(request.cookies.get(access.cookie_name, ""), access.cookie)
    if given is None and is_known:
        return None
    if given is None or not (is_known or _is_same(given, token)):
        abort(403, "open the address that traceprof printed, with its token")
    # So that the token does not stay in the address bar.
    response = _without_token()
    # Lax: a link in a mail that leads here carries it along.
    response.set_cookie(access.cookie_name, access.cookie, httponly=True, samesite="Lax")
    return response


def _without_token() -> AnyResponse:
    rest = [(key, value) for key, value in request.args.items(multi=True) if key != TOKEN]
    path = "/" + request.path.lstrip("/\\")  # of this host, whatever it is
    return redirect(f"{path}?{urlencode(rest, safe=',')}" if rest else path)


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _as_http(error: Exception) -> HTTPException:
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, DependencyException):  # a file that is none of a component library's
        return NotFound()
    if isinstance(error, RecursionError):  # JSON within JSON within JSON
        return BadRequest("it is nested too deeply")
    if isinstance(error, UsageError):
        return BadRequest(str(error))
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_globals.get("__name__", "") for frame, _ in frames]
    if request.path == _CALLBACKS and not any(name.startswith("dashboards.") for name in names):
        return BadRequest("no page of ours calls a callback so")
    return InternalServerError()


def _answer(error: Exception) -> HTTPException | tuple[str, int]:
    """Answer a request that failed, and log it in one line; the process goes on."""
    failed = _as_http(error)
    if failed.code is not None and failed.code >= 500:
        _log.error("cannot answer %s", one_line(request.path), exc_info=error)
    elif failed.code is not None and failed.code >= 400:
        why = one_line(failed.description or failed.name)
        _log.warning("refused (%d) %s: %s", failed.code, one_line(request.path), why)
    return failed
