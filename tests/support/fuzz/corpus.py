"""Inputs that were answered wrongly once, as small as they can be: kept, tried again and again."""

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("corpus")
_MAX_S = 120.0  # for making an input smaller
_MIN_BLOCK = 64


class Input(NamedTuple):
    """A file, and what is asked of it."""

    what: str  # how it was made
    kind: str
    arguments: list[str]  # with `{report}` in the place of the file
    data: bytes
    seed: str  # of what is chosen while it is tried

    def write(self, path: Path, problem: str = "") -> None:
        fields = self._asdict() | {
            "data": base64.b85encode(zlib.compress(self.data, 9)).decode(),
            "problem": problem.strip().rpartition("\n")[2],
        }
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Input:
    fields = json.loads(path.read_text(encoding="utf-8"))
    del fields["problem"]
    return Input(**fields | {"data": zlib.decompress(base64.b85decode(fields["data"]))})


def kept(folder: Path = FOLDER) -> Iterator[Path]:
    """Yield the files of inputs."""
    yield from sorted(folder.glob("*.json"))


def minimal(found: Input, is_wrong: Callable[[Input], bool], max_s: float = _MAX_S) -> Input:
    """Return an input with as much as possible removed, or set to zero in a database.

    Args:
        found: an input.
        is_wrong: whether one is answered as wrongly.
        max_s: for how long it is tried.
    """
    until = time.monotonic() + max_s
    keeps_length = found.data.startswith(b"SQLite format 3\0")
    size = len(found.data) // 2
    while size >= _MIN_BLOCK:
        place = 0
        while place < len(found.data):
            if time.monotonic() > until:
                return found
            block = found.data[place : place + size]
            other = bytes(len(block)) if keeps_length else b""
            if any(block) or not keeps_length:
                data = found.data[:place] + other + found.data[place + size :]
                smaller = found._replace(data=data)
                if is_wrong(smaller):
                    found = smaller
                    place -= 0 if keeps_length else size
            place = max(place + size, 0)
        size //= 2
    return found
