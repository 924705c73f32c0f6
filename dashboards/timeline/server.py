"""What the timeline in the browser asks for: rows, what the screen can show of them, one event.

Every parameter is checked before it is used, and none names a file: ranks, rows and events are
numbers that are looked up. What is not as it should be is answered with 400, what is not there with
404, and logged in a line (`dashboards.server.guard`).
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn

from flask import Blueprint, Response, abort, request

from dashboards.timeline import rows as timeline_rows
from dashboards.timeline.detail import describe, summarize
from dashboards.timeline.model import CALL, OPERATION, RANGE, STEP
from dashboards.timeline.names import NameTable
from dashboards.timeline.search import Place, place_of, search
from dashboards.timeline.tiles import tiles
from traceprof.errors import TraceprofError, one_line
from traceprof.intervals import BEYOND_NS

if TYPE_CHECKING:
    from flask import Flask

    from dashboards.timeline.model import RankTimeline, Track
    from traceprof.analysis import Analysis
    from traceprof.run.opening import Rank

MAX_COLUMNS = 8192  # more than any screen has pixels
MAX_ROWS = 256
_MAX_RANKS = 64  # searched at once
_MAX_TEXT = 200  # characters searched for
_MAX_EVENTS = 32_000_000  # in the rows of ranks that are kept, at some thirty bytes each

_MAX_INDEX = (1 << 31) - 1

_log = logging.getLogger("traceprof.dashboard")


def register(server: Flask, analysis: Analysis) -> None:
    """Have a server answer what the timeline asks for, below `/timeline/`."""
    store = Timelines(analysis)
    routes = Blueprint("timeline", __name__, url_prefix="/timeline")
    routes.register_error_handler(TraceprofError, _unreadable)

    @routes.get("/rank")
    def rank() -> Response:
        """Return the rows of a rank, when its events are, and the evidence of its findings."""
        return _json(store.described(_integer("rank", 0)))

    @routes.get("/tiles")
    def view() -> Response:
        """Return what a screen so wide can show of some rows between two times."""
        keys = _text("rows", 16 * MAX_ROWS).split(",")
        if len(keys) > MAX_ROWS:
            abort(400, f"more than {MAX_ROWS} rows")
        start, end = _times()
        columns = _integer("columns", 1, MAX_COLUMNS)
        rows = {key: store.track(key) for key in dict.fromkeys(keys)}
        return Response(tiles(rows, start, end, columns), mimetype="application/json")

    @routes.get("/event")
    def event() -> Response:
        """Return what is known of one event."""
        number, source, index = _event_id("id")
        event = describe(store.timeline(number), source, index)
        return _json(event) if event is not None else abort(404, "there is no such event")

    @routes.get("/block")
    def block() -> Response:
        """Return what the events of one row are that lie between two times."""
        timeline, track = store.track(_text("row"))
        return _json(summarize(track, timeline, *_times()))

    @routes.get("/search")
    def find() -> Response:
        """Return how many events have a text in their names, and the next one."""
        numbers = [_read("rank", part, 0) for part in _text("rank", 8 * _MAX_RANKS).split(",")]
        if len(numbers) > _MAX_RANKS:
            abort(400, f"more than {_MAX_RANKS} ranks")
        timelines = [store.timeline(number) for number in dict.fromkeys(numbers)]
        at: Place | None = Place(_integer("at", -BEYOND_NS, BEYOND_NS))
        if "from" in request.args:
            at = place_of(timelines, *_event_id("from"))
        if at is None:
            abort(404, "there is no such event")
        backwards = _one_of("direction", ("next", "previous")) == "previous"
        return _json(search(timelines, _text("text"), at, backwards=backwards))

    server.register_blueprint(routes)


class Timelines:
    """The timelines of the ranks last asked for; those asked for by several threads made once."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._ranks = {rank.rank: rank for rank in analysis.run.ranks}
        self._steps = {result.rank: result.steps for result in analysis.result.breakdown}
        self._kept: OrderedDict[int, RankTimeline] = OrderedDict()
        self._range_names: dict[int, NameTable] = {}
        self._lock = threading.Lock()

    def timeline(self, number: int) -> RankTimeline:
        """Return a rank's timeline; 404 where there is no such rank."""
        if number not in self._ranks:
            abort(404, f"there is no rank {number}")
        with self._lock:
            if number not in self._kept:
                rank = self._ranks[number]
                steps = self._steps.get(number, ())
                self._kept[number] = timeline_rows.read(rank, steps, self._names(rank))
            self._kept.move_to_end(number)
            while len(self._kept) > 1 and self._num_events > _MAX_EVENTS:
                self._kept.popitem(last=False)
            return self._kept[number]

    def track(self, key: str) -> tuple[RankTimeline, Track]:
        """Return a row by its key, `RANK.ROW`; 404 where there is none."""
        rank, _, number = key.partition(".")
        timeline = self.timeline(_read("rows", rank, 0))
        row = _read("rows", number, 0)
        if row >= len(timeline.tracks):
            abort(404, f"rank {rank} has no row {row}")
        return timeline, timeline.tracks[row]

    def described(self, number: int) -> dict[str, Any]:
        """Return what the browser must know of a rank to draw its rows."""
        timeline = self.timeline(number)
        extent = timeline.extent_ns
        return {
            "rank": number,
            "start": None if extent is None else str(extent[0]),
            "end": None if extent is None else str(extent[1]),
            "rows": [
                {
                    "row": f"{number}.{index}",
                    "group": track.group,
                    "label": track.label,
                    "kind": track.kind,
                    "source": track.source,
                    "events": len(track.row),
                    "folded": track.is_folded,
                }
                for index, track in enumerate(timeline.tracks)
            ],
            "evidence": [
                {
                    "finding": finding.id,
                    "number": number_of_finding,
                    "evidence": index,
                    "severity": str(finding.severity),
                    "label": one_line(interval.label),
                    "start": str(interval.start_ns),
                    "end": str(interval.end_ns),
                }
                for number_of_finding, finding in enumerate(self._analysis.findings)
                if finding.rank == number
                for index, interval in enumerate(finding.evidence)
            ],
        }

    @property
    def _num_events(self) -> int:
        return sum(timeline.num_events for timeline in self._kept.values())

    def _names(self, rank: Rank) -> NameTable | None:
        """Return the names of a report's ranges, which its ranks share."""
        if rank.report not in self._range_names:
            ranges = rank.trace.range_table(rank.process)
            if ranges is None:
                return None
            self._range_names[rank.report] = NameTable(ranges.names)
        return self._range_names[rank.report]


# -- what is asked --------------------------------------------------------------------------------


def _refuse(name: str, why: str) -> NoReturn:
    abort(400, f"{name}: {why}")


def _text(name: str, longest: int = _MAX_TEXT) -> str:
    given = request.args.getlist(name)
    if len(given) != 1:
        _refuse(name, "it must be given once")
    if not 0 < len(given[0]) <= longest:
        _refuse(name, f"it must have 1 to {longest} characters")
    return given[0]


def _integer(name: str, least: int, most: int = BEYOND_NS) -> int:
    return _read(name, _text(name), least, most)


def _read(name: str, text: str, least: int, most: int = BEYOND_NS) -> int:
    # `int` alone takes underscores, spaces and digits of other scripts.
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not least <= int(text) <= most:
        _refuse(name, "it is not a whole number in range")
    return int(text)


def _times() -> tuple[int, int]:
    start, end = (_integer(name, 1 - BEYOND_NS, BEYOND_NS - 1) for name in ("start", "end"))
    if end <= start:
        _refuse("end", "it is not after the start")
    return start, end


def _one_of(name: str, choices: tuple[str, ...]) -> str:
    text = _text(name)
    if text not in choices:
        _refuse(name, f"it is none of {', '.join(choices)}")
    return text


def _event_id(name: str) -> tuple[int, str, int]:
    parts = _text(name).split(".")
    if len(parts) != 3 or parts[1] not in {OPERATION, CALL, RANGE, STEP}:
        _refuse(name, "it is no event")
    return _read(name, parts[0], 0), parts[1], _read(name, parts[2], 0, _MAX_INDEX)


# -- what is answered -----------------------------------------------------------------------------


def _json(answer: dict[str, Any]) -> Response:
    return Response(json.dumps(answer, separators=(",", ":")), mimetype="application/json")


def _unreadable(error: TraceprofError) -> tuple[dict[str, str], int]:
    """Say in the browser, too, what is wrong with a report."""
    _log.error("%s", error)
    return {"error": str(error)}, 500
