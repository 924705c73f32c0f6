"""The parameters of requests to the timeline, each checked before it is used.

None names a file: ranks, rows and events are numbers that are looked up. Wrong parameters are
answered with 400, missing things with 404.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from flask import abort, request

from dashboards.timeline.model import SOURCES
from traceprof.intervals import BEYOND_NS

if TYPE_CHECKING:
    from dashboards.timeline.model import RankTimeline, Track
    from dashboards.timeline.store import Timelines

MAX_COLUMNS = 8192  # more than any screen has pixels
MAX_ROWS = 256
MAX_RANKS = 1024  # asked for at once
_MAX_TEXT = 200  # characters searched for
_MAX_INDEX = (1 << 31) - 1


def refuse(name: str, why: str) -> NoReturn:
    """Answer that a parameter is wrong."""
    abort(400, f"{name}: {why}")


def text(name: str, longest: int = _MAX_TEXT) -> str:
    """Return the value of a parameter, which must be given once."""
    given = request.args.getlist(name)
    if len(given) != 1:
        refuse(name, "it must be given once")
    if not 0 < len(given[0]) <= longest:
        refuse(name, f"it must have 1 to {longest} characters")
    return given[0]


def integer(name: str, least: int, most: int = BEYOND_NS) -> int:
    """Return a parameter that is a whole number between two others."""
    return whole_number(name, text(name), least, most)


def whole_number(name: str, digits: str, least: int, most: int = BEYOND_NS) -> int:
    """Return the number in a part of a parameter."""
    # `int` alone takes underscores, spaces and digits of other scripts.
    if re.fullmatch(r"-?[0-9]{1,19}", digits) is None or not least <= int(digits) <= most:
        refuse(name, "it is not a whole number in range")
    return int(digits)


def times() -> tuple[int, int]:
    """Return the requested time span."""
    start, end = (integer(name, 1 - BEYOND_NS, BEYOND_NS - 1) for name in ("start", "end"))
    if end <= start:
        refuse("end", "it is not after the start")
    return start, end


def one_of(name: str, choices: tuple[str, ...]) -> str:
    """Return a parameter that is one of some words."""
    word = text(name)
    if word not in choices:
        refuse(name, f"it is none of {', '.join(choices)}")
    return word


def event_id(name: str) -> tuple[int, str, int]:
    """Return the rank, the source and the number of an event."""
    parts = text(name).split(".")
    if len(parts) != 3 or parts[1] not in SOURCES:
        refuse(name, "it is not an event")
    return whole_number(name, parts[0], 0), parts[1], whole_number(name, parts[2], 0, _MAX_INDEX)


def known(store: Timelines, number: int) -> int:
    """Return a rank's number; 404 if the run has no such rank."""
    if number not in store.numbers:
        abort(404, f"there is no rank {number}")
    return number


def ranks(store: Timelines) -> list[int]:
    """Return the requested ranks; all ranks if none is named."""
    if "rank" not in request.args:
        return list(store.numbers)
    parts = text("rank", 8 * MAX_RANKS).split(",")
    if len(parts) > MAX_RANKS:
        abort(400, f"more than {MAX_RANKS} ranks")
    return [known(store, whole_number("rank", part, 0)) for part in dict.fromkeys(parts)]


def track(store: Timelines, key: str) -> tuple[RankTimeline, Track]:
    """Return a row by its key, RANK.ROW; 404 if there is none."""
    rank, _, number = key.partition(".")
    timeline = store.gpu(known(store, whole_number("rows", rank, 0)))
    row = whole_number("rows", number, 0)
    if row >= len(timeline.tracks):
        timeline = store.whole(timeline.rank.rank)
    if row >= len(timeline.tracks):
        abort(404, f"rank {rank} has no row {row}")
    return timeline, timeline.tracks[row]


def event_rows(store: Timelines) -> dict[str, tuple[RankTimeline, Track]]:
    """Return the requested rows of events by key; rows of samples are left out."""
    return {key: row for key, row in rows(store).items() if row[1].samples is None}


def rows(store: Timelines) -> dict[str, tuple[RankTimeline, Track]]:
    """Return the requested rows by key."""
    keys = text("rows", 16 * MAX_ROWS).split(",")
    if len(keys) > MAX_ROWS:
        abort(400, f"more than {MAX_ROWS} rows")
    return {key: track(store, key) for key in dict.fromkeys(keys)}
