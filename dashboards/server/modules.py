"""The modules that run in the browser, at an address that changes with their content.

So a browser can cache them for ever. Otherwise every page would ask for each of some fifty modules
whether it has changed, one level of imports after the other.
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
    """Serve the modules, and return the address of their folder."""
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
