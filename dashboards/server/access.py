"""Who may see the dashboard, by the address that it listens at."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

TOKEN = "token"  # noqa: S105  (the name of the parameter)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the dashboard.

    Attributes:
        token: what a browser must bring once; None where a loopback address keeps others away.
    """

    token: str | None = None


def is_loopback(host: str) -> bool:
    """Say whether a host name, or an address, is this machine's own for itself only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
