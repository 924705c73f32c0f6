"""The replies to the timeline in the browser: rows, their tiles, one event.

Every parameter is checked before it is used (`dashboards.timeline.server`); each refused request is
logged in one line (`dashboards.server.guard`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from flask import Blueprint, Response, abort, request

from dashboards.address import WHOLE_PATH, Address
from dashboards.queries import QueryQuestion, QueryResult
from dashboards.questions import ComparedSides, PathQuestion, questions_about
from dashboards.timeline import search as searching
from dashboards.timeline.across_ranks import collective, operation_id, spreads, steps_within
from dashboards.timeline.across_ranks import drawn_path as drawn
from dashboards.timeline.area import Rows, listed, statistics
from dashboards.timeline.detail import describe, summarize
from dashboards.timeline.events import OPERATION, SOURCES
from dashboards.timeline.search import SQL, Place, Query
from dashboards.timeline.store import OtherSide, Timelines
from dashboards.timeline.tiles import strip, tiles
from dashboards.timeline.tracks import RankTimeline, Track
from dashboards.view import View
from traceprof.analyses import straggler
from traceprof.analysis import Analysis
from traceprof.errors import TraceprofError, one_line
from traceprof.intervals import BEYOND_NS
from traceprof.kernel_names import kernel_title
from traceprof.reports.claims import gain_text, quoted
from traceprof.units import duration

if TYPE_CHECKING:
    from flask import Flask


Answer = Callable[[Timelines], dict[str, Any] | str]

MAX_COLUMNS = 8192  # more than any screen has pixels
MAX_ROWS = 256
MAX_RANKS = 1024  # asked for at once
MAX_CHANGED = 6
"""Kernels that changed most, which are marked on both sides of a comparison."""
_MAX_TEXT = 200  # characters of a value
_MAX_SEARCH = 4_000  # characters searched for
_MAX_INDEX = (1 << 31) - 1


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
    return _whole_number(name, _text(name), least, most)


def _whole_number(name: str, digits: str, least: int, most: int = BEYOND_NS) -> int:
    # `int` alone takes underscores, spaces and digits of other scripts.
    if re.fullmatch(r"-?[0-9]{1,19}", digits) is None or not least <= int(digits) <= most:
        _refuse(name, "it is not a whole number in range")
    return int(digits)


def _times() -> tuple[int, int]:
    start, end = (_integer(name, 1 - BEYOND_NS, BEYOND_NS - 1) for name in ("start", "end"))
    if end <= start:
        _refuse("end", "it is not after the start")
    return start, end


def _one_of(name: str, choices: tuple[str, ...]) -> str:
    word = _text(name)
    if word not in choices:
        _refuse(name, f"it is none of {', '.join(choices)}")
    return word


def _asked_event(name: str) -> tuple[int, str, int]:
    parts = _text(name).split(".")
    if len(parts) != 3 or parts[1] not in SOURCES:
        _refuse(name, "it is not an event")
    return _whole_number(name, parts[0], 0), parts[1], _whole_number(name, parts[2], 0, _MAX_INDEX)


def _known_rank(store: Timelines, number: int) -> int:
    if number not in store.numbers:
        abort(404, f"there is no rank {number}")
    return number


def _asked_ranks(store: Timelines) -> list[int]:
    if "rank" not in request.args:
        return list(store.numbers)
    parts = _text("rank", 8 * MAX_RANKS).split(",")
    if len(parts) > MAX_RANKS:
        abort(400, f"more than {MAX_RANKS} ranks")
    return [_known_rank(store, _whole_number("rank", part, 0)) for part in dict.fromkeys(parts)]


def _asked_track(store: Timelines, key: str) -> tuple[RankTimeline, Track]:
    rank, _, number = key.partition(".")
    timeline = store.gpu(_known_rank(store, _whole_number("rows", rank, 0)))
    row = _whole_number("rows", number, 0)
    if row >= len(timeline.tracks):
        timeline = store.whole(timeline.rank.rank)
    if row >= len(timeline.tracks):
        abort(404, f"rank {rank} has no row {row}")
    return timeline, timeline.tracks[row]


def _event_rows(store: Timelines) -> Rows:
    """Return the requested rows by key, without those of samples."""
    return {key: row for key, row in _asked_rows(store).items() if row[1].samples is None}


def _asked_rows(store: Timelines) -> Rows:
    keys = _text("rows", 16 * MAX_ROWS).split(",")
    if len(keys) > MAX_ROWS:
        abort(400, f"more than {MAX_ROWS} rows")
    return {key: _asked_track(store, key) for key in dict.fromkeys(keys)}


BEFORE, AFTER = "timeline-before", "timeline"
"""Below which addresses the sides of a comparison are answered: what was before, and the run."""

_NUM_ADVICE, _MAX_ADVICE = 2, 600  # pieces of advice, and characters of one
_log = logging.getLogger("traceprof.dashboard")
_NOT_ANALYSED = "the other side of a comparison is not analysed here"
_UNKNOWN_PATH = (
    "it needs a step that every rank has, and of every rank a GPU and the API calls that launch to"
    " it: record all ranks with --trace=cuda,nvtx, the same steps of each"
)


def register(server: Flask, analysis: Analysis) -> None:
    """Answer the timeline's requests: for the run, and for the other side of its comparison."""
    store, other = Timelines.of(analysis), OtherSide(analysis)
    for prefix, timelines in ((AFTER, lambda: store), (BEFORE, other.timelines)):
        routes = Blueprint(prefix, __name__, url_prefix=f"/{prefix}")
        routes.register_error_handler(TraceprofError, _failed)
        changed: Answer = partial(_changed, analysis, "before" if prefix == BEFORE else "after")
        for name, answer in (*_ANSWERS.items(), ("changed", changed)):
            routes.add_url_rule(f"/{name}", name, partial(_answered, answer, timelines))
        server.register_blueprint(routes)


def _rank(store: Timelines) -> dict[str, Any]:
    """Return the rows of a rank: those of its GPU, or with `part=host`, which takes longer, all."""
    part = _one_of("part", ("gpu", "host")) if "part" in request.args else "host"
    number = _known_rank(store, _integer("rank", 0))
    return described(store, number, with_host=part == "host")


def _steps(store: Timelines) -> dict[str, Any]:
    """Return the training steps of a rank; where it has none, all that is judged as one."""
    number = _known_rank(store, _integer("rank", 0))
    steps: list[tuple[int | None, int, int]] = [
        (step.number, step.measures.window_start_ns, step.measures.window_ns)
        for step in store.steps(number)
    ]
    if not steps:
        start, end = store.judged.get(number) or abort(404, "nothing of it was measured")
        steps = [(None, start, end - start)]
    at = store.clock(number).at
    return {
        "steps": [
            {"number": step, "start": str(at(start)), "length": length}
            for step, start, length in steps
        ]
    }


def _columns() -> tuple[int, int, int]:
    """Return the times of a view, and of how many columns it is."""
    return (*_times(), _integer("columns", 1, MAX_COLUMNS))


def _event(store: Timelines) -> dict[str, Any]:
    number, source, index = _asked_event("id")
    event = describe(store.whole(_known_rank(store, number)), source, index)
    return event if event is not None else abort(404, "there is no such event")


def _neighbour(store: Timelines) -> dict[str, Any]:
    number, source, index = _asked_event("id")
    step = 1 if _one_of("direction", ("next", "previous")) == "next" else -1
    timeline = store.gpu(_known_rank(store, number))
    if source not in timeline.events:
        timeline = store.whole(number)
    if timeline.find(source, index) is None:
        abort(404, "there is no such event")
    neighbour = timeline.neighbour(source, index, step)
    return {"id": None if neighbour is None else f"{number}.{neighbour[0]}.{neighbour[1]}"}


def _namesake(store: Timelines) -> dict[str, Any]:
    number, source, index = _asked_event("id")
    backwards = _one_of("direction", ("next", "previous")) == "previous"
    ranks = {_known_rank(store, number): store.events(number)}
    event = searching.namesake(number, ranks, source, index, backwards=backwards)
    return {"id": event} if event is not None else abort(404, "there is no such event")


def _collective(store: Timelines) -> dict[str, Any]:
    number, source, index = _asked_event("id")
    if source != OPERATION:
        abort(404, "it is not a GPU operation")
    if store.analysis is None:
        abort(404, _NOT_ANALYSED)
    members = collective(store, _known_rank(store, number), index)
    return members if members is not None else abort(404, "it was not matched with other ranks")


def _path(store: Timelines) -> dict[str, Any]:
    """Return the critical path of steps, which are named or run in a time of a rank.

    A client that gets the state `asked` asks again.
    """
    if "step" in request.args:
        text = _text("step")
        first, _, last = text.partition("-")
        steps = None
        if text != WHOLE_PATH:
            steps = _whole_number("step", first, 0), _whole_number("step", last or first, 0)
    else:
        number = _known_rank(store, _integer("rank", 0))
        start, end = map(store.clock(number).own, _times())
        steps = steps_within(store.steps(number), start, end)
    analysis = store.analysis or abort(404, _NOT_ANALYSED)
    question = questions_about(analysis).about(PathQuestion(*(steps or (None,))))
    named = WHOLE_PATH if steps is None else "-".join(map(str, dict.fromkeys(steps)))
    if not question.is_over:
        return {"state": "asked", "step": named}
    if question.answer is None:
        return {"state": "unknown", "step": named, "why": question.error or _UNKNOWN_PATH}
    return {"state": "known", **drawn(store, question.answer), "step": named}


def _asked_query(store: Timelines) -> tuple[Query, bool]:
    """Return what is searched for, and whether that is known: SQL is answered later."""
    text = _text("text", _MAX_SEARCH)
    if not text.startswith(SQL):
        return searching.parsed(text), True
    analysis = store.analysis or abort(404, _NOT_ANALYSED)
    question = questions_about(analysis).about(QueryQuestion(searching.in_lines(text)))
    result: QueryResult | None = question.answer
    why = question.error or (result and not result.times and "it selects no rank and start_ns")
    if why and "columns" not in request.args:  # hits are asked for again with every movement
        _refuse("text", why)
    of_rank: dict[int, list[tuple[int, int]]] = {}
    for row in filter(None, result.times if result is not None else ()):
        if row.rank in store.numbers:
            length = -1 if row.length_ns is None else row.length_ns
            of_rank.setdefault(row.rank, []).append((row.start_ns, length))
    intervals = {rank: np.array(rows, np.int64) for rank, rows in of_rank.items()}
    for rank, of_one in intervals.items():
        of_one[:, 0] = store.clock(rank).to_run(of_one[:, 0])
    return Query.of_intervals(intervals), question.is_over


def _search(store: Timelines) -> dict[str, Any]:
    """Return the number of matches and the next; until `is_all`, a client asks again."""
    numbers = _asked_ranks(store)
    at = Place(_integer("at", -BEYOND_NS, BEYOND_NS))
    backwards = _one_of("direction", ("next", "previous")) == "previous"
    query, is_known = _asked_query(store)
    start = _asked_event("from") if "from" in request.args else None
    ranks, is_all = store.searchable(numbers)
    if start is not None:
        if start[0] in numbers and start[1] not in ranks.get(start[0], {}):
            ranks = {**ranks, start[0]: store.events(start[0])}
        place = searching.place_of(ranks, *start)
        if place is None:
            abort(404, "there is no such event")
        at = place if backwards else searching.after(place)
    found = searching.search(ranks, query, at, backwards=backwards)
    return {**found, "is_all": is_all and is_known}


def _hits(store: Timelines) -> dict[str, Any]:
    view = _columns()
    query, is_known = _asked_query(store)
    ranks, is_all = store.searchable(_asked_ranks(store))
    return {"columns": searching.hits(ranks, query, *view), "is_all": is_all and is_known}


def _matches(store: Timelines) -> dict[str, Any]:
    """Return the first matches in an order; until `is_all`, a client asks again."""
    order, most = _one_of("order", searching.ORDERS), _integer("most", 1, searching.MAX_LISTED)
    query, is_known = _asked_query(store)
    ranks, is_all = store.searchable(_asked_ranks(store))
    found = searching.listed(ranks, query, store.steps_at, order, most)
    return {**found, "is_all": is_all and is_known}


_ANSWERS: dict[str, Answer] = {
    "rank": _rank,
    "steps": _steps,
    "tiles": lambda store: tiles(_asked_rows(store), *_columns()),
    "strips": lambda store: {
        str(number): strip(store.gpu(number), *_columns()) for number in _asked_ranks(store)
    },
    "event": _event,
    "neighbour": _neighbour,
    "namesake": _namesake,
    "block": lambda store: summarize(*_asked_track(store, _text("row")), *_times()),
    "area": lambda store: statistics(_event_rows(store), *_times()),
    "events": lambda store: listed(_event_rows(store), *_times()),
    "collective": _collective,
    "path": _path,
    "spreads": lambda store: {"spreads": spreads(store)},
    "search": _search,
    "hits": _hits,
    "matches": _matches,
}


def _changed(analysis: Analysis, side: str, store: Timelines) -> dict[str, Any]:
    """Return where the kernels ran that changed most, in the form of evidence."""
    rank, (start, end) = _known_rank(store, _integer("rank", 0)), _times()
    pending = questions_about(analysis).comparison()
    compared: ComparedSides | None = None if pending is None else pending.answer
    if compared is None:
        abort(404, "nothing is compared")
    events = store.searchable([rank])[0][rank][OPERATION]
    number_of = {name: number for number, name in enumerate(events.names.names)}
    kernels, marks = events.parts[0], []
    changes = [kernel for kernel in compared.comparison.kernels if kernel.is_significant]
    for number, kernel in enumerate(changes[:MAX_CHANGED]):
        if (named := number_of.get(getattr(kernel, side) or "")) is None:
            continue
        places = kernels.places(np.array([named]))
        begin = kernels.start_ns(places)
        shown = (start <= begin) & (begin < end)
        begin = begin[shown]
        after = begin + kernels.spans.packed_length.at(places[shown])
        name = one_line(kernel_title(kernel.after or kernel.before or ""), _MAX_ADVICE)
        times = f"{duration(kernel.before_ns)} before, {duration(kernel.after_ns)} after a step"
        mark = {
            "finding": "changed kernel",
            "operation": None,
            "number": number,
            "severity": "high" if kernel.change_ns > 0 else "low",
            "label": f"{name}: {times}",
        }
        marks += [
            {**mark, "evidence": index, "start": str(first), "end": str(last)}
            for index, (first, last) in enumerate(zip(begin.tolist(), after.tolist(), strict=True))
        ]
    return {"changed": marks}


def described(store: Timelines, number: int, *, with_host: bool) -> dict[str, Any]:
    """Return the rows of a rank, and its findings' evidence."""
    timeline = store.whole(number) if with_host else store.gpu(number)
    extent, clock = timeline.extent_ns, timeline.clock
    operation_of = partial(operation_id, timeline.rank)
    analysis = store.analysis
    unit = "" if analysis is None else View(analysis, Address()).unit
    all_findings = enumerate(() if analysis is None else analysis.findings)
    findings = [(at, one) for at, one in all_findings if one.rank == number and one.evidence]
    return {
        "rank": number,
        "start": None if extent is None else str(extent[0]),
        "end": None if extent is None else str(extent[1]),
        "host": timeline.has_host,
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
        "findings": {
            at: {
                "title": one_line(finding.title),
                "advice": [one_line(text, _MAX_ADVICE) for text in finding.advice[:_NUM_ADVICE]],
                "gain": gain_text(*quoted(finding, unit)),
            }
            for at, finding in findings
        },
        "evidence": [
            {
                "finding": finding.id,
                "operation": operation_of(interval) if finding.id == straggler.ID else None,
                "number": at,
                "evidence": index,
                "severity": str(finding.severity),
                "label": one_line(interval.label),
                "start": str(clock.at(interval.start_ns)),
                "end": str(clock.at(interval.end_ns)),
            }
            for at, finding in findings
            for index, interval in enumerate(finding.evidence)
        ],
    }


def _answered(answer: Answer, timelines: Callable[[], Timelines | None]) -> Response:
    content = answer(timelines() or abort(404, "there is no other side"))
    written = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return Response(written, mimetype="application/json")


def _failed(error: TraceprofError) -> tuple[dict[str, str], int]:
    _log.error("%s", error)
    return {"error": str(error)}, 500
