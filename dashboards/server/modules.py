"""The modules that run in the browser, at an address that changes with them.

A browser keeps what it got there and asks for none of them again: without that, every page would
ask whether each of some fifty has changed, level by level of what imports what.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flask import abort, send_from_directory

if TYPE_CHECKING:
    from flask import Flask, Response

MODULES = "/modules/"
"""The beginning of all their addresses."""

_FOLDER = Path(__file__).parents[1] / "assets"
_MAX_AGE_S = 365 * 24 * 3600


def serve_modules(server: Flask) -> str:
    """Serve the modules, and return the address of the folder that they are in."""
    server.add_url_rule(f"{MODULES}<version>/<path:name>", "module", view_func=_module)
    return f"{MODULES}{_version()}/"


def _module(version: str, name: str) -> Response:
    if version != _version():
        abort(404, "these are modules of another version")
    response = send_from_directory(_FOLDER, name, max_age=_MAX_AGE_S)
    response.cache_control.immutable = True
    return response


@cache
def _version() -> str:
    """Return a name for what the modules hold, the same until one of them changes."""
    content = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*.js")):
        content.update(f"{path.relative_to(_FOLDER)}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]
