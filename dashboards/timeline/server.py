"""The replies to the timeline in the browser: rows, their tiles, one event.

Every parameter is checked before it is used (`dashboards.timeline.asked`); each refused request is
logged in one line (`dashboards.server.guard`).
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, abort, request

from dashboards.address import WHOLE_PATH, Address
from dashboards.asking.critical_path import PathQuestion
from dashboards.asking.questions import questions_about
from dashboards.timeline import asked
from dashboards.timeline.area import listed, statistics
from dashboards.timeline.collective import collective, operation_id
from dashboards.timeline.critical_path import drawn, step_at
from dashboards.timeline.detail import describe, summarize
from dashboards.timeline.model import OPERATION
from dashboards.timeline.other_side import OtherSide
from dashboards.timeline.query import parsed
from dashboards.timeline.search import Place, after, hits, namesake, place_of, search
from dashboards.timeline.source import TimelineSource
from dashboards.timeline.store import Timelines
from dashboards.timeline.strips import strip
from dashboards.timeline.tiles import tiles
from dashboards.view import View
from traceprof.analyses import straggler
from traceprof.errors import TraceprofError, one_line
from traceprof.intervals import BEYOND_NS
from traceprof.reports.findings_text import gain_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from traceprof.analysis import Analysis

    Answer = Callable[[Timelines], dict[str, Any] | str]

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
    """Let a server answer the requests of timelines.

    `/timeline/` is for the run itself, `/timeline-before/` for the other side of its comparison.
    """
    store, other = Timelines(TimelineSource.of(analysis)), OtherSide(analysis)
    for prefix, timelines in ((AFTER, lambda: store), (BEFORE, other.timelines)):
        routes = Blueprint(prefix, __name__, url_prefix=f"/{prefix}")
        routes.register_error_handler(TraceprofError, _unreadable)
        for name, answer in _ANSWERS.items():
            routes.add_url_rule(f"/{name}", name, partial(_answered, answer, timelines))
        server.register_blueprint(routes)


def _rank(store: Timelines) -> dict[str, Any]:
    """Return the rows of a rank, when its events are, and the evidence of its findings.

    Those of its GPU come at once; with `part=host` all are there, which takes longer.
    """
    part = asked.one_of("part", ("gpu", "host")) if "part" in request.args else "host"
    number = asked.known(store, asked.integer("rank", 0))
    return described(store, number, with_host=part == "host")


def _steps(store: Timelines) -> dict[str, Any]:
    """Return the training steps of a rank; where it has none, all that is judged as one."""
    number = asked.known(store, asked.integer("rank", 0))
    clock = store.clock(number)
    steps = [
        (step.number, clock.at(step.measures.window_start_ns), step.measures.window_ns)
        for step in store.steps(number)
    ]
    if not steps:
        start, end = store.source.judged.get(number) or abort(404, "nothing of it was measured")
        return {"steps": [{"number": None, "start": str(clock.at(start)), "length": end - start}]}
    return {
        "steps": [
            {"number": step, "start": str(start), "length": length} for step, start, length in steps
        ]
    }


def _tiles(store: Timelines) -> str:
    """Return what a screen so wide can show of some rows between two times."""
    start, end = asked.times()
    columns = asked.integer("columns", 1, asked.MAX_COLUMNS)
    return tiles(asked.rows(store), start, end, columns)


def _strips(store: Timelines) -> dict[str, Any]:
    """Return how much of each column some ranks computed, communicated and copied."""
    start, end = asked.times()
    columns = asked.integer("columns", 1, asked.MAX_COLUMNS)
    return {
        str(number): strip(store.gpu(number), start, end, columns) for number in asked.ranks(store)
    }


def _event(store: Timelines) -> dict[str, Any]:
    """Return what is known of one event."""
    number, source, index = asked.event_id("id")
    event = describe(store.whole(asked.known(store, number)), source, index)
    return event if event is not None else abort(404, "there is no such event")


def _neighbour(store: Timelines) -> dict[str, Any]:
    """Return the event after or before one in its row; none behind the last."""
    number, source, index = asked.event_id("id")
    step = 1 if asked.one_of("direction", ("next", "previous")) == "next" else -1
    timeline = store.gpu(asked.known(store, number))
    if source not in timeline.events:
        timeline = store.whole(number)
    if timeline.find(source, index) is None:
        abort(404, "there is no such event")
    neighbour = timeline.neighbour(source, index, step)
    return {"id": None if neighbour is None else f"{number}.{neighbour[0]}.{neighbour[1]}"}


def _namesake(store: Timelines) -> dict[str, Any]:
    """Return the event of the same name after or before one on its rank, going round."""
    number, source, index = asked.event_id("id")
    backwards = asked.one_of("direction", ("next", "previous")) == "previous"
    ranks = {asked.known(store, number): store.events(number)}
    event = namesake(number, ranks, source, index, backwards=backwards)
    return {"id": event} if event is not None else abort(404, "there is no such event")


def _block(store: Timelines) -> dict[str, Any]:
    """Return what the events of one row are that lie between two times."""
    timeline, track = asked.track(store, asked.text("row"))
    return summarize(track, timeline, *asked.times())


def _area(store: Timelines) -> dict[str, Any]:
    """Return how long what ran in some rows between two times, by name."""
    return statistics(asked.event_rows(store), *asked.times())


def _events(store: Timelines) -> dict[str, Any]:
    """Return the events of some rows between two times one by one."""
    return listed(asked.event_rows(store), *asked.times())


def _collective(store: Timelines) -> dict[str, Any]:
    """Return one collective on all of its ranks."""
    number, source, index = asked.event_id("id")
    if source != OPERATION:
        abort(404, "it is not a GPU operation")
    if store.source.analysis is None:
        abort(404, _NOT_ANALYSED)
    members = collective(store, asked.known(store, number), index)
    return members if members is not None else abort(404, "it was not matched with other ranks")


def _path(store: Timelines) -> dict[str, Any]:
    """Return the critical path of a step: of a given one, or of that at a time of a rank.

    It takes its time: a client that gets the state `asked` asks again.
    """
    if "step" in request.args:
        text = asked.text("step")
        step = None if text == WHOLE_PATH else asked.whole_number("step", text, 0)
    else:
        number = asked.known(store, asked.integer("rank", 0))
        step = step_at(
            store.steps(number), store.clock(number).own(asked.integer("at", -BEYOND_NS, BEYOND_NS))
        )
    analysis = store.source.analysis or abort(404, _NOT_ANALYSED)
    question = questions_about(analysis).about(PathQuestion(step))
    named = WHOLE_PATH if step is None else str(step)
    if not question.is_over:
        return {"state": "asked", "step": named}
    if question.answer is None:
        return {"state": "unknown", "step": named, "why": question.error or _UNKNOWN_PATH}
    return {"state": "known", **drawn(store, question.answer), "step": named}


def _search(store: Timelines) -> dict[str, Any]:
    """Return how many events are what is searched for, and the next one.

    `is_all` says whether calls and ranges are read already; if not, the client asks again.
    """
    numbers = asked.ranks(store)
    at = Place(asked.integer("at", -BEYOND_NS, BEYOND_NS))
    backwards = asked.one_of("direction", ("next", "previous")) == "previous"
    query = parsed(asked.text("text"))
    start = asked.event_id("from") if "from" in request.args else None
    ranks, is_all = store.searchable(numbers)
    if start is not None:
        if start[0] in numbers and start[1] not in ranks.get(start[0], {}):
            ranks = {**ranks, start[0]: store.events(start[0])}
        place = place_of(ranks, *start)
        if place is None:
            abort(404, "there is no such event")
        at = place if backwards else after(place)
    return {**search(ranks, query, at, backwards=backwards), "is_all": is_all}


def _hits(store: Timelines) -> dict[str, Any]:
    """Return the columns of a view in which something begins that is searched for."""
    start, end = asked.times()
    columns = asked.integer("columns", 1, asked.MAX_COLUMNS)
    query = parsed(asked.text("text"))
    ranks, is_all = store.searchable(asked.ranks(store))
    return {"columns": hits(ranks, query, start, end, columns), "is_all": is_all}


_ANSWERS: dict[str, Answer] = {
    "rank": _rank, "steps": _steps, "tiles": _tiles, "strips": _strips, "event": _event,
    "neighbour": _neighbour, "namesake": _namesake, "block": _block, "area": _area,
    "events": _events, "collective": _collective, "path": _path, "search": _search, "hits": _hits,
}  # fmt: skip


def described(store: Timelines, number: int, *, with_host: bool) -> dict[str, Any]:
    """Return the facts about a rank that the browser needs to draw its rows.

    Args:
        store: of the timelines.
        number: the rank's.
        with_host: whether the rows of its host are needed.
    """
    timeline = store.whole(number) if with_host else store.gpu(number)
    extent, clock = timeline.extent_ns, timeline.clock
    analysis = store.source.analysis
    findings = analysis.findings if analysis is not None else ()
    unit = "" if analysis is None else View(analysis, Address()).unit
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
            number_of_finding: {
                "title": one_line(finding.title),
                "advice": [
                    one_line(advice, _MAX_ADVICE) for advice in finding.advice[:_NUM_ADVICE]
                ],
                "gain": "" if finding.saving is None else gain_text(finding.saving, unit),
            }
            for number_of_finding, finding in enumerate(findings)
            if finding.rank == number and finding.evidence
        },
        "evidence": [
            {
                "finding": finding.id,
                "operation": operation_id(timeline.rank, interval)
                if finding.id == straggler.ID
                else None,
                "number": number_of_finding,
                "evidence": index,
                "severity": str(finding.severity),
                "label": one_line(interval.label),
                "start": str(clock.at(interval.start_ns)),
                "end": str(clock.at(interval.end_ns)),
            }
            for number_of_finding, finding in enumerate(findings)
            if finding.rank == number
            for index, interval in enumerate(finding.evidence)
        ],
    }


def _answered(answer: Answer, timelines: Callable[[], Timelines | None]) -> Response:
    content = answer(timelines() or abort(404, "there is no other side"))
    written = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return Response(written, mimetype="application/json")


def _unreadable(error: TraceprofError) -> tuple[dict[str, str], int]:
    """Say in the browser, too, what is wrong with a report."""
    _log.error("%s", error)
    return {"error": str(error)}, 500
