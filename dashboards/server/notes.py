"""The replies about notes: all notes with their views, a new note, a removed note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flask import abort, request

from dashboards.address import parse
from dashboards.pages.registry import page_at
from dashboards.server.kept_notes import checked
from traceprof.errors import TraceprofError, UsageError
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from flask import Flask

    from dashboards.server.kept_notes import Notes
    from dashboards.time_axis import Clock

NOTES = "/notes"
"""The path at which notes are read (GET), added (POST) and removed (DELETE)."""


def serve_notes(server: Flask, notes: Notes, clock: Clock | None) -> None:
    """Answer requests for notes.

    Args:
        server: the server.
        notes: the saved ones.
        clock: of the run; None while it is unknown.
    """

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
