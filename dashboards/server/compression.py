"""Compression of replies: scripts and styles once, other replies for each request."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from flask import request
from flask_compress import Compress

if TYPE_CHECKING:
    from flask import Flask, Response

_OF_REQUESTS = {
    "COMPRESS_MIMETYPES": ["application/json", "text/html"],
    "COMPRESS_ALGORITHM": ["zstd", "gzip"],
    "COMPRESS_LEVEL": 4,
    "COMPRESS_MIN_SIZE": 2000,
}
_TEXTS = {
    "application/javascript", "text/javascript", "text/css", "image/svg+xml",
    "application/json", "application/source-map",
}  # fmt: skip
_MIN_BYTES = 1000
_LEVEL = 9  # all of the first page take 80 ms, once


def compress(server: Flask, programs: tuple[str, ...]) -> None:
    """Compress the replies of a server.

    Args:
        server: the server.
        programs: beginnings of the paths of files that do not change while the server runs.
    """
    known: dict[tuple[str, str | None], bytes] = {}

    def compress_program(response: Response) -> Response:
        accepts = request.accept_encodings["gzip"] > 0
        if not request.path.startswith(programs) or response.mimetype not in _TEXTS:
            return response
        response.vary.add("Accept-Encoding")
        if not accepts or response.status_code != 200 or response.headers.get("Content-Encoding"):
            return response
        key = request.path, response.get_etag()[0]
        if key not in known:
            response.direct_passthrough = False
            data = response.get_data()
            known[key] = gzip.compress(data, _LEVEL, mtime=0) if len(data) >= _MIN_BYTES else b""
        if known[key]:
            response.close()  # the file
            response.direct_passthrough = False
            response.set_data(known[key])
            response.headers["Content-Encoding"] = "gzip"
        return response

    server.config.update(_OF_REQUESTS)
    Compress(server)
    server.after_request(compress_program)  # before what was registered earlier
