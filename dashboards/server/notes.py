"""The replies about notes: all notes with their views, a new note, a removed note."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from flask import abort, request

from dashboards.address import parse
from dashboards.clock import Clock
from dashboards.pages.registry import page_at
from traceprof.errors import TraceprofError, UsageError, one_line
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from flask import Flask


SCHEMA: Literal["traceprof.notes/1"] = "traceprof.notes/1"

_MAX_NOTES = 500
_MAX_FILE = 4 << 20  # bytes


class Note(msgspec.Struct):
    """A saved view; whoever makes one of other text gets a ValueError."""

    # the view's address, without its host and token
    href: Annotated[str, msgspec.Meta(max_length=20_000)]
    # what the reader wrote; empty for a bookmark
    text: Annotated[str, msgspec.Meta(max_length=2_000)]

    def __post_init__(self) -> None:
        # Browsers take //host for another server, and a backslash for a slash, and leave out tabs.
        is_ours = self.href.startswith("/") and self.href[1:2] not in {"/", "\\"}
        if not (is_ours and self.href.isprintable()):
            raise ValueError("it is not a note")
        self.text = self.text.strip()


class _File(msgspec.Struct):
    schema: Literal["traceprof.notes/1"]
    notes: list[Note]


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
            written = msgspec.json.format(msgspec.json.encode(_File(SCHEMA, notes)), indent=1)
            part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                part.write_bytes(written + b"\n")
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
            written = file.read(_MAX_FILE)  # of a longer one, no document
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot read the notes in {name}", why, "name another file") from error
    try:
        return msgspec.json.decode(written, type=_File).notes
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read the notes in {name}",
            f"the file holds something else than {SCHEMA}",
            "name another file, or one that is not there yet",
        ) from error


NOTES = "/notes"
"""The path at which notes are read (GET), added (POST) and removed (DELETE)."""


def serve_notes(server: Flask, notes: Notes, clock: Clock | None) -> None:
    """Answer requests for notes; their times are described once the run's clock is known."""

    def listed() -> dict[str, Any]:
        return {
            "file": notes.name,
            "notes": [
                {"href": note.href, "text": note.text, "where": described(note.href, clock)}
                for note in notes.read()
            ],
        }

    def change() -> tuple[dict[str, Any], int]:
        try:
            note = msgspec.convert(request.get_json(), Note)
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
