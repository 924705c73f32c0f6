"""Access to the dashboard: a token, which is part of the printed address."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from dataclasses import dataclass

TOKEN = "token"  # noqa: S105  (the name of the parameter)


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a server.

    Attributes:
        token: required once from each browser; None if no token is required.
        port: the server's port; part of the cookie's name, as browsers send cookies to all ports.
        is_open: whether other machines can reach the server.
    """

    token: str | None = None
    port: int = 0
    is_open: bool = False

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
