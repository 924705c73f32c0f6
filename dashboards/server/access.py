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
        port: that the server listens at: browsers send cookies to all ports of a machine.
        is_open: whether other machines reach it.
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
        """Say whether a name in an address is this machine's, as far as that matters.

        A name that a foreign name server resolves to this machine is not accepted.
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
    """Say whether a host name, or an address, is this machine's own for itself only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
