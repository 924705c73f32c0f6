"""The replies about notes: all notes with their views, a new note, a removed note."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from flask import abort, request

from dashboards.address import parse
from dashboards.pages.registry import page_at
from traceprof.errors import TraceprofError, UsageError, one_line
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from pathlib import Path

    from flask import Flask

    from dashboards.clock import Clock

SCHEMA = "traceprof.notes/1"

_MAX_NOTES = 500
_MAX_TEXT = 2_000  # characters
_MAX_HREF = 20_000
_MAX_FILE = 4 << 20  # bytes


class Note(NamedTuple):
    """A saved view."""

    href: str  # the view's address, without its host and token
    text: str  # what the reader wrote; empty for a bookmark


class Notes:
    """The notes of all readers of a dashboard, oldest first; kept in a file if there is a path."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept: list[Note] = []
        self.name = None if path is None else one_line(path.name)
        self.read()

    def read(self) -> list[Note]:
        """Return all notes, from the file as it is now: other programs may write to it."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._kept = _read(self._path)
        return [*self._kept]

    def add(self, note: Note) -> None:
        """Save a note, unless it is saved already."""
        with self._lock:
            notes = [kept for kept in self.read() if kept != note]
            if len(notes) >= _MAX_NOTES:
                raise UsageError("cannot keep the note", f"there are {_MAX_NOTES}", "remove some")
            self._write([*notes, note])

    def remove(self, note: Note) -> None:
        """Remove a note; a missing one is not an error."""
        with self._lock:
            self._write([kept for kept in self.read() if kept != note])

    def _write(self, notes: list[Note]) -> None:
        if self._path is not None:
            document = {"schema": SCHEMA, "notes": [note._asdict() for note in notes]}
            written = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                part.write_text(written, encoding="utf-8")
                part.replace(self._path)  # at once, so that nobody reads half of it
            except OSError as error:
                part.unlink(missing_ok=True)
                why = error.strerror or str(error)
                raise UsageError(f"cannot write {self.name}", why, "name another file") from error
        self._kept = notes


def _read(path: Path) -> list[Note]:
    name = one_line(path)
    try:
        with path.open("rb") as file:
            written = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot read the notes in {name}", why, "name another file") from error
    try:
        document = json.loads(written)
        _check(document["schema"] == SCHEMA and len(written) <= _MAX_FILE)
        return [checked(entry) for entry in document["notes"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(
            f"cannot read the notes in {name}",
            f"the file holds something else than {SCHEMA}",
            "name another file, or one that is not there yet",
        ) from error


def checked(entry: Any) -> Note:  # noqa: ANN401  (from outside)
    """Return a note made from untrusted data.

    Raises:
        ValueError: the data is not a note.
    """
    _check(isinstance(entry, dict))
    href, text = entry.get("href"), entry.get("text")
    _check(isinstance(href, str) and isinstance(text, str))
    # Browsers take //host for another server, and a backslash for a slash, and leave out tabs.
    _check(href.startswith("/") and href[1:2] not in {"/", "\\"} and href.isprintable())
    _check(len(href) <= _MAX_HREF and len(text) <= _MAX_TEXT)
    return Note(href, text.strip())


def _check(is_right: bool) -> None:
    if not is_right:
        raise ValueError("it is not a note")


NOTES = "/notes"
"""The path at which notes are read (GET), added (POST) and removed (DELETE)."""


def serve_notes(server: Flask, notes: Notes, clock: Clock | None) -> None:
    """Answer requests for notes; their times are described once the run's clock is known."""

    def listed() -> dict[str, Any]:
        return {
            "file": notes.name,
            "notes": [
                note._asdict() | {"where": described(note.href, clock)} for note in notes.read()
            ],
        }

    def change() -> tuple[dict[str, Any], int]:
        try:
            note = checked(request.get_json())
            if request.method == "POST":
                page_at(urlsplit(note.href).path)
                notes.add(note)
            else:
                notes.remove(note)
        except (ValueError, UsageError) as error:
            abort(400, str(error))
        return listed(), 200

    server.add_url_rule(NOTES, "notes", view_func=listed)
    server.add_url_rule(NOTES, "note", view_func=change, methods=["POST", "DELETE"])


def described(href: str, clock: Clock | None) -> str:
    """Describe the view of an address in words: `Timeline · rank 3 · 1.203000 s to 1.305000 s`."""
    try:
        parts = urlsplit(href)
        address = parse(parts.path, parts.query)
        words = [page_at(parts.path).TITLE]
    except (TraceprofError, ValueError):
        return "a view that this version does not know"
    if address.rank:
        words.append(ranks_text(address.rank))
    if address.finding:
        words.append(address.finding)
    start, end = address.start_ns, address.end_ns
    if clock is not None and start is not None and end is not None:
        words.append(f"{clock.text(start)} to {clock.text(end)}")
    return " · ".join(words)
